package differential

import (
	"math"
	"reflect"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// FuzzAllocate mutates random cases in ways that neither the API server nor the generator would
// let pass. Our allocator never panics, never modifies its inputs, and what it returns is valid.
func FuzzAllocate(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, int64(1), byte(0))
	}
	f.Add(uint64(1), int64(math.MaxInt64), byte(1))
	f.Add(uint64(2), int64(math.MinInt64), byte(1))
	f.Add(uint64(3), int64(0), byte(2))
	f.Add(uint64(4), int64(-1), byte(7))
	f.Fuzz(func(t *testing.T, seed uint64, number int64, how byte) {
		c := Generate(seed)
		distort(c, number, how)
		before := c.Clone()
		o, err := NewOurs(c, 200_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range c.Nodes {
			a := o.Allocate(node, c.Claims)
			if a.Verdict == Panics {
				t.Fatalf("node %s: %v", node.Name, a)
			}
			if a.Verdict == Fits {
				if v := Check(c, node, a.Results); v != nil {
					t.Fatalf("node %s: not valid: %q", node.Name, v)
				}
			}
		}
		if !reflect.DeepEqual(before, c) {
			t.Fatal("an input was modified")
		}
	})
}

// distort changes one thing everywhere.
func distort(c *Case, number int64, how byte) {
	for _, claim := range c.Claims {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			switch {
			case how&1 != 0 && r.Exactly != nil:
				r.Exactly.Count = number
			case how&1 != 0 && len(r.FirstAvailable) > 0:
				r.FirstAvailable[0].Count = number
			case how&2 != 0:
				r.Exactly, r.FirstAvailable = nil, nil
			case how&4 != 0 && r.Exactly != nil:
				r.FirstAvailable = []resourceapi.DeviceSubRequest{{Name: "also"}}
			case how&8 != 0 && r.Exactly != nil:
				r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{})
			}
		}
		if how&16 != 0 {
			claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, resourceapi.DeviceConstraint{})
		}
	}
	for _, s := range c.Slices {
		if how&32 != 0 {
			s.Spec.Pool.ResourceSliceCount = number
		}
		for i := range s.Spec.Devices {
			if how&64 != 0 {
				s.Spec.Devices[i].Attributes = nil
			}
			if how&128 != 0 {
				s.Spec.Devices[i].Name = ""
			}
		}
	}
}
