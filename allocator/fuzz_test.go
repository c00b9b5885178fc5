package allocator

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// FuzzAllocate changes random scenarios in ways that no API server lets pass. Allocate must not
// panic, must leave its inputs alone, and what it allocates must be consistent.
func FuzzAllocate(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, seed*7+1)
	}
	f.Fuzz(func(t *testing.T, seed, damage uint64) {
		s := randomScenario(rand.New(rand.NewPCG(seed, 1)))
		s.o.MaxSteps, s.node = 20_000, node(node1)
		spoil(s, rand.New(rand.NewPCG(damage, 2)))
		before := dump(t, s)
		for _, plain := range []int64{256, -1} {
			a := s.allocator(t)
			a.plainSteps = plain
			r, err := a.Allocate(t.Context(), s.node, s.claims)
			if err == nil && r.Unfit == nil {
				consistent(t, s, r)
			}
			if u, err := a.Explain(t.Context(), s.claims); err == nil && u != nil && len(u.String()) == 0 {
				t.Error("an explanation without text")
			}
			if errors.Is(err, ErrSteps) && r.Unfit != nil {
				t.Error("out of steps, but unfit")
			}
		}
		if !bytes.Equal(before, dump(t, s)) {
			t.Error("inputs were modified")
		}
	})
}

func dump(t *testing.T, s *scenario) []byte {
	data, err := json.Marshal([]any{s.slices, s.held, s.claims, s.node})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// consistent checks what holds for each allocation: no exclusive device twice, at most 32
// results, a result for each request.
func consistent(t *testing.T, s *scenario, r Result) {
	taken := map[string]bool{}
	for i, c := range s.claims {
		results := r.Allocations[i].Devices.Results
		if len(results) > resourceapi.AllocationResultsMaxSize || len(results) < len(c.Spec.Devices.Requests) {
			t.Errorf("claim %d: %d results", i, len(results))
		}
		for _, d := range results {
			key := d.Driver + "/" + d.Pool + "/" + d.Device
			if d.AdminAccess == nil && d.ShareID == nil {
				if taken[key] {
					t.Errorf("device %s was allocated twice", key)
				}
				taken[key] = true
			}
		}
	}
}

// spoil changes the scenario.
func spoil(s *scenario, r *rand.Rand) {
	numbers := []int64{-1 << 63, -1, 0, 1, 33, 1<<31 - 1, 1<<63 - 1}
	quantities := []string{"-1", "0", "1n", "9223372036854775807", "-9223372036854775808", "1e30", "0.5"}
	odd := func() *resource.Quantity {
		q := resource.MustParse(quantities[r.IntN(len(quantities))])
		return &q
	}
	for range r.IntN(4) {
		c := s.claims[r.IntN(len(s.claims))]
		q := &c.Spec.Devices.Requests[r.IntN(len(c.Spec.Devices.Requests))]
		switch r.IntN(7) {
		case 0:
			q.Exactly, q.FirstAvailable = nil, nil
		case 1:
			if q.Exactly != nil {
				q.Exactly.Count = numbers[r.IntN(len(numbers))]
			}
		case 2:
			if q.Exactly != nil {
				q.Exactly.AllocationMode = "Some"
			}
		case 3:
			if q.Exactly != nil {
				q.Exactly.Selectors = selectors("true", "1 +", "device.attributes", "dyn(1)")[r.IntN(4):]
			}
		case 4:
			if q.Exactly != nil {
				q.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"mem": *odd()}}
			}
		case 5:
			c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{Requests: []string{"none"}})
		case 6:
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, *q.DeepCopy())
		}
	}
	for range r.IntN(4) {
		sl := s.slices[r.IntN(len(s.slices))]
		if len(sl.Spec.Devices) == 0 {
			sl.Spec.SharedCounters = append(sl.Spec.SharedCounters, counterSetOf("set9"))
			continue
		}
		spoilDevice(&sl.Spec.Devices[r.IntN(len(sl.Spec.Devices))], r, odd)
		if r.IntN(4) == 0 {
			sl.Spec.Pool.ResourceSliceCount = numbers[r.IntN(len(numbers))]
		}
	}
}

func spoilDevice(d *resourceapi.Device, r *rand.Rand, odd func() *resource.Quantity) {
	switch r.IntN(6) {
	case 0:
		d.Name = ""
	case 1:
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"numa": {}, "/": {}, "a/b/c": {}}
	case 2:
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"mem": {Value: *odd(), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: odd(), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: odd(), Max: odd(), Step: odd()},
		}}}
	case 3:
		for i := range d.ConsumesCounters {
			d.ConsumesCounters[i].Counters = map[string]resourceapi.Counter{"a": {Value: *odd()}}
		}
	case 4:
		if len(d.ConsumesCounters) > 0 {
			d.ConsumesCounters = append(d.ConsumesCounters, d.ConsumesCounters[0])
		}
	case 5:
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"mem": {Value: *odd(), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Step: odd()}, ValidValues: []resource.Quantity{*odd()},
		}}}
	}
}
