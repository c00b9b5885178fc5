package allocator

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Cases in which upstream 1.37 errs, finds nothing or hands out a device wrongly. The names are
// those of the probes; test/differential runs upstream on the like.
func TestWhatUpstreamGetsWrong(t *testing.T) {
	numaA, numaB := attr("numa", 0), attr("numa", 1)
	gpu, nic := attr("kind", "gpu"), attr("kind", "nic")
	isGPU := selecting(`device.attributes["` + driverA + `"].kind == "gpu"`)
	isNIC := selecting(`device.attributes["` + driverA + `"].kind == "nic"`)
	one := []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 1))}
	mixed := []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{
		dev("g-0", gpu, numaA), dev("g-1", gpu, numaB), dev("n-0", nic, numaB),
	})}
	twoNICs := []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{
		dev("g-0", gpu, numaA), dev("n-0", nic, numaA), dev("n-1", nic, numaB),
	})}
	counted := func(total string, list ...resourceapi.Device) []*resourceapi.ResourceSlice {
		return []*resourceapi.ResourceSlice{
			sliceOf("counters", nil, inPool(driverA, "pool", 1, 2), counterSets(counterSetOf("x", "n="+total), counterSetOf("y", "n=1"))),
			sliceOf("devices", list, inPool(driverA, "pool", 1, 2)),
		}
	}
	for name, tc := range map[string]struct {
		scenario
		want, upstream string
	}{
		"P1: All with matchAttribute after a count": {
			scenario{slices: mixed, claims: []*resourceapi.ResourceClaim{matching(claim("c", req("g", 1, isGPU), req("n", 0, isNIC, all)), driverA+"/numa")}},
			"g=g-1 n=n-0", "error at the first GPU",
		},
		"P2: a constraint on All in the first alternative": {
			scenario{slices: twoNICs, claims: []*resourceapi.ResourceClaim{matching(claim("c", req("g", 1, isGPU), first("n", req("all", 0, isNIC, all), req("one", 1, isNIC))), driverA+"/numa")}},
			"g=g-0 n/one=n-0", "error, the second alternative is not tried",
		},
		"P3: adminAccess of another claim comes first": {
			scenario{slices: one, claims: []*resourceapi.ResourceClaim{claim("a", req("r", 1, admin)), claim("c", req("r", 1))}},
			"r=d-0; r=d-0", "does not fit",
		},
		"P3: adminAccess in the same claim is in the way": {
			scenario{slices: one, claims: []*resourceapi.ResourceClaim{claim("a", req("r", 1, admin), req("q", 1))}},
			"unfit", "does not fit",
		},
		"P4: adminAccess needs no counters": {
			scenario{slices: counted("1", dev("d-0", consumes("x", "n=1")), dev("d-1", consumes("x", "n=1"))),
				held: []*resourceapi.ResourceClaim{holding("h", "pool/d-1")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, admin))}},
			"r=d-0", "does not fit",
		},
		"P4: adminAccess takes no counters": {
			scenario{slices: counted("1", dev("d-0", consumes("x", "n=1")), dev("d-1", consumes("x", "n=1"))),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, admin)), claim("e", req("r", 1))}},
			"r=d-0; r=d-0", "does not fit",
		},
		"P4: adminAccess needs no free capacity": {
			scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{dev("d-0", multi, capacityOf("mem", "4"))})},
				held: []*resourceapi.ResourceClaim{holding("h", "pool/d-0#mem=4")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, admin))}},
			"r=d-0", "does not fit",
		},
		"P5: another counter set is over-consumed": {
			scenario{slices: counted("1", dev("d-0", consumes("x", "n=2")), dev("d-1", consumes("y", "n=1"))),
				held: []*resourceapi.ResourceClaim{holding("h", "pool/d-0")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}},
			"r=d-1", "does not fit",
		},
		"P8: All beside an incomplete pool of another driver": {
			scenario{slices: append([]*resourceapi.ResourceSlice{sliceOf("b", devs("e", 1), inPool(driverB, "pool", 1, 2))}, one...),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all))}},
			"r=d-0", "error",
		},
		"P8b: All beside an invalid pool of another driver": {
			scenario{slices: append([]*resourceapi.ResourceSlice{sliceOf("b", []resourceapi.Device{dev("e"), dev("e")}, inPool(driverB, "pool", 1, 1))}, one...),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all))}},
			"r=d-0", "error",
		},
		"P8: All beside an incomplete pool of the same driver": {
			scenario{slices: append([]*resourceapi.ResourceSlice{sliceOf("b", devs("e", 1), inPool(driverA, "other", 1, 2))}, one...),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all))}},
			"unfit", "error",
		},
		"P9: a missing class in an alternative that is not needed": {
			scenario{slices: one, claims: []*resourceapi.ResourceClaim{claim("c", first("r", req("a", 1), req("b", 1, ofClass("none"))))}},
			"r/a=d-0", "error",
		},
		"P10: a complete older generation of this node counts": {
			scenario{slices: append([]*resourceapi.ResourceSlice{sliceOf("t", devs("e", 1), inPool(driverA, "pool", 2, 1), onNode(node2))}, one...),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}},
			"r=d-0", "the same",
		},
		"P12: an invalid pool beside one that suffices not": {
			scenario{slices: append([]*resourceapi.ResourceSlice{sliceOf("b", []resourceapi.Device{dev("e"), dev("e")}, inPool(driverA, "other", 1, 1))}, one...),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2))}},
			"unfit", "error that is not fatal",
		},
		"P13: a live share on a device that is exclusive now": {
			scenario{slices: one, held: []*resourceapi.ResourceClaim{holding("h", "pool/d-0#")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}},
			"unfit", "r=d-0",
		},
		"141216: negative consumption brings no counters": {
			scenario{slices: counted("1", dev("d-0", consumes("x", "n=-5")), dev("d-1", consumes("x", "n=2"))),
				claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2))}},
			"unfit", "r=d-0 r=d-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.got(t); got != tc.want {
				t.Errorf("want %q, got %q (upstream: %s)", tc.want, got, tc.upstream)
			}
		})
	}
}

// P6: a count is of different devices, also if they allow several allocations; P6b: two
// requests may share one device.
func TestSharesOfOneDeviceComeFromDifferentRequests(t *testing.T) {
	t.Parallel()
	shared := []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{dev("d", multi, capacityOf("mem", "4"))})}
	s := scenario{slices: shared, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2, wanting("mem", "1")))}}
	if got := s.got(t); got != "unfit" {
		t.Errorf("count 2: want unfit, got %q", got)
	}
	s.claims = []*resourceapi.ResourceClaim{claim("c", req("r", 1, wanting("mem", "1")), req("q", 1, wanting("mem", "3")))}
	if got, want := s.got(t), "r=d q=d"; got != want {
		t.Errorf("two requests: want %q, got %q", want, got)
	}
	s.claims[0] = claim("c", req("r", 1, wanting("mem", "2")), req("q", 1, wanting("mem", "3")))
	if got := s.got(t); got != "unfit" {
		t.Errorf("more than there is: want unfit, got %q", got)
	}
}

// P11: upstream fails on devices whose node selector has two terms.
func TestNodeSelectorOfSeveralTerms(t *testing.T) {
	t.Parallel()
	several := dev("d")
	several.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{labelTerm("zone", "a"), labelTerm("zone", "b")}}
	single := dev("e")
	single.NodeSelector = onLabel("rack", "1")
	s := scenario{
		node:   node(node1, "zone=b", "rack=1"),
		slices: []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{several, single}, perDevice)},
		claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2))},
	}
	r, err := s.allocate(t)
	if err != nil || r.Unfit != nil {
		t.Fatalf("want a result, got %v, %v", r.Unfit, err)
	}
	both := func(zone string) corev1.NodeSelectorTerm {
		term := labelTerm("zone", zone)
		term.MatchExpressions = append(term.MatchExpressions, labelTerm("rack", "1").MatchExpressions...)
		return term
	}
	want := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{both("a"), both("b")}}
	if diff := cmp.Diff(want, r.Allocations[0].NodeSelector); diff != "" {
		t.Errorf("node selector (-want +got):\n%s", diff)
	}
}

// TestProbeCounterCache: upstream keeps the available counters by pool, so with two
// generations it goes by those of the node that was asked first.
func TestCountersAreThoseOfTheGenerationThatTheNodeSees(t *testing.T) {
	t.Parallel()
	generation := func(g int64, node, total string) []*resourceapi.ResourceSlice {
		prefix := node + "-"
		return []*resourceapi.ResourceSlice{
			sliceOf(prefix+"counters", nil, inPool(driverA, "pool", g, 2), counterSets(counterSetOf("x", "n="+total)), onNode(node)),
			sliceOf(prefix+"devices", devs(prefix+"d", 2, consumes("x", "n=1")), inPool(driverA, "pool", g, 2), onNode(node)),
		}
	}
	s := scenario{slices: append(generation(1, node1, "2"), generation(2, node2, "1")...), claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2))}}
	a := s.allocator(t)
	for name, fits := range map[string]bool{node1: true, node2: false} {
		r, err := a.Allocate(t.Context(), node(name), s.claims)
		if err != nil || (r.Unfit == nil) != fits {
			t.Errorf("%s: want fits %v, got %v, %v", name, fits, r.Unfit, err)
		}
	}
}

// P7 is TestSelectorErrorIsFatalOnlyIfReached. P15: more than 32 devices are a value here.
func TestMoreThan32DevicesDoNotFit(t *testing.T) {
	t.Parallel()
	many := []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 40))}
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"count": claim("c", req("r", 33)),
		"sum":   claim("c", req("r", 20), req("q", 13)),
		"all":   claim("c", req("r", 0, all)),
	} {
		s := scenario{slices: many, claims: []*resourceapi.ResourceClaim{c}}
		r, err := s.allocate(t)
		if err != nil || r.Unfit == nil || !r.Unfit.Permanent {
			t.Errorf("%s: want permanently unfit, got %+v, %v", name, r.Unfit, err)
		}
	}
	s := scenario{slices: many, claims: []*resourceapi.ResourceClaim{claim("c", first("r", req("a", 33), req("b", 32))), claim("e", req("r", 8))}}
	r, err := s.allocate(t)
	if err != nil || r.Unfit != nil || len(r.Allocations[0].Devices.Results) != 32 || len(r.Allocations[1].Devices.Results) != 8 {
		t.Errorf("want 32 and 8 devices, got %+v, %v", r.Unfit, err)
	}
	if !strings.HasPrefix(r.Allocations[0].Devices.Results[0].Request, "r/b") {
		t.Errorf("want the second alternative, got %q", r.Allocations[0].Devices.Results[0].Request)
	}
}
