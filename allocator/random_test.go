package allocator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// randomScenario makes a small cluster and claims that are hard for their size.
func randomScenario(r *rand.Rand) *scenario {
	f := AllFeatures()
	s := &scenario{features: &f, o: Options{MaxSteps: 3_000_000, NewShareID: func() types.UID { return "share" }}}
	pools := 1 + r.IntN(2)
	total := 0
	for p := range pools {
		name := fmt.Sprintf("p%d", p)
		sets := r.IntN(3)
		n := 2 + r.IntN(5)
		var list []resourceapi.Device
		for i := range n {
			list = append(list, randomDevice(r, fmt.Sprintf("%s-%d", name, i), sets))
		}
		total += n
		count := int64(1)
		if sets > 0 {
			count = 2
			var cs []resourceapi.CounterSet
			for i := range sets {
				cs = append(cs, counterSetOf(fmt.Sprintf("set%d", i), fmt.Sprintf("a=%d", 2+r.IntN(4)), fmt.Sprintf("b=%d", 1+r.IntN(4))))
			}
			s.slices = append(s.slices, sliceOf(name+"-counters", nil, inPool(driverA, name, 1, count), counterSets(cs...)))
		}
		s.slices = append(s.slices, sliceOf(name, list, inPool(driverA, name, 1, count)))
		for _, d := range list {
			switch r.IntN(8) {
			case 0:
				s.held = append(s.held, holding("h"+d.Name, name+"/"+d.Name))
			case 1:
				if ptr.Deref(d.AllowMultipleAllocations, false) {
					s.held = append(s.held, holding("h"+d.Name, name+"/"+d.Name+"#mem=1"))
				}
			}
		}
	}
	for i := range 1 + r.IntN(5)/2 {
		s.claims = append(s.claims, randomClaim(r, fmt.Sprintf("c%d", i)))
	}
	return s
}

func randomDevice(r *rand.Rand, name string, sets int) resourceapi.Device {
	var opts []func(*resourceapi.Device)
	if r.IntN(8) > 0 {
		opts = append(opts, attr("numa", r.IntN(2)))
	}
	if r.IntN(8) > 0 {
		opts = append(opts, attr("kind", []string{"x", "y"}[r.IntN(2)]))
	}
	if r.IntN(3) == 0 {
		lists := [][]string{{"u"}, {"v"}, {"u", "v"}, {"v", "w"}}
		opts = append(opts, attr("links", lists[r.IntN(len(lists))]))
	}
	if r.IntN(3) == 0 {
		opts = append(opts, multi, capacityOf("mem", fmt.Sprint(2+r.IntN(3))))
	}
	if r.IntN(12) == 0 {
		opts = append(opts, tainted("t", resourceapi.DeviceTaintEffectNoSchedule))
	}
	if sets > 0 && r.IntN(5) > 0 {
		for _, set := range r.Perm(sets)[:1+r.IntN(sets)] {
			opts = append(opts, consumes(fmt.Sprintf("set%d", set), fmt.Sprintf("a=%d", 1+r.IntN(2)), fmt.Sprintf("b=%d", r.IntN(2))))
			if r.IntN(3) == 0 {
				groups := [][]string{{"g1"}, {"g2"}, {"g1", "g2"}}[r.IntN(3)]
				opts = append(opts, func(d *resourceapi.Device) {
					d.ConsumesCounters[len(d.ConsumesCounters)-1].CompatibilityGroups = groups
				})
			}
		}
	}
	return dev(name, opts...)
}

func randomClaim(r *rand.Rand, name string) *resourceapi.ResourceClaim {
	c := claim(name)
	for i := range 1 + r.IntN(5)/2 {
		q := fmt.Sprintf("r%d", i)
		if r.IntN(4) == 0 {
			var subs []resourceapi.DeviceRequest
			for j := range 1 + r.IntN(3) {
				subs = append(subs, randomRequest(r, fmt.Sprintf("s%d", j), false))
			}
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, first(q, subs...))
			continue
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, randomRequest(r, q, true))
	}
	for range r.IntN(4) / 2 {
		var names []string
		if r.IntN(2) == 0 {
			names = []string{"r0"}
			if len(c.Spec.Devices.Requests) > 1 {
				names = append(names, "r1")
			}
		}
		attribute := driverA + "/" + []string{"numa", "kind", "links"}[r.IntN(3)]
		if r.IntN(2) == 0 {
			c = matching(c, attribute, names...)
		} else {
			c = distinct(c, attribute, names...)
		}
	}
	return c
}

func randomRequest(r *rand.Rand, name string, exact bool) resourceapi.DeviceRequest {
	var opts []reqOpt
	switch r.IntN(10) {
	case 0:
		opts = append(opts, all)
	case 1:
		opts = append(opts, ofClass("none"))
	}
	switch r.IntN(6) {
	case 0:
		opts = append(opts, selecting(`"kind" in device.attributes["`+driverA+`"] && device.attributes["`+driverA+`"].kind == "x"`))
	case 1:
		opts = append(opts, selecting(`device.attributes["`+driverA+`"].numa == 0`)) // an error on some
	case 2:
		opts = append(opts, wanting("mem", fmt.Sprint(1+r.IntN(2))))
	}
	if exact && r.IntN(8) == 0 {
		opts = append(opts, admin)
	}
	return req(name, 1+int64(r.IntN(4)/2), opts...)
}

// The deep search must find what the plain search finds, and find nothing where that does
// not. It may miss an error of a selector in a branch that it rules out.
func TestDeepSearchEqualsPlainSearch(t *testing.T) {
	t.Parallel()
	runs, fits, unfits, errs := 4000, 0, 0, 0
	if testing.Short() {
		runs = 500
	}
	for seed := range uint64(runs) {
		s := randomScenario(rand.New(rand.NewPCG(seed, 1)))
		a := s.allocator(t)
		a.plainSteps = 1 << 40
		want, wantErr := a.Allocate(t.Context(), s.node, s.claims)
		a.plainSteps = -1
		got, gotErr := a.Allocate(t.Context(), s.node, s.claims)
		if errors.Is(wantErr, ErrSteps) {
			continue
		}
		if errors.Is(gotErr, ErrSteps) {
			t.Fatalf("seed %d: deep search ran out of steps", seed)
		}
		switch {
		case wantErr != nil:
			errs++
			continue
		case gotErr != nil:
			t.Fatalf("seed %d: %v", seed, gotErr)
		case want.Unfit != nil:
			unfits++
		default:
			fits++
		}
		if diff := cmp.Diff(want.Allocations, got.Allocations); diff != "" {
			t.Fatalf("seed %d: (-plain +deep):\n%s\nplain %s (unfit %v)\ndeep %s (unfit %v)", seed, diff,
				short(want.Allocations), want.Unfit != nil, short(got.Allocations), got.Unfit != nil)
		}
	}
	t.Logf("%d fit, %d do not, %d errors", fits, unfits, errs)
	if fits < runs/10 || unfits < runs/10 {
		t.Errorf("the cases are lopsided: %d fit, %d do not, %d errors", fits, unfits, errs)
	}
}
