package quota_test

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// FuzzCharge: no claim makes charging panic, no amount is negative, and a larger count never
// costs less; every way of counting agrees.
func FuzzCharge(f *testing.F) {
	f.Add(uint64(1), "a", int64(1), int64(2), "ExactCount", "x=1", "mem", int64(5))
	f.Add(uint64(2), "b", int64(1), int64(9223372036854775807), "", "broken", "d0/mem", int64(-5))
	f.Add(uint64(3), "none", int64(-1), int64(0), "All", "expensive", "", int64(0))
	f.Add(uint64(4), "", int64(0), int64(1), "Most", "", "cores", int64(9223372036854775807))
	q := manyKeys(f, "x=1")
	f.Fuzz(func(t *testing.T, seed uint64, class string, less, more int64, mode, selector, capacity string, amount int64) {
		if less > more {
			less, more = more, less
		}
		r := world{rand.New(rand.NewPCG(seed, 2))}
		charger := quota.NewCharger(r.inventory())
		request := func(count int64) *resourceapi.ResourceClaim {
			var selectors []string
			if selector != "" {
				selectors = []string{selector}
			}
			exact := builders.Exactly("r", class, count, selectors...)
			exact.Exactly.AllocationMode = resourceapi.DeviceAllocationMode(mode)
			sub := builders.Sub("s", class, count, selectors...)
			if capacity != "" {
				c := builders.Capacity()
				v := c.Requests[""]
				v.Set(amount)
				c.Requests[resourceapi.QualifiedName(capacity)] = v
				exact.Exactly.Capacity, sub.Capacity = c, c
			}
			return builders.Claim("ns", "c", exact, builders.FirstAvailable("f", sub, builders.Sub("t", "b", 1)))
		}
		small, large := request(less), request(more)
		a, errA := charger.Requested(&small.Spec, q)
		b, errB := charger.Requested(&large.Spec, q)
		notNegative(t, a.Amounts)
		notNegative(t, b.Amounts)
		if errA == nil && errB == nil && less > 0 {
			notLess(t, "a larger count costs less", a.Amounts, b.Amounts)
		}
		for _, c := range []*resourceapi.ResourceClaim{small, large} {
			counted, _ := charger.Claim(c, q, nil)
			notNegative(t, counted)
			worst := charger.StaticWorst(&c.Spec, q)
			notNegative(t, worst)
			charge, err := charger.Requested(&c.Spec, q)
			if err == nil {
				notLess(t, "the recount counts less than admission", charge.Amounts, counted)
			}
			builders.Allocate(c, "r d0 p dev-0", "f/s d1 p dev-1", "f/gone d0 p dev-2", "x d9 p y")
			counted, _ = charger.Claim(c, q, nil)
			notNegative(t, counted)
			allocated, _ := charger.Allocated(c, q)
			notNegative(t, allocated.Amounts)
		}
	})
}

func notNegative(t *testing.T, a corev1.ResourceList) {
	t.Helper()
	for k, v := range a {
		if v.Sign() < 0 {
			t.Fatalf("%s=%s", k, v.String())
		}
	}
}

func notLess(t *testing.T, what string, less, more corev1.ResourceList) {
	t.Helper()
	if d := quota.Excess(less, more); len(d) > 0 {
		t.Fatalf("%s: by %s", what, quota.Format(d))
	}
}
