package allocator

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
)

func TestUnfitText(t *testing.T) {
	mem := func(v string) func(*resourceapi.Device) { return capacityOf("memory", v) }
	gpus := []resourceapi.Device{
		dev("g-0", mem("40Gi"), attr("kind", "gpu"), attr("numa", 0)), dev("g-1", mem("80Gi"), attr("kind", "gpu"), attr("numa", 0)),
		dev("g-2", mem("40Gi"), attr("kind", "gpu"), attr("numa", 1), tainted("broken", resourceapi.DeviceTaintEffectNoExecute)),
		dev("n-0", attr("kind", "nic"), attr("numa", 1)),
	}
	slices := []*resourceapi.ResourceSlice{sliceOf("s", gpus), sliceOf("t", devs("x", 2), inPool(driverB, "pool", 1, 1))}
	kind := func(k string) string { return `device.attributes["` + driverA + `"].kind == "` + k + `"` }
	big := kind("gpu") + ` && device.capacity["` + driverA + `"].memory.compareTo(quantity("80Gi")) >= 0`
	held := []*resourceapi.ResourceClaim{holding("h", "pool/g-1")}
	for name, tc := range map[string]struct {
		scenario
		want      string
		permanent bool
	}{
		"in use": {
			scenario{slices: slices, held: held, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2, selecting(kind("gpu"))))}},
			`the claims do not fit on node "node-1": claim "ns/c": request "r": CLASS: wants 2 devices; 1 of 6 devices usable: 2 not of the class (device.driver == "driver-a.example.com"); 1 do not match selector (GPU); 1 tainted (broken=:NoExecute); 1 in use (1 allocation)
claim "ns/c", request "r": CLASS: wants 2 devices; 1 of 6 devices usable: 2 not of the class (device.driver == "driver-a.example.com"); 1 do not match selector (GPU); 1 tainted (broken=:NoExecute); 1 in use (1 allocation)`, false,
		},
		"the closest miss of a selector": {
			scenario{slices: slices, held: held, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, selecting(big)))}},
			`needs driver-a.example.com/memory >= 80Gi; the largest free device has 40Gi`, false,
		},
		"the closest miss of an attribute": {
			scenario{slices: slices, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, selecting(kind("tpu"))))}},
			`needs driver-a.example.com/kind == "tpu"; free devices have "gpu", "nic"; no matter what is in use`, true,
		},
		"the closest miss of a capacity": {
			scenario{slices: slices, held: held, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, wanting("memory", "60Gi")))}},
			`needs memory >= 60Gi; the largest free device has 40Gi`, false,
		},
		"an unknown class": {
			scenario{slices: slices, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, ofClass("none")))}},
			`device class "none" does not exist`, true,
		},
		"a constraint": {
			scenario{slices: slices, claims: []*resourceapi.ResourceClaim{matching(claim("c", req("g", 1, selecting(kind("gpu"))), req("n", 1, selecting(kind("nic")))), driverA+"/numa")}},
			`1 usable, but not together: matchAttribute driver-a.example.com/numa: g has 2 × 0, n has 1 × 1`, true,
		},
		"other requests": {
			scenario{slices: slices, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2, selecting(kind("gpu")))), claim("e", req("q", 1, selecting(kind("gpu"))))}},
			`claim "ns/e", request "q": CLASS: wants 1 device; 2 of 6 devices usable`, true,
		},
		"a pool": {
			scenario{slices: append([]*resourceapi.ResourceSlice{sliceOf("u", devs("y", 1), inPool(driverA, "new", 3, 2))}, slices...), claims: []*resourceapi.ResourceClaim{claim("c", req("r", 5))}},
			`pool "new" of driver "driver-a.example.com" is incomplete: 1 of 2 slices are published`, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := tc.allocate(t)
			if err != nil || r.Unfit == nil {
				t.Fatalf("want unfit, got %v, %v", r.Unfit, err)
			}
			want := strings.NewReplacer("CLASS", `class "class-a"`, "GPU", kind("gpu")).Replace(tc.want)
			if got := r.Unfit.String(); !strings.Contains(got, want) {
				t.Errorf("want it to contain\n%s\ngot\n%s", want, got)
			}
			if r.Unfit.Permanent != tc.permanent {
				t.Errorf("want permanent %v, got %v\n%s", tc.permanent, r.Unfit.Permanent, r.Unfit)
			}
			again, _ := tc.allocate(t)
			if diff := cmp.Diff(r.Unfit, again.Unfit); diff != "" {
				t.Errorf("the explanation differs from run to run:\n%s", diff)
			}
		})
	}
}

func TestUnfitCounters(t *testing.T) {
	t.Parallel()
	s := scenario{
		slices: []*resourceapi.ResourceSlice{
			sliceOf("counters", nil, inPool(driverA, "pool", 1, 2), counterSets(counterSetOf("gpu-0", "memory=40Gi"))),
			sliceOf("devices", []resourceapi.Device{dev("small", consumes("gpu-0", "memory=10Gi"), attr("size", 1)), dev("big", consumes("gpu-0", "memory=40Gi"), attr("size", 4))}, inPool(driverA, "pool", 1, 2)),
		},
		held:   []*resourceapi.ResourceClaim{holding("h", "pool/small")},
		claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))},
	}
	r, err := s.allocate(t)
	if err != nil || r.Unfit == nil {
		t.Fatalf("want unfit, got %v, %v", r.Unfit, err)
	}
	want := []Obstacle{{Reason: ReasonInUse, Devices: 1, Claims: 1}, {Reason: ReasonCounter, Detail: "gpu-0/memory", Devices: 1}}
	if diff := cmp.Diff(want, r.Unfit.Claims[0].Requests[0].Obstacles); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Unfit.Permanent || r.Unfit.Claims[0].Requests[0].Permanent {
		t.Errorf("want it not to be permanent: %s", r.Unfit)
	}
}

func TestExplainIsAboutAllNodesWithNothingInUse(t *testing.T) {
	t.Parallel()
	s := scenario{slices: []*resourceapi.ResourceSlice{
		sliceOf("s", devs("d", 2), inPool(driverA, "p1", 1, 1)),
		sliceOf("t", devs("e", 2), inPool(driverA, "p2", 1, 1), onNode("unknown")),
	}, held: []*resourceapi.ResourceClaim{holding("h", "p1/d-0", "p1/d-1", "p2/e-0", "p2/e-1")}}
	a := s.allocator(t)
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string // "" for nil
	}{
		"what is in use does not matter": {claim("c", req("r", 2)), ""},
		"no node has three":              {claim("c", req("r", 3)), "4 not for this node together with the others"},
		"no device matches":              {claim("c", req("r", 1, selecting("false"))), "4 do not match selector (false); no matter what is in use"},
		"all of a node":                  {claim("c", req("r", 0, all)), ""},
		"all of nothing":                 {claim("c", req("r", 0, all, selecting("false"))), "wants all matching devices (there are none)"},
		"a class that does not exist":    {claim("c", req("r", 1, ofClass("none"))), `device class "none" does not exist`},
		"an alternative that could fit":  {claim("c", first("r", req("a", 9), req("b", 1))), ""},
		"far too many":                   {claim("c", req("r", 1<<62)), "wants 4611686018427387904 devices"},
	} {
		u, err := a.Explain(t.Context(), []*resourceapi.ResourceClaim{tc.claim})
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case (u == nil) != (tc.want == ""):
			t.Errorf("%s: got %v", name, u)
		case u != nil && (!u.Permanent || !strings.Contains(u.String(), tc.want)):
			t.Errorf("%s: permanent %v, want it to contain %q:\n%s", name, u.Permanent, tc.want, u)
		}
	}
}

func TestExplainKnowsNothingOfIncompletePools(t *testing.T) {
	t.Parallel()
	s := scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 2), inPool(driverA, "p1", 1, 2))}}
	a := s.allocator(t)
	if u, err := a.Explain(t.Context(), []*resourceapi.ResourceClaim{claim("c", req("r", 1))}); u != nil || err != nil {
		t.Errorf("want nothing, got %v, %v", u, err)
	}
}
