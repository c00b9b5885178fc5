package webhooks

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotations on a Namespace that shape the claims and templates in it.
const (
	// DefaultClassAnnotation is the DeviceClass of requests that name none.
	DefaultClassAnnotation = "devicequota.io/default-device-class"
	// DeviceSelectorAnnotation is a CEL device selector that is added to every request.
	DeviceSelectorAnnotation = "devicequota.io/device-selector"
	// PrioritizedListAnnotation "Fit" drops the firstAvailable alternatives of new claims that do not fit now.
	PrioritizedListAnnotation = "devicequota.io/prioritized-list"

	// MutatedAnnotation on a claim or template records what was changed when it was created.
	MutatedAnnotation = "devicequota.io/mutated"
)

const fitValue = "Fit"

// shaping is what a namespace asks for.
type shaping struct {
	class, selector string
	fit             bool
}

func (s shaping) empty() bool { return s == shaping{} }

// shapingOf reads a namespace's annotations; the errors name them.
func (s *suite) shapingOf(annotations map[string]string) (shaping, field.ErrorList) {
	var errs field.ErrorList
	path := field.NewPath("metadata", "annotations")
	out := shaping{class: annotations[DefaultClassAnnotation], selector: strings.TrimSpace(annotations[DeviceSelectorAnnotation])}
	if out.class != "" {
		for _, msg := range validation.IsDNS1123Subdomain(out.class) {
			errs = append(errs, field.Invalid(path.Key(DefaultClassAnnotation), out.class, msg))
		}
	}
	if out.selector != "" {
		if result := s.compiler.cache.GetOrCompile(out.selector); result.Error != nil {
			errs = append(errs, field.Invalid(path.Key(DeviceSelectorAnnotation), out.selector, result.Error.Detail))
		}
	}
	switch v := annotations[PrioritizedListAnnotation]; v {
	case "":
	case fitValue:
		out.fit = true
	default:
		errs = append(errs, field.NotSupported(path.Key(PrioritizedListAnnotation), v, []string{fitValue}))
	}
	return out, errs
}

// record is what was changed on an object, kept in MutatedAnnotation.
type record struct {
	// Class was set where there was none.
	Class string `json:"deviceClass,omitempty"`
	// Selector was added.
	Selector string `json:"selector,omitempty"`
	// Dropped alternatives by request.
	Dropped map[string][]string `json:"dropped,omitempty"`
}

func (r record) empty() bool { return r.Class == "" && r.Selector == "" && len(r.Dropped) == 0 }

// texts says what was changed, one change each.
func (r record) texts() []string {
	var out []string
	if r.Class != "" {
		out = append(out, fmt.Sprintf("set DeviceClass %q where none was named", r.Class))
	}
	if r.Selector != "" {
		out = append(out, fmt.Sprintf("added the selector %q to the requests", r.Selector))
	}
	for _, request := range slices.Sorted(maps.Keys(r.Dropped)) {
		out = append(out, fmt.Sprintf("dropped the alternatives %s of request %q, which do not fit the quota now",
			strings.Join(r.Dropped[request], ", "), request))
	}
	return out
}

func (r record) text() string { return strings.Join(r.texts(), "; ") }

// notes returns what the answer says about the changes.
func (r record) notes(who string) notes {
	n := notes{mutations: r.texts()}
	for _, t := range n.mutations {
		n.warn(ReasonMutated, who+" "+t)
	}
	return n
}

func (r record) json() (string, error) {
	b, err := json.Marshal(r)
	return string(b), err
}

// merge returns both records together; alternatives dropped twice are named once.
func (r record) merge(o record) record {
	if r.Class == "" {
		r.Class = o.Class
	}
	if r.Selector == "" {
		r.Selector = o.Selector
	}
	dropped := map[string][]string{}
	for _, d := range []map[string][]string{o.Dropped, r.Dropped} {
		for request, names := range d {
			for _, name := range names {
				if !slices.Contains(dropped[request], name) {
					dropped[request] = append(dropped[request], name)
				}
			}
		}
	}
	r.Dropped = dropped
	return r
}
