package differential

import (
	"errors"
	"fmt"
	"math"
	"math/big"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// errAmount: a requested capacity that no device's arithmetic can hold; it ends the whole allocation.
var errAmount = errors.New("capacity amount cannot be used")

// amounts returns what a request takes of each capacity of the device: the requested
// amount after the device's policy, the policy's default, or all of it. ok is
// false if the device cannot serve the request, also when it is unused.
func amounts(request *resourceapi.CapacityRequirements, d *resourceapi.Device, fractional bool) (take map[resourceapi.QualifiedName]quantity, ok bool, err error) {
	requests := map[resourceapi.QualifiedName]quantity{}
	if request != nil {
		requests = request.Requests
	}
	for name := range requests {
		if _, has := d.Capacity[name]; !has {
			return nil, false, nil
		}
	}
	take, ok = map[resourceapi.QualifiedName]quantity{}, true
	for name, capacity := range d.Capacity {
		amount := capacity.Value.DeepCopy()
		policy := capacity.RequestPolicy
		if policy != nil && policy.Default != nil {
			amount = policy.Default.DeepCopy()
		}
		if requested, has := requests[name]; has {
			if amount, err = rounded(requested, policy, fractional); err != nil {
				return nil, false, fmt.Errorf("capacity %s: %w", name, err)
			}
		}
		if amount.Sign() < 0 {
			return nil, false, fmt.Errorf("capacity %s is negative: %w", name, errAmount)
		}
		take[name] = amount
		ok = ok && permitted(amount, policy, fractional) && amount.Cmp(capacity.Value) <= 0
	}
	return take, ok, nil
}

// scaled reads quantities as whole numbers: thousandths if every one of the range is
// one and fractions are on, else whole units rounded up.
func scaled(r *resourceapi.CapacityRequestPolicyRange, fractional bool) (unit int64) {
	if !fractional {
		return 1
	}
	for _, q := range []*quantity{r.Min, r.Max, r.Step} {
		if q != nil && !isMilli(*q) {
			return 1
		}
	}
	if r.Step != nil && r.Step.MilliValue() < 1 {
		return 1
	}
	return 1000
}

func isMilli(q quantity) bool {
	return q.Cmp(*resource.NewMilliQuantity(q.MilliValue(), q.Format)) == 0
}

func inUnits(q quantity, unit int64) *big.Int {
	if unit == 1000 {
		return big.NewInt(q.MilliValue())
	}
	return big.NewInt(q.Value())
}

func rounded(requested quantity, policy *resourceapi.CapacityRequestPolicy, fractional bool) (quantity, error) {
	switch {
	case policy == nil:
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundedToStep(requested, policy.ValidRange, fractional)
	case policy.ValidValues != nil:
		for _, v := range policy.ValidValues {
			if requested.Cmp(v) <= 0 {
				return v.DeepCopy(), nil
			}
		}
	}
	return requested.DeepCopy(), nil
}

func roundedToStep(requested quantity, r *resourceapi.CapacityRequestPolicyRange, fractional bool) (quantity, error) {
	if requested.Cmp(*r.Min) < 0 {
		return r.Min.DeepCopy(), nil
	}
	if r.Step == nil {
		return requested.DeepCopy(), nil
	}
	unit := scaled(r, fractional)
	if unit == 1000 && !isMilli(requested) || unit == 1 && requested.CmpInt64(math.MaxInt64) > 0 {
		return quantity{}, errAmount
	}
	lowest, step := inUnits(*r.Min, unit), inUnits(*r.Step, unit)
	n := new(big.Int).Sub(inUnits(requested, unit), lowest)
	n.Add(n, new(big.Int).Sub(step, big.NewInt(1))).Div(n, step)
	n.Mul(n, step).Add(n, lowest)
	if !n.IsInt64() {
		return quantity{}, errAmount
	}
	if unit == 1000 {
		return *resource.NewMilliQuantity(n.Int64(), r.Step.Format), nil
	}
	return *resource.NewQuantity(n.Int64(), r.Step.Format), nil
}

// permitted applies the policy to the final amount.
func permitted(amount quantity, policy *resourceapi.CapacityRequestPolicy, fractional bool) bool {
	if policy == nil || policy.Default != nil && amount.Cmp(*policy.Default) == 0 {
		return true
	}
	if r := policy.ValidRange; r != nil {
		if r.Max != nil && amount.Cmp(*r.Max) > 0 {
			return false
		}
		if r.Step == nil {
			return true
		}
		unit := scaled(r, fractional)
		if unit == 1000 && !isMilli(amount) {
			return false
		}
		over := new(big.Int).Sub(inUnits(amount, unit), inUnits(*r.Min, unit))
		return over.Rem(over, inUnits(*r.Step, unit)).Sign() == 0
	}
	for _, v := range policy.ValidValues {
		if amount.Cmp(v) == 0 {
			return true
		}
	}
	return len(policy.ValidValues) == 0
}
