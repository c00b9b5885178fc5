package allocator

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

func TestAllocateBasics(t *testing.T) {
	two := []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 2))}
	numa := []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{
		dev("g-0", attr("kind", "gpu"), attr("numa", 0)), dev("g-1", attr("kind", "gpu"), attr("numa", 1)),
		dev("n-1", attr("kind", "nic"), attr("numa", 1)),
	})}
	gpu, nic := selecting(`device.attributes["`+driverA+`"].kind == "gpu"`), selecting(`device.attributes["`+driverA+`"].kind == "nic"`)
	mig := []*resourceapi.ResourceSlice{
		sliceOf("counters", nil, inPool(driverA, "pool", 1, 2), counterSets(counterSetOf("gpu", "memory=40Gi"))),
		sliceOf("devices", []resourceapi.Device{
			dev("small-0", consumes("gpu", "memory=10Gi"), attr("size", 1)), dev("small-1", consumes("gpu", "memory=10Gi"), attr("size", 1)),
			dev("big", consumes("gpu", "memory=40Gi"), attr("size", 4)),
		}, inPool(driverA, "pool", 1, 2)),
	}
	big := selecting(`device.attributes["` + driverA + `"].size == 4`)
	for name, tc := range map[string]struct {
		scenario
		want string
	}{
		"no claims":                          {want: ""},
		"a claim without requests fits":      {scenario{claims: []*resourceapi.ResourceClaim{claim("c")}}, ""},
		"the first device":                   {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=d-0"},
		"count takes different devices":      {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 2))}}, "r=d-0 r=d-1"},
		"two claims":                         {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1)), claim("e", req("q", 1))}}, "r=d-0; q=d-1"},
		"more than there are":                {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 3))}}, "unfit"},
		"what is in use is not taken":        {scenario{slices: two, held: []*resourceapi.ResourceClaim{holding("h", "pool/d-0")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=d-1"},
		"all takes all":                      {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all))}}, "r=d-0 r=d-1"},
		"all fails if one is in use":         {scenario{slices: two, held: []*resourceapi.ResourceClaim{holding("h", "pool/d-1")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all))}}, "unfit"},
		"all with adminAccess":               {scenario{slices: two, held: []*resourceapi.ResourceClaim{holding("h", "pool/d-1")}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all, admin))}}, "r=d-0 r=d-1"},
		"all needs at least one":             {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 0, all, selecting("false")))}}, "unfit"},
		"backtracks for matchAttribute":      {scenario{slices: numa, claims: []*resourceapi.ResourceClaim{matching(claim("c", req("g", 1, gpu), req("n", 1, nic)), driverA+"/numa")}}, "g=g-1 n=n-1"},
		"matchAttribute of one request":      {scenario{slices: numa, claims: []*resourceapi.ResourceClaim{matching(claim("c", req("g", 1, gpu), req("n", 1, nic)), driverA+"/numa", "g")}}, "g=g-0 n=n-1"},
		"distinctAttribute":                  {scenario{slices: numa, claims: []*resourceapi.ResourceClaim{distinct(claim("c", req("r", 2)), driverA+"/kind")}}, "r=g-0 r=n-1"},
		"the first alternative that fits":    {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", first("r", req("a", 3), req("b", 2), req("c", 1)))}}, "r/b=d-0 r/b=d-1"},
		"counters bound the partitions":      {scenario{slices: mig, claims: []*resourceapi.ResourceClaim{claim("c", req("s", 1), req("b", 1, big))}}, "unfit"},
		"counters of what is in use":         {scenario{slices: mig, held: []*resourceapi.ResourceClaim{holding("h", "pool/small-0")}, claims: []*resourceapi.ResourceClaim{claim("c", req("b", 1, big))}}, "unfit"},
		"a late request for the first":       {scenario{slices: numa, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1)), claim("e", req("q", 1, selecting(`device.attributes["`+driverA+`"].numa == 0`)))}}, "r=g-1; q=g-0"},
		"an incomplete pool is not used":     {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 1), inPool(driverA, "pool", 1, 2))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "unfit"},
		"an older generation is not used":    {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 1)), sliceOf("t", devs("e", 1), inPool(driverA, "pool", 2, 1))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=e-0"},
		"pools in order of driver and name":  {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("a", devs("d", 1), inPool(driverA, "z", 1, 1)), sliceOf("b", devs("e", 1), inPool(driverA, "a", 1, 1))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=e-0"},
		"slices in order of name":            {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("b", devs("d", 1), inPool(driverA, "p", 1, 2)), sliceOf("a", devs("e", 1), inPool(driverA, "p", 1, 2))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=e-0"},
		"devices of another node":            {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 1), onNode(node2))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "unfit"},
		"devices for all nodes":              {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 1), onAllNodes)}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=d-0"},
		"a taint":                            {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{dev("d", tainted("k", resourceapi.DeviceTaintEffectNoSchedule)), dev("e", tainted("k", resourceapi.DeviceTaintEffectNone))})}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}, "r=e"},
		"33 devices are too many":            {scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 40))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 33))}}, "unfit"},
		"a count of 2^63-1":                  {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1<<63-1), req("q", 1<<63-1))}}, "unfit"},
		"a class that does not exist":        {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, ofClass("none")))}}, "unfit"},
		"neither exactly nor firstAvailable": {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", resourceapi.DeviceRequest{Name: "r"})}}, `error: claim "ns/c", request "r": neither exactly nor firstAvailable is set`},
		"a negative count":                   {scenario{slices: two, claims: []*resourceapi.ResourceClaim{claim("c", req("r", -1))}}, `error: claim "ns/c", request "r": count -1 is below 1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.got(t); got != tc.want {
				t.Errorf("want %q, got %q", tc.want, got)
			}
		})
	}
}

func TestSelectorErrorIsFatalOnlyIfReached(t *testing.T) {
	t.Parallel()
	broken := selecting(`device.attributes["` + driverA + `"].x == 1`)
	list := []resourceapi.Device{dev("without"), dev("with", attr("x", 1))}
	s := scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", list)}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1, broken))}}
	if got := s.got(t); !strings.Contains(got, "no such key: x") {
		t.Errorf("want an error about the missing key, got %q", got)
	}
	s.held = []*resourceapi.ResourceClaim{holding("h", "pool/without")}
	if got, want := s.got(t), "r=with"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	s.held = nil
	s.slices[0] = sliceOf("s", []resourceapi.Device{list[1], list[0]})
	if got, want := s.got(t), "r=with"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	s.claims[0] = claim("c", req("r", 1, broken, all))
	if got := s.got(t); !strings.Contains(got, "no such key: x") {
		t.Errorf("want an error about the missing key, got %q", got)
	}
}

func TestNoDeviceIsLookedAtForMoreThan32Devices(t *testing.T) {
	t.Parallel()
	broken := selecting(`device.attributes["` + driverA + `"].x == 1`)
	s := scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 4))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 3, broken), req("q", 30))}}
	if got := s.got(t); got != "unfit" {
		t.Errorf("want unfit, got %q", got)
	}
}

func TestDuplicateDevicesMakeAPoolInvalid(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"d", ""} {
		s := scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{dev(name), dev(name)})}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 1))}}
		if got := s.got(t); got != "unfit" {
			t.Errorf("name %q: want unfit, got %q", name, got)
		}
	}
}

// Two requests derive the attribute of a constraint in different ways, so that there are more
// values than kinds of devices.
func TestDistinctDerivedAttributesInTheDeepSearch(t *testing.T) {
	t.Parallel()
	f := AllFeatures()
	s := scenario{features: &f, slices: []*resourceapi.ResourceSlice{sliceOf("s", []resourceapi.Device{dev("d-0", attr("numa", 0)), dev("d-1", attr("numa", 1))})}}
	derive := func(expression string) reqOpt {
		return func(r *resourceapi.DeviceRequest) {
			r.Exactly.DerivedAttributes = []resourceapi.DeviceDerivedAttribute{{Name: "x.example.com/n", Expression: expression}}
		}
	}
	numa := `device.attributes["` + driverA + `"].numa`
	s.claims = []*resourceapi.ResourceClaim{distinct(claim("c", req("r", 1, derive(numa)), req("q", 1, derive(numa+" + 7")), req("p", 1, derive(numa+" + 9"), admin)), "x.example.com/n")}
	a := s.allocator(t)
	a.plainSteps = -1
	r, err := a.Allocate(t.Context(), s.node, s.claims)
	if err != nil || r.Unfit == nil {
		t.Errorf("want unfit (adminAccess in the same claim), got %v, %v", r.Allocations, err)
	}
	s.claims = []*resourceapi.ResourceClaim{distinct(claim("c", req("r", 1, derive(numa)), req("q", 1, derive(numa+" + 7"))), "x.example.com/n")}
	r, err = a.Allocate(t.Context(), s.node, s.claims)
	if err != nil || r.Unfit != nil || short(r.Allocations) != "r=d-0 q=d-1" {
		t.Errorf("want a device each, got %v, %v", r.Unfit, err)
	}
}
