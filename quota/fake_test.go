package quota_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	quotav1 "github.com/openshift/api/quota/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// inventory is an Inventory in which selectors are written in a language of its own:
// "driver=x", "<attribute>=x", "true", "expensive" (over the budget), "broken" (does not
// compile), "a && b".
type inventory struct {
	revision uint64
	classes  map[string]*resourceapi.DeviceClass
	devices  []published
	asked    int // calls of Candidates
}

type published struct {
	driver, pool string
	device       *resourceapi.Device
	nodes        []string // nil: every node
}

func (v *inventory) Revision() uint64 { return v.revision }

func (v *inventory) DeviceClass(name string) *resourceapi.DeviceClass { return v.classes[name] }

func (v *inventory) DeviceClasses() []string {
	var out []string
	for name := range v.classes {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (v *inventory) ExtendedResourceClass(name corev1.ResourceName) *resourceapi.DeviceClass {
	if class, ok := strings.CutPrefix(string(name), resourceapi.ResourceDeviceClassPrefix); ok {
		return v.classes[class]
	}
	var best *resourceapi.DeviceClass
	for _, n := range v.DeviceClasses() {
		c := v.classes[n]
		if c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != string(name) {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) {
			best = c
		}
	}
	return best
}

func (v *inventory) Candidates(class string, selectors []resourceapi.DeviceSelector,
	yield func(string, string, *resourceapi.Device, []string) bool) (bool, error) {
	v.asked++
	c := v.classes[class]
	if c == nil {
		return true, compileAll(selectors)
	}
	all := slices.Concat(c.Spec.Selectors, selectors)
	if err := compileAll(all); err != nil {
		return true, err
	}
	for _, s := range all {
		if s.CEL.Expression == "expensive" {
			return false, nil
		}
	}
	for i := range v.devices {
		p := &v.devices[i]
		if matchesAll(all, p) && !yield(p.driver, p.pool, p.device, p.nodes) {
			break
		}
	}
	return true, nil
}

func (v *inventory) Device(driver, pool, name string) *resourceapi.Device {
	if p := v.find(driver, pool, name); p != nil {
		return p.device
	}
	return nil
}

func (v *inventory) Matches(expression, driver, pool, name string) (bool, error) {
	if expression == "broken" {
		return false, fmt.Errorf("compilation of %q: syntax error", expression)
	}
	p := v.find(driver, pool, name)
	return p != nil && matches(expression, p), nil
}

func (v *inventory) find(driver, pool, name string) *published {
	for i := range v.devices {
		if p := &v.devices[i]; p.driver == driver && p.pool == pool && p.device.Name == name {
			return p
		}
	}
	return nil
}

func compileAll(selectors []resourceapi.DeviceSelector) error {
	for _, s := range selectors {
		if s.CEL.Expression == "broken" {
			return fmt.Errorf("compilation of %q: syntax error", s.CEL.Expression)
		}
	}
	return nil
}

func matchesAll(selectors []resourceapi.DeviceSelector, p *published) bool {
	for _, s := range selectors {
		if !matches(s.CEL.Expression, p) {
			return false
		}
	}
	return true
}

func matches(expression string, p *published) bool {
	for _, e := range strings.Split(expression, " && ") {
		name, value, _ := strings.Cut(e, "=")
		switch name {
		case "true":
		case "driver":
			if p.driver != value {
				return false
			}
		default:
			a := p.device.Attributes[resourceapi.QualifiedName(name)]
			if a.StringValue == nil || *a.StringValue != value {
				return false
			}
		}
	}
	return true
}

// newInventory returns an inventory of classes and slices. A slice without a node name is reached from every node.
func newInventory(objects ...any) *inventory {
	v := &inventory{revision: 1, classes: map[string]*resourceapi.DeviceClass{}}
	for _, o := range objects {
		switch o := o.(type) {
		case *resourceapi.DeviceClass:
			v.classes[o.Name] = o
		case *resourceapi.ResourceSlice:
			v.add(o)
		default:
			panic(fmt.Sprintf("no inventory of %T", o))
		}
	}
	return v
}

func (v *inventory) add(s *resourceapi.ResourceSlice) {
	for i := range s.Spec.Devices {
		p := published{driver: s.Spec.Driver, pool: s.Spec.Pool.Name, device: &s.Spec.Devices[i]}
		if s.Spec.NodeName != nil {
			p.nodes = []string{*s.Spec.NodeName}
		}
		v.devices = append(v.devices, p)
	}
}

// parse returns the quota of a valid ClusterResourceQuota; annotations are keys and values in turn.
func parse(t testing.TB, hard corev1.ResourceList, annotations ...string) *quota.Quota {
	t.Helper()
	crq := builders.Quota("team", hard)
	annotate(crq, annotations...)
	q, errs := quota.Parse(crq, quota.ParseOptions{})
	if len(errs) > 0 {
		t.Fatalf("parse: %v", errs.ToAggregate())
	}
	return q
}

func annotate(crq *quotav1.ClusterResourceQuota, annotations ...string) {
	for i := 0; i < len(annotations); i += 2 {
		if crq.Annotations == nil {
			crq.Annotations = map[string]string{}
		}
		crq.Annotations[annotations[i]] = annotations[i+1]
	}
}

// unlimited returns limits of the keys that nothing reaches.
func unlimited(keys ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, k := range keys {
		out[corev1.ResourceName(k)] = builders.List("k", "9E")["k"]
	}
	return out
}

// same fails the test unless the lists hold the same amounts.
func same(t testing.TB, what string, want, got corev1.ResourceList) {
	t.Helper()
	if !quota.Equal(want, got) {
		t.Errorf("%s:\nwant %s\ngot  %s", what, quota.Format(quota.Positive(want)), quota.Format(got))
	}
	for k, v := range got {
		if v.Sign() < 0 {
			t.Errorf("%s: negative %s=%s", what, k, v.String())
		}
	}
}

func fields(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Field)
	}
	slices.Sort(out)
	return out
}
