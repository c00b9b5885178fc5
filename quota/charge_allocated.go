package quota

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Allocated returns what the allocation in a claim's status costs the quota: the chosen
// alternatives, the devices themselves, the capacity they say is consumed; a share pays the
// counters of its device in full, as each other share does. It is false when
// the claim is not allocated, and when the amount of some key cannot be computed now, because
// a device is not published; Unknown then has these keys.
func (c *Charger) Allocated(claim *resourceapi.ResourceClaim, q *Quota) (Charge, bool) {
	if claim.Status.Allocation == nil {
		return Charge{}, false
	}
	t := newTally(q, true)
	c.allocated(claim, q, t)
	return t.charge(), len(t.unknown) == 0
}

// allocated adds the allocated charge of an allocated claim to the tally.
func (c *Charger) allocated(claim *resourceapi.ResourceClaim, q *Quota, t *tally) {
	t.object()
	results := claim.Status.Allocation.Devices.Results
	for i := range results {
		r := &results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		class, capacity := chosen(&claim.Spec, r.Request)
		object := c.inv.DeviceClass(class)
		if object == nil {
			t.unsure = true
		}
		a := &allocatedDevice{result: r, device: c.inv.Device(r.Driver, r.Pool, r.Device), capacity: capacity, class: object}
		for j := range q.Keys {
			k := &q.Keys[j]
			if serves, _ := servesKey(k, class, object); serves {
				c.allocatedDevice(a, j, q.measureOf(k), t)
			}
		}
	}
}

type allocatedDevice struct {
	result   *resourceapi.DeviceRequestAllocationResult
	device   *resourceapi.Device // nil: not published
	class    *resourceapi.DeviceClass
	capacity map[resourceapi.QualifiedName]resource.Quantity // requested
}

// allocatedDevice adds what one allocated device costs one key.
func (c *Charger) allocatedDevice(a *allocatedDevice, key int, m measure, t *tally) {
	r := a.result
	if m.selected {
		if a.device == nil {
			t.missing(key, r)
			return
		}
		matches, err := c.inv.Matches(m.selector, r.Driver, r.Pool, r.Device)
		if err != nil {
			t.unknown = append(t.unknown, UnknownCharge{Key: t.q.Keys[key].Name, Request: r.Request, Why: err.Error()})
			return
		}
		if !matches {
			return
		}
	}
	v, told, computed := a.amount(m)
	if !computed {
		t.missing(key, r)
		return
	}
	if !told && a.class != nil {
		if d, err := DeclaredFootprint(a.class); err == nil && len(d) > 0 {
			if declared := d.amount(m); declared.Cmp(v) > 0 {
				v = declared
			}
		}
	}
	text := ""
	if t.explain {
		text = fmt.Sprintf("allocated %s/%s/%s: %s", r.Driver, r.Pool, r.Device, v.String())
	}
	t.add(key, v, r.Request, text)
}

// amount returns what the device costs by one measure. computed is false when only the
// published device could tell.
func (a *allocatedDevice) amount(m measure) (v resource.Quantity, told, computed bool) {
	if m.kind == MeasureDevices {
		return quantity(1), true, true
	}
	if m.kind == MeasureCapacity {
		for name, q := range a.result.ConsumedCapacity {
			if sameName(name, m.of, a.result.Driver) && q.Cmp(v) >= 0 {
				v, told = q, true
			}
		}
		if told {
			return v, true, true
		}
	}
	if a.device == nil {
		return v, false, false
	}
	v, told = amountOf(a.device, a.result.Driver, m, nil)
	if m.kind == MeasureCapacity && a.result.ShareID != nil {
		v, told = amountOf(a.device, a.result.Driver, m, a.capacity)
	}
	return v, told, true
}

// missing: the device is not published, and nothing else tells the amount.
func (t *tally) missing(key int, r *resourceapi.DeviceRequestAllocationResult) {
	t.unknown = append(t.unknown, UnknownCharge{Key: t.q.Keys[key].Name, Request: r.Request,
		Why: fmt.Sprintf("device %s/%s/%s is not published", r.Driver, r.Pool, r.Device)})
}

// chosen returns the class and requested capacity of the alternative that a result names as
// "request" or "request/subrequest".
func chosen(spec *resourceapi.ResourceClaimSpec, name string) (class string, capacity map[resourceapi.QualifiedName]resource.Quantity) {
	name, sub, _ := strings.Cut(name, "/")
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Name != name {
			continue
		}
		if e := r.Exactly; e != nil {
			return e.DeviceClassName, requirements(e.Capacity)
		}
		for j := range r.FirstAvailable {
			if s := &r.FirstAvailable[j]; s.Name == sub {
				return s.DeviceClassName, requirements(s.Capacity)
			}
		}
	}
	return "", nil
}

func requirements(c *resourceapi.CapacityRequirements) map[resourceapi.QualifiedName]resource.Quantity {
	if c == nil {
		return nil
	}
	return c.Requests
}
