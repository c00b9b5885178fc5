package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// capacity is one capacity of a device.
type capacity struct {
	name  resourceapi.QualifiedName
	value amount
	api   resourceapi.DeviceCapacity
}

var (
	errNotRepresentable = errors.New("capacity request cannot be represented in the device's range")
	errNegative         = errors.New("capacity is negative")
)

// newCapacities returns the capacities sorted by name. plain tells that each is unpolicied and
// not negative, so that a request that names none of them passes on an unused device.
func newCapacities(d *resourceapi.Device) (list []capacity, plain bool) {
	plain = true
	for name, c := range d.Capacity {
		value := amountOf(c.Value)
		plain = plain && c.RequestPolicy == nil && value.sign() >= 0
		list = append(list, capacity{name: name, value: value, api: c})
	}
	slices.SortFunc(list, func(a, b capacity) int { return cmp.Compare(a.name, b.name) })
	return list, plain
}

// consumption returns what a request consumes of each capacity of the device, in their order.
// ok is false when the device lacks a requested capacity or its policy forbids the value; short
// then names the capacity. The error is upstream's fatal one: negative or not representable.
//
// Source: structured/internal/experimental/consumable_capacity.go, CmpRequestOverCapacity (v0.37).
func (d *device) consumption(req *resourceapi.CapacityRequirements, fractional bool, buffer []resource.Quantity) (used []resource.Quantity, short resourceapi.QualifiedName, err error) {
	var requests map[resourceapi.QualifiedName]resource.Quantity
	if req != nil {
		requests = req.Requests
	}
	for name := range requests {
		if _, ok := d.api.Capacity[name]; !ok && (short == "" || name < short) {
			short = name
		}
	}
	if short != "" {
		return nil, short, nil
	}
	used = buffer[:0]
	for i := range d.capacities {
		c := &d.capacities[i]
		requested, ok := requests[c.name]
		q, err := consumed(requested, ok, &c.api, fractional)
		if err != nil {
			return nil, "", fmt.Errorf("capacity %q: %w", c.name, err)
		}
		if q.Sign() < 0 {
			return nil, "", fmt.Errorf("capacity %q: %w", c.name, errNegative)
		}
		used = append(used, q)
	}
	for i, c := range d.capacities {
		if !policyAllows(used[i], c.api.RequestPolicy, fractional) {
			return nil, c.name, nil
		}
	}
	return used, "", nil
}

// consumed returns what is consumed of one capacity: the request rounded up by the policy; for
// no request the policy's default, else all of it.
func consumed(requested resource.Quantity, ok bool, c *resourceapi.DeviceCapacity, fractional bool) (resource.Quantity, error) {
	p := c.RequestPolicy
	switch {
	case !ok && p != nil && p.Default != nil:
		return p.Default.DeepCopy(), nil
	case !ok:
		return c.Value.DeepCopy(), nil
	case p == nil:
		return requested.DeepCopy(), nil
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		return roundUp(requested, p.ValidRange, fractional)
	}
	for _, v := range p.ValidValues {
		if requested.Cmp(v) <= 0 {
			return v.DeepCopy(), nil
		}
	}
	return requested.DeepCopy(), nil
}

// roundUp rounds the request up to min + n × step.
func roundUp(requested resource.Quantity, r *resourceapi.CapacityRequestPolicyRange, fractional bool) (resource.Quantity, error) {
	switch {
	case requested.Cmp(*r.Min) < 0:
		return r.Min.DeepCopy(), nil
	case r.Step == nil:
		return requested.DeepCopy(), nil
	}
	milli := inMilli(r, fractional)
	value, ok := scaled(requested, milli)
	if !ok {
		return resource.Quantity{}, fmt.Errorf("%w: request %s", errNotRepresentable, requested.String())
	}
	step, _ := scaled(*r.Step, milli)
	low, _ := scaled(*r.Min, milli)
	if step <= 0 || low < 0 {
		// No API server accepts such a policy; it divides by zero or wraps.
		return requested.DeepCopy(), nil
	}
	n := (value - low) / step
	if (value-low)%step != 0 {
		n++
	}
	if n > (math.MaxInt64-low)/step {
		return resource.Quantity{}, fmt.Errorf("%w: request %s rounded up", errNotRepresentable, requested.String())
	}
	value = low + n*step
	switch {
	case !milli:
		return *resource.NewQuantity(value, r.Step.Format), nil
	case value%1000 == 0:
		return *resource.NewQuantity(value/1000, r.Step.Format), nil
	}
	return *resource.NewMilliQuantity(value, r.Step.Format), nil
}

// scaled returns the quantity in units, rounded up, or in milli units. ok is false when that
// does not fit, or when milli units are not exact.
func scaled(q resource.Quantity, milli bool) (value int64, ok bool) {
	if !milli {
		return q.Value(), q.CmpInt64(math.MaxInt64) <= 0
	}
	value = q.MilliValue()
	return value, q.Cmp(*resource.NewMilliQuantity(value, q.Format)) == 0
}

// inMilli tells whether the range is computed in milli units: fractional ranges are enabled
// and all of min, max and step are exact in them.
func inMilli(r *resourceapi.CapacityRequestPolicyRange, fractional bool) bool {
	for _, q := range []*resource.Quantity{r.Min, r.Max, r.Step} {
		if q == nil || !fractional {
			continue
		}
		if _, ok := scaled(*q, true); !ok {
			return false
		}
	}
	return fractional && (r.Step == nil || r.Step.MilliValue() >= 1)
}

// policyAllows tells whether the value, already rounded, obeys the policy.
func policyAllows(value resource.Quantity, p *resourceapi.CapacityRequestPolicy, fractional bool) bool {
	switch {
	case p == nil:
		return true
	case p.Default != nil && value.Cmp(*p.Default) == 0:
		return true
	case p.ValidRange != nil:
		return rangeAllows(value, p.ValidRange, fractional)
	case len(p.ValidValues) > 0:
		return slices.ContainsFunc(p.ValidValues, func(v resource.Quantity) bool { return v.Cmp(value) == 0 })
	}
	return true
}

func rangeAllows(value resource.Quantity, r *resourceapi.CapacityRequestPolicyRange, fractional bool) bool {
	if r.Max != nil && value.Cmp(*r.Max) > 0 {
		return false
	}
	if r.Step == nil {
		return true
	}
	milli := inMilli(r, fractional)
	v, ok := scaled(value, milli)
	step, _ := scaled(*r.Step, milli)
	var low int64
	if r.Min != nil {
		low, _ = scaled(*r.Min, milli)
	}
	return ok && step > 0 && low >= 0 && (v-low)%step == 0
}

// sortedKeys returns the keys of the map, sorted.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
