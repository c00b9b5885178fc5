package differential

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// maxResults is how many devices one claim can have.
const maxResults = resourceapi.AllocationResultsMaxSize

// alternative is a request, or one alternative of it.
type alternative struct {
	claim, request, sub int
	// parent and short are the parts of the name; parent is empty for plain requests.
	parent, short string
	class         *resourceapi.DeviceClass
	selectors     []resourceapi.DeviceSelector
	mode          resourceapi.DeviceAllocationMode
	count         int64
	admin         bool
	hasAdmin      bool
	tolerations   []resourceapi.DeviceToleration
	capacity      *resourceapi.CapacityRequirements
	derived       map[resourceapi.FullyQualifiedName]string
	className     string

	// all are the devices of allocation mode All; n is how many devices are wanted.
	all []*deviceView
	n   int64
	// dead alternatives can never be satisfied.
	dead bool
}

func (a *alternative) name() string {
	if a.parent != "" {
		return a.parent + "/" + a.short
	}
	return a.short
}

// named reports whether a list of request names means the alternative.
func (a *alternative) named(names []string) bool {
	return slices.Contains(names, a.name()) || a.parent != "" && slices.Contains(names, a.parent)
}

// alternatives lists the alternatives of each request of the claim; nil if a request has none.
func alternatives(index int, claim *resourceapi.ResourceClaim) [][]*alternative {
	var out [][]*alternative
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		var alts []*alternative
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			alts = append(alts, &alternative{claim: index, request: i, sub: j, parent: r.Name, short: s.Name, className: s.DeviceClassName,
				selectors: s.Selectors, mode: s.AllocationMode, count: s.Count, tolerations: s.Tolerations, capacity: s.Capacity, derived: derivedOf(s.DerivedAttributes)})
		}
		if e := r.Exactly; e != nil && len(alts) == 0 {
			alts = append(alts, &alternative{claim: index, request: i, sub: -1, short: r.Name, className: e.DeviceClassName, selectors: e.Selectors, mode: e.AllocationMode,
				count: e.Count, admin: isTrue(e.AdminAccess), hasAdmin: e.AdminAccess != nil, tolerations: e.Tolerations, capacity: e.Capacity, derived: derivedOf(e.DerivedAttributes)})
		}
		out = append(out, alts)
	}
	return out
}

func derivedOf(list []resourceapi.DeviceDerivedAttribute) map[resourceapi.FullyQualifiedName]string {
	out := map[resourceapi.FullyQualifiedName]string{}
	for _, d := range list {
		out[d.Name] = d.Expression
	}
	return out
}

// errCEL marks errors of expressions.
var errCEL = errors.New("CEL")

func celDevice(d *deviceView) dracel.Device {
	return dracel.Device{Driver: d.key.Driver, AllowMultipleAllocations: d.dev.AllowMultipleAllocations, Attributes: d.dev.Attributes, Capacity: d.dev.Capacity}
}

func selected(d *deviceView, selectors []resourceapi.DeviceSelector) (bool, error) {
	for _, s := range selectors {
		if s.CEL == nil {
			return false, fmt.Errorf("%w: selector without expression", errCEL)
		}
		e := sharedCache.GetOrCompile(s.CEL.Expression)
		if e.Error != nil {
			return false, fmt.Errorf("%w: %w", errCEL, e.Error)
		}
		ok, _, err := e.DeviceMatches(context.Background(), celDevice(d))
		if err != nil {
			return false, fmt.Errorf("%w on %s: %w", errCEL, d.key, err)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// selectable reports whether the device passes all that depends on nothing but itself,
// the request and the node.
func (a *alternative) selectable(c *Case, node *corev1.Node, d *deviceView) (bool, error) {
	if !c.Features.DeviceBindingAndStatus && len(d.dev.BindingConditions) > 0 {
		return false, nil
	}
	for _, list := range [][]resourceapi.DeviceSelector{a.class.Spec.Selectors, a.selectors} {
		if ok, err := selected(d, list); !ok || err != nil {
			return false, err
		}
	}
	if isTrue(d.slice.Spec.PerDeviceNodeSelection) {
		return nodeMatches(node, deref(d.dev.NodeName), isTrue(d.dev.AllNodes), d.dev.NodeSelector)
	}
	return true, nil
}

// featuresAllow reports whether no feature gate, and no missing feature of the node, makes the device unusable.
func featuresAllow(c *Case, node *corev1.Node, d *deviceView) bool {
	if len(d.slice.Spec.SkipNodeOperations) > 0 && (!c.Features.OptionalNodeOperations || !slices.Contains(node.Status.DeclaredFeatures, nodeOperations)) {
		return false
	}
	return c.Features.PartitionableDevices || len(d.dev.ConsumesCounters) == 0
}

// tolerated reports whether no taint of the device keeps the request away.
func (a *alternative) tolerated(c *Case, d *deviceView) bool {
	if !c.Features.DeviceTaints {
		return true
	}
	return !slices.ContainsFunc(d.dev.Taints, func(t resourceapi.DeviceTaint) bool {
		known := t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
		return known && !slices.ContainsFunc(a.tolerations, func(o resourceapi.DeviceToleration) bool { return tolerates(o, t) })
	})
}

func tolerates(o resourceapi.DeviceToleration, t resourceapi.DeviceTaint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	return o.Operator == resourceapi.DeviceTolerationOpExists || (o.Operator == "" || o.Operator == resourceapi.DeviceTolerationOpEqual) && o.Value == t.Value
}

// multiple reports whether the device can be in several allocations.
func multiple(c *Case, d *deviceView) bool {
	return c.Features.ConsumableCapacity && isTrue(d.dev.AllowMultipleAllocations)
}

// attribute finds the attribute that a constraint names: derived by the request, else
// published under the full name, else under the bare name in the driver's own domain.
func (a *alternative) attribute(d *deviceView, name resourceapi.FullyQualifiedName) (*resourceapi.DeviceAttribute, error) {
	if expression, ok := a.derived[name]; ok {
		e := sharedCache.GetOrCompileDerivedAttribute(expression)
		if e.Error != nil {
			return nil, fmt.Errorf("%w: %w", errCEL, e.Error)
		}
		value, _, err := e.EvaluateDerivedAttribute(context.Background(), celDevice(d))
		if err != nil {
			return nil, fmt.Errorf("%w on %s: %w", errCEL, d.key, err)
		}
		return value, nil
	}
	if v, ok := d.dev.Attributes[resourceapi.QualifiedName(name)]; ok {
		return &v, nil
	}
	if own := d.key.Driver + "/"; len(name) > len(own) && string(name[:len(own)]) == own {
		if v, ok := d.dev.Attributes[resourceapi.QualifiedName(name[len(own):])]; ok {
			return &v, nil
		}
	}
	return nil, nil
}
