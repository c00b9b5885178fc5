package webhooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/equality"
)

// document is a claim or template as JSON, in the version of its request, so that patches
// name its own fields and nothing gets lost that this program does not know. Changes are
// made in place and collected as patches.
type document struct {
	version string
	// spec is where the claim's spec is.
	spec    []string
	content map[string]any
	patches []jsonpatch.JsonPatchOperation
}

func (d *document) known() bool {
	return d.version == versionV1 || d.version == versionV1beta2 || d.version == versionV1beta1
}

func (d *document) read(raw []byte) error {
	if err := unmarshal(raw, &d.content); err != nil {
		return err
	}
	if d.content == nil {
		return errors.New("the request carries no object")
	}
	return nil
}

// at returns the object at the path, nil when there is none.
func at(content map[string]any, path ...string) map[string]any {
	for _, p := range path {
		next, ok := content[p].(map[string]any)
		if !ok {
			return nil
		}
		content = next
	}
	return content
}

// pointer returns the JSON pointer of the path.
func pointer(path ...string) string {
	var b strings.Builder
	for _, p := range path {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
	}
	return b.String()
}

func (d *document) annotation(name string) (string, bool) {
	v, ok := at(d.content, "metadata", "annotations")[name].(string)
	return v, ok
}

func (d *document) deleting() bool {
	_, ok := at(d.content, "metadata")["deletionTimestamp"].(string)
	return ok
}

// record returns what was changed on the object before.
func (d *document) record() (record, bool) {
	text, ok := d.annotation(MutatedAnnotation)
	if !ok {
		return record{}, false
	}
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return record{}, false
	}
	return r, true
}

// annotate records what was changed now, beside what was before.
func (d *document) annotate(r record) error {
	before, _ := d.record()
	text, err := r.merge(before).json()
	if err != nil {
		return err
	}
	if at(d.content, "metadata", "annotations") == nil {
		d.patches = append(d.patches, jsonpatch.NewOperation("add", pointer("metadata", "annotations"), map[string]any{MutatedAnnotation: text}))
		return nil
	}
	d.patches = append(d.patches, jsonpatch.NewOperation("add", pointer("metadata", "annotations", MutatedAnnotation), text))
	return nil
}

func (d *document) requests() []any {
	list, _ := at(d.content, append(slices.Clone(d.spec), "devices")...)["requests"].([]any)
	return list
}

// node is one place that names a class and selectors: a request or an alternative.
type node struct {
	path   []string
	fields map[string]any
}

// nodes returns them all; the error says that the document is not shaped like a claim.
func (d *document) nodes() ([]node, error) {
	base := append(slices.Clone(d.spec), "devices", "requests")
	var out []node
	for i, r := range d.requests() {
		request, ok := r.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s/%d is no object", pointer(base...), i)
		}
		path := append(slices.Clone(base), fmt.Sprint(i))
		alternatives, _ := request["firstAvailable"].([]any)
		for j, a := range alternatives {
			fields, ok := a.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s/firstAvailable/%d is no object", pointer(path...), j)
			}
			out = append(out, node{append(slices.Clone(path), "firstAvailable", fmt.Sprint(j)), fields})
		}
		if len(alternatives) > 0 {
			continue
		}
		if d.version == versionV1beta1 {
			out = append(out, node{path, request})
		} else if exactly, ok := request["exactly"].(map[string]any); ok {
			out = append(out, node{append(path, "exactly"), exactly})
		}
	}
	return out, nil
}

// apply sets the record's class where there is none and adds its selector where it is
// missing. It returns what of that was needed.
func (d *document) apply(r record) (done record, err error) {
	nodes, err := d.nodes()
	if err != nil {
		return done, err
	}
	for _, n := range nodes {
		if class, _ := n.fields["deviceClassName"].(string); class == "" && r.Class != "" {
			n.fields["deviceClassName"] = r.Class
			d.patches = append(d.patches, jsonpatch.NewOperation("add", pointer(append(n.path, "deviceClassName")...), r.Class))
			done.Class = r.Class
		}
		if r.Selector != "" && d.addSelector(n, r.Selector) {
			done.Selector = r.Selector
		}
	}
	return done, nil
}

// addSelector returns false when the node has the selector already.
func (d *document) addSelector(n node, expression string) bool {
	selectors, _ := n.fields["selectors"].([]any)
	for _, s := range selectors {
		if selector, ok := s.(map[string]any); ok && at(selector, "cel")["expression"] == expression {
			return false
		}
	}
	added := map[string]any{"cel": map[string]any{"expression": expression}}
	path := append(n.path[:len(n.path):len(n.path)], "selectors")
	if len(selectors) == 0 {
		d.patches = append(d.patches, jsonpatch.NewOperation("add", pointer(path...), []any{added}))
	} else {
		d.patches = append(d.patches, jsonpatch.NewOperation("add", pointer(append(path, "-")...), added))
	}
	n.fields["selectors"] = append(slices.Clone(selectors), added)
	return true
}

// drop removes alternatives, but never all of a request, and notes them in done.
func (d *document) drop(names map[string][]string, done *record) error {
	base := append(slices.Clone(d.spec), "devices", "requests")
	for i, r := range d.requests() {
		request, ok := r.(map[string]any)
		if !ok {
			return fmt.Errorf("%s/%d is no object", pointer(base...), i)
		}
		name, _ := request["name"].(string)
		alternatives, _ := request["firstAvailable"].([]any)
		// From the last one, so that the places of the others do not change.
		for j := len(alternatives) - 1; j >= 0 && len(alternatives) > 1; j-- {
			fields, _ := alternatives[j].(map[string]any)
			alternative, _ := fields["name"].(string)
			if !slices.Contains(names[name], alternative) {
				continue
			}
			alternatives = slices.Delete(slices.Clone(alternatives), j, j+1)
			path := append(slices.Clone(base), fmt.Sprint(i), "firstAvailable", fmt.Sprint(j))
			d.patches = append(d.patches, jsonpatch.NewOperation("remove", pointer(path...), nil))
			if done.Dropped == nil {
				done.Dropped = map[string][]string{}
			}
			done.Dropped[name] = slices.Insert(done.Dropped[name], 0, alternative)
		}
		request["firstAvailable"] = alternatives
		if alternatives == nil {
			delete(request, "firstAvailable")
		}
	}
	return nil
}

// claim returns the claim, or the claim of the template, in v1 with defaults.
func (d *document) claim(namespace string) (*resourceapi.ResourceClaim, error) {
	raw, err := json.Marshal(map[string]any{"metadata": d.content["metadata"], "spec": at(d.content, d.spec...)})
	if err != nil {
		return nil, err
	}
	m, spec, err := decodeSpec(d.version, raw, claimKind,
		unwrap[resourceapi.ResourceClaimSpec], unwrap[resourcev1beta2.ResourceClaimSpec], unwrap[resourcev1beta1.ResourceClaimSpec])
	if err != nil {
		return nil, err
	}
	return &resourceapi.ResourceClaim{ObjectMeta: m.objectMeta(namespace), Spec: *spec}, nil
}

// sameSpec tells whether two documents ask for the same.
func (d *document) sameSpec(other *document) (bool, error) {
	a, err := d.claim("")
	if err != nil {
		return false, err
	}
	b, err := other.claim("")
	if err != nil {
		return false, err
	}
	return equality.Semantic.DeepEqual(a.Spec, b.Spec), nil
}
