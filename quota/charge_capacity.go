package quota

import (
	"math"
	"math/big"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// consumed returns what a request consumes of a shareable device's capacity: the requested
// value made valid by the device's request policy; the policy's default, else the whole value,
// when nothing is requested. Values that upstream cannot represent, so that it allocates
// nothing, are computed exactly here.
//
// Source: KEP-5075, calculateConsumedCapacity in k8s.io/dynamic-resource-allocation
// structured/internal/incubating/consumable_capacity.go (v0.37).
func consumed(c *resourceapi.DeviceCapacity, requested map[resourceapi.QualifiedName]resource.Quantity, name resourceapi.QualifiedName) resource.Quantity {
	p := c.RequestPolicy
	r, ok := requested[name]
	switch {
	case !ok && p != nil && p.Default != nil:
		r = *p.Default
	case !ok:
		r = c.Value
	case p == nil:
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		r = inRange(r, p.ValidRange)
	default:
		r = nextValid(r, p.ValidValues)
	}
	if r.Sign() < 0 {
		return resource.Quantity{Format: r.Format}
	}
	return r
}

// nextValid returns the first value that is not smaller than r, else r. The API sorts values.
func nextValid(r resource.Quantity, values []resource.Quantity) resource.Quantity {
	for i := range values {
		if r.Cmp(values[i]) <= 0 {
			return values[i]
		}
	}
	return r
}

// inRange rounds r up to min plus a multiple of step.
func inRange(r resource.Quantity, valid *resourceapi.CapacityRequestPolicyRange) resource.Quantity {
	if r.Cmp(*valid.Min) < 0 {
		return *valid.Min
	}
	if valid.Step == nil || valid.Step.Sign() <= 0 {
		return r
	}
	if n, ok := inWholeRange(r, valid); ok {
		return n
	}
	scale := int32(0)
	if inMilli(valid.Min) && inMilli(valid.Max) && inMilli(valid.Step) {
		scale = 3
	}
	lower, step := scaled(*valid.Min, scale), scaled(*valid.Step, scale)
	v, rest := new(big.Int), new(big.Int)
	v.Sub(scaled(r, scale), lower)
	if v.QuoRem(v, step, rest); rest.Sign() > 0 {
		v.Add(v, big.NewInt(1))
	}
	v.Add(v.Mul(v, step), lower)
	return fromScaled(v, scale, valid.Step.Format)
}

// inWholeRange is inRange for whole numbers of usual size.
func inWholeRange(r resource.Quantity, valid *resourceapi.CapacityRequestPolicyRange) (resource.Quantity, bool) {
	value, ok1 := r.AsInt64()
	lower, ok2 := valid.Min.AsInt64()
	step, ok3 := valid.Step.AsInt64()
	if !ok1 || !ok2 || !ok3 || lower < 0 {
		return r, false
	}
	added := value - lower
	if rest := added % step; rest > 0 {
		if value > math.MaxInt64-(step-rest) {
			return r, false
		}
		value += step - rest
	}
	return *resource.NewQuantity(value, valid.Step.Format), true
}

// inMilli returns true if a quantity is a whole number of thousandths that fits an int64, or not set.
func inMilli(q *resource.Quantity) bool {
	if q == nil {
		return true
	}
	milli := scaled(*q, 3)
	if !milli.IsInt64() {
		return false
	}
	back := fromScaled(milli, 3, q.Format)
	return back.Cmp(*q) == 0
}

// scaled returns q × 10^scale, rounded up.
func scaled(q resource.Quantity, scale int32) *big.Int {
	q = q.DeepCopy()
	d := q.AsDec()
	n := new(big.Int).Set(d.UnscaledBig())
	shift := int64(scale) - int64(d.Scale())
	if shift >= 0 {
		return n.Mul(n, power10(shift))
	}
	rest := new(big.Int)
	if n.QuoRem(n, power10(-shift), rest); rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	return n
}

// fromScaled returns n / 10^scale.
func fromScaled(n *big.Int, scale int32, format resource.Format) resource.Quantity {
	if n.IsInt64() && scale == 0 {
		return *resource.NewQuantity(n.Int64(), format)
	}
	if n.IsInt64() && scale == 3 {
		return *resource.NewMilliQuantity(n.Int64(), format)
	}
	q := resource.Quantity{Format: format}
	d := q.AsDec()
	d.SetUnscaledBig(n)
	s := d.Scale() // of 0; the type is not imported by name
	for range scale {
		s++
	}
	d.SetScale(s)
	return q
}

func power10(n int64) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(n), nil)
}
