package allocator

import (
	"sync/atomic"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
)

// slice is a published ResourceSlice with what its devices need for a search. It is immutable
// but for what is remembered of selectors.
type slice struct {
	api     *resourceapi.ResourceSlice
	devices []device
	reach   reach
	// groups: a device declares compatibility groups. binding: one has binding conditions.
	// consumes: one consumes counters. skips: node operations are optional.
	// beside: it defines counter sets for its own devices only.
	groups, binding, consumes, skips, beside bool

	outcomes atomic.Pointer[[]*outcomes]
	resolved atomic.Pointer[resolvedUses]
}

// device is one device of a slice.
type device struct {
	api   *resourceapi.Device
	name  string // what is below saves a search from looking at api
	slice *slice
	index int
	// taints are the device's own and those of taint rules.
	taints []resourceapi.DeviceTaint
	// reach is set in slices with node selection per device.
	reach *reach
	// capacities are sorted by name, with their amounts.
	capacities []capacity
	// plain: without a request for capacity the device passes the capacity check unless
	// something is consumed already.
	plain bool
	// broken: an attribute has no value or no valid version, so every expression fails.
	broken bool
	// shareable: the device allows multiple allocations. binding: it has binding conditions.
	// consumes: it consumes counters.
	shareable, binding, consumes bool
}

// reach is which nodes a slice or device is for.
type reach struct {
	nodeName string
	all      bool
	selector *nodeaffinity.NodeSelector
	api      *corev1.NodeSelector
	err      error // of the selector
	perNode  bool  // decided per device
	unknown  bool  // nothing that we know is set
}

// newReach follows upstream's precedence: nodeName, allNodes, nodeSelector.
func newReach(nodeName *string, all *bool, selector *corev1.NodeSelector) reach {
	r := reach{nodeName: ptr.Deref(nodeName, "")}
	switch {
	case r.nodeName != "":
	case ptr.Deref(all, false):
		r.all = true
	case selector != nil:
		r.api = selector
		r.selector, r.err = nodeaffinity.NewNodeSelector(selector)
	default:
		r.unknown = true
	}
	return r
}

// matches tells whether the node is reached. node may be nil: only "all nodes" reaches it.
func (r *reach) matches(node *corev1.Node) (bool, error) {
	switch {
	case r.err != nil:
		return false, r.err
	case r.all:
		return true, nil
	case node == nil:
		return false, nil
	case r.nodeName != "":
		return node.Name == r.nodeName, nil
	case r.selector != nil:
		return r.selector.Match(node), nil
	}
	return false, nil
}

// newSlice prepares a slice. rules are the taint rules that may apply, in order.
func newSlice(api *resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule, beside bool) *slice {
	s := &slice{api: api, devices: make([]device, len(api.Spec.Devices)), skips: len(api.Spec.SkipNodeOperations) > 0}
	s.beside = beside && len(api.Spec.SharedCounters) > 0 && len(api.Spec.Devices) > 0
	s.reach = newReach(api.Spec.NodeName, api.Spec.AllNodes, api.Spec.NodeSelector)
	if s.reach.unknown && ptr.Deref(api.Spec.PerDeviceNodeSelection, false) {
		s.reach = reach{perNode: true}
	}
	for i := range s.devices {
		d := &s.devices[i]
		*d = device{api: &api.Spec.Devices[i], name: api.Spec.Devices[i].Name, slice: s, index: i}
		d.taints = taintsOf(d, rules)
		d.shareable = ptr.Deref(d.api.AllowMultipleAllocations, false)
		d.broken = brokenAttributes(d.api)
		d.capacities, d.plain = newCapacities(d.api)
		if ptr.Deref(api.Spec.PerDeviceNodeSelection, false) {
			r := newReach(d.api.NodeName, d.api.AllNodes, d.api.NodeSelector)
			d.reach = &r
		}
		d.binding = len(d.api.BindingConditions) > 0
		d.consumes = len(d.api.ConsumesCounters) > 0
		s.binding = s.binding || d.api.BindingConditions != nil
		s.consumes = s.consumes || d.consumes
		for _, c := range d.api.ConsumesCounters {
			s.groups = s.groups || len(c.CompatibilityGroups) > 0
		}
	}
	return s
}

// counterSet returns the name under which the pool knows a counter set that the slice defines or
// its devices consume. Names of sets have no slash.
func (s *slice) counterSet(name string) string {
	if s.beside {
		return s.api.Name + "/" + name
	}
	return name
}

// brokenAttributes tells whether converting the attributes for CEL fails.
func brokenAttributes(d *resourceapi.Device) bool {
	for _, attr := range d.Attributes {
		switch {
		case attr.IntValues != nil, attr.BoolValues != nil, attr.StringValues != nil:
		case attr.VersionValues != nil:
			for _, v := range attr.VersionValues {
				if _, err := semver.Parse(v); err != nil {
					return true
				}
			}
		case attr.IntValue != nil, attr.BoolValue != nil, attr.StringValue != nil:
		case attr.VersionValue != nil:
			if _, err := semver.Parse(*attr.VersionValue); err != nil {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// key identifies the pool of the slice, see poolKey.
func (s *slice) key() string { return poolKey(s.api.Spec.Driver, s.api.Spec.Pool.Name) }

// id names the device in messages.
func (d *device) id() string {
	return d.slice.api.Spec.Driver + "/" + d.slice.api.Spec.Pool.Name + "/" + d.api.Name
}

// poolKey sorts like (driver, pool): no name contains the separator.
func poolKey(driver, pool string) string { return driver + "\x00" + pool }
