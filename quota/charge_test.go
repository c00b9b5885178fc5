package quota_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

func requested(t testing.TB, v quota.Inventory, q *quota.Quota, requests ...resourceapi.DeviceRequest) quota.Charge {
	t.Helper()
	charge, err := quota.NewCharger(v).Requested(&builders.Claim("a", "c", requests...).Spec, q)
	if err != nil {
		t.Fatal(err)
	}
	return charge
}

func unknowns(c quota.Charge) []string {
	var out []string
	for _, u := range c.Unknown {
		out = append(out, string(u.Key))
	}
	return out
}

func TestRulesSayHowAmountsCameAbout(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuMemory, gpuDevices, own("tpu.google.com", "devices"), "count/resourceclaims.resource.k8s.io"))
	got := requested(t, fleet(), q,
		builders.Exactly("one", "gpu.nvidia.com", 1), builders.All("tpu", "tpu.google.com"), builders.All("none", "unused"),
		builders.FirstAvailable("any", builders.Sub("big", "gpu.nvidia.com", 1, "productName=A100-80"), builders.Sub("small", "gpu.nvidia.com", 4, "productName=A100-40"), builders.Sub("tpu", "tpu.google.com", 1)),
		builders.All("gpus", "gpu.nvidia.com"))
	want := []quota.Rule{
		{Key: "count/resourceclaims.resource.k8s.io", Text: "1 claim"},
		{Key: gpuMemory, Request: "one", Text: "1 device x 80Gi"},
		{Key: gpuDevices, Request: "one", Text: "1 device"},
		{Key: corev1.ResourceName(own("tpu.google.com", "devices")), Request: "tpu", Text: "All: largest node t1 has 4"},
		{Key: gpuMemory, Request: "any", Text: "largest of alternatives big, small: 4 devices x 40Gi"},
		{Key: gpuDevices, Request: "any", Text: "largest of alternatives big, small: 4 devices"},
		{Key: corev1.ResourceName(own("tpu.google.com", "devices")), Request: "any", Text: "largest of alternatives tpu: 1 device"},
		{Key: gpuMemory, Request: "gpus", Text: "All: largest node n2 has 80Gi"},
		{Key: gpuDevices, Request: "gpus", Text: "All: largest node n3 has 2"},
	}
	if diff := cmp.Diff(want, got.Rules); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAllIsTheLargestTotalOverSingleNodes(t *testing.T) {
	t.Parallel()
	class := builders.Class("c", "true")
	everyNode := builders.Slice("d", "", builders.Device("net0", "mem", "5"), builders.Device("net1", "mem", "5"))
	everyNode.Spec.NodeName = nil
	keys := unlimited(own("c", "devices"), own("c", "capacity.mem"), "big.selector.devicequota.io/devices")
	big := builders.Device("big", "mem", "100")
	typed(big, "size", "big")
	for name, test := range map[string]struct {
		objects []any
		want    corev1.ResourceList
		unknown int
	}{
		"no candidate: 32 devices":           {nil, builders.List(own("c", "devices"), "32"), 2},
		"devices for every node":             {[]any{everyNode}, builders.List(own("c", "devices"), "2", own("c", "capacity.mem"), "10"), 0},
		"node devices beside those of every": {[]any{everyNode, builders.Slice("d", "n1", builders.Device("x", "mem", "7"))}, builders.List(own("c", "devices"), "3", own("c", "capacity.mem"), "17"), 0},
		"per key another node": {[]any{builders.Slice("d", "n1", big), builders.Slice("d", "n2", builders.Device("x", "mem", "7"), builders.Device("y", "mem", "7"))},
			builders.List(own("c", "devices"), "2", own("c", "capacity.mem"), "100", "big.selector.devicequota.io/devices", "1"), 0},
	} {
		v := newInventory(append([]any{class}, test.objects...)...)
		q := parse(t, keys, "selector.devicequota.io/big", "size=big")
		got := requested(t, v, q, builders.All("r", "c"))
		same(t, name, test.want, got.Amounts)
		if len(got.Unknown) != test.unknown {
			t.Errorf("%s: unknown %v", name, got.Unknown)
		}
	}
	unreachable := newInventory(class, builders.Slice("d", "n1", builders.Device("x", "mem", "7")))
	unreachable.devices[0].nodes = []string{}
	got := requested(t, unreachable, parse(t, unlimited(own("c", "devices"))), builders.All("r", "c"))
	same(t, "devices that no node reaches are no candidates", builders.List(own("c", "devices"), "32"), got.Amounts)
}

func TestUnknownFootprints(t *testing.T) {
	t.Parallel()
	mem, units, dev := own("c", "capacity.mem"), own("c", "counter.units"), own("c", "devices")
	selDev, selMem := "sel.selector.devicequota.io/devices", "sel.selector.devicequota.io/capacity.mem"
	keys := unlimited(mem, units, dev, selDev, selMem)
	declared := builders.Class("c", "driver=d")
	declared.Annotations = map[string]string{quota.FootprintAnnotation: `{"capacity.mem":"80Gi","counter.units":"3"}`}
	malformed := builders.Class("c", "driver=d")
	malformed.Annotations = map[string]string{quota.FootprintAnnotation: `{"capacity.mem":"-1"}`}
	plain := builders.Class("c", "driver=d")
	slice := func(devices ...resourceapi.Device) *resourceapi.ResourceSlice {
		return builders.Slice("d", "n1", devices...)
	}
	partition := builders.Device("p", "mem", "5")
	partition.ConsumesCounters = []resourceapi.DeviceCounterConsumption{builders.Consumes("s", "other", "1")}
	for name, test := range map[string]struct {
		objects []any
		want    corev1.ResourceList
		unknown []string
	}{
		"no class":                      {nil, builders.List(dev, "2"), []string{mem, units, selMem, selDev}},
		"no device":                     {[]any{plain}, builders.List(dev, "2"), []string{mem, units, selMem, selDev}},
		"no device, declared":           {[]any{declared}, builders.List(dev, "2", mem, "160Gi", units, "6", selDev, "2", selMem, "160Gi"), nil},
		"no device, malformed":          {[]any{malformed}, builders.List(dev, "2"), []string{mem, units, selMem, selDev}},
		"published 0":                   {[]any{plain, slice(builders.Device("x", "mem", "0"))}, builders.List(dev, "2", selDev, "2"), []string{mem, units, selMem}},
		"published 0, declared":         {[]any{declared, slice(builders.Device("x", "mem", "0"))}, builders.List(dev, "2", mem, "160Gi", units, "6", selDev, "2", selMem, "160Gi"), nil},
		"published wins over declared":  {[]any{declared, slice(builders.Device("x", "mem", "1Gi"))}, builders.List(dev, "2", mem, "2Gi", units, "6", selDev, "2", selMem, "2Gi"), nil},
		"one tells, one is silent":      {[]any{plain, slice(builders.Device("x", "mem", "0"), builders.Device("y", "mem", "4"))}, builders.List(dev, "2", mem, "8", selDev, "2", selMem, "8"), []string{units}},
		"negative is silent":            {[]any{plain, slice(builders.Device("x", "mem", "-4"))}, builders.List(dev, "2", selDev, "2"), []string{mem, units, selMem}},
		"a counter that is not named":   {[]any{plain, slice(partition)}, builders.List(dev, "2", mem, "10", selDev, "2", selMem, "10"), nil},
		"the selector matches no other": {[]any{plain, builders.Slice("d", "n2", typed(builders.Device("x", "mem", "1"), "out", "yes"))}, builders.List(dev, "2", mem, "2"), []string{units}},
	} {
		selector := "driver=d"
		if name == "the selector matches no other" {
			selector = "out=no"
		}
		q := parse(t, keys, "selector.devicequota.io/sel", selector)
		got := requested(t, newInventory(test.objects...), q, builders.Exactly("r", "c", 2))
		same(t, name, test.want, got.Amounts)
		if diff := cmp.Diff(test.unknown, unknowns(got)); diff != "" {
			t.Errorf("%s: unknown (-want +got):\n%s", name, diff)
		}
		if _, missing := quota.NewCharger(newInventory(test.objects...)).Inventory().(*inventory).classes["c"]; !missing && len(got.UnknownClasses) != 1 {
			t.Errorf("%s: unknown classes: %v", name, got.UnknownClasses)
		}
	}
}

func TestDeclaredFootprintsAreChecked(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"capacity.memory":"80Gi"}`: true, `{"counter.memory-slice-0":"1","capacity.example.com_x":"2"}`: true, `{}`: true,
		`{"capacity.memory":"0"}`: false, `{"memory":"1"}`: false, `{"devices":"1"}`: false, `{"capacity.memory":"x"}`: false, `[]`: false, ``: false,
	} {
		class := builders.Class("c")
		class.Annotations = map[string]string{quota.FootprintAnnotation: text}
		if _, err := quota.DeclaredFootprint(class); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	if f, err := quota.DeclaredFootprint(builders.Class("c")); f != nil || err != nil {
		t.Errorf("no annotation: %v, %v", f, err)
	}
}

func TestRequestedCapacityBeyondEveryCandidateIsChargedAsRequested(t *testing.T) {
	t.Parallel()
	mem := own("c", "capacity.mem")
	class := builders.Class("c", "driver=d")
	for name, v := range map[string]*inventory{
		"smaller exclusive device": newInventory(class, builders.Slice("d", "n", builders.Device("x", "mem", "10Gi"))),
		"smaller shared device":    newInventory(class, builders.Slice("d", "n", shareable(builders.Device("x", "mem", "10Gi")))),
		"no device":                newInventory(class),
	} {
		for _, written := range []string{"mem", "d/mem"} {
			got := requested(t, v, parse(t, unlimited(mem)), withCapacity(builders.Exactly("r", "c", 3), written, "20Gi"))
			same(t, name+", "+written, builders.List(mem, "60Gi"), got.Amounts)
			if unknown := len(got.Unknown) > 0; unknown != (name == "no device") {
				t.Errorf("%s: unknown %v", name, got.Unknown)
			}
		}
	}
}

func TestFirstAvailableIsTheLargestKnownAlternativePerKey(t *testing.T) {
	t.Parallel()
	dev, mem := own("c", "devices"), own("c", "capacity.mem")
	other := own("other", "capacity.mem")
	c, o := builders.Class("c", "driver=d"), builders.Class("other", "driver=o")
	full := newInventory(c, o, builders.Slice("d", "n", builders.Device("x", "mem", "10"), typed(builders.Device("y", "mem", "0"), "warm", "no")), builders.Slice("o", "n", builders.Device("z")))
	for name, test := range map[string]struct {
		v       *inventory
		subs    []resourceapi.DeviceSubRequest
		want    corev1.ResourceList
		unknown []string
	}{
		"larger count of one, larger footprint of the other": {full,
			[]resourceapi.DeviceSubRequest{builders.Sub("a", "c", 1), builders.Sub("b", "other", 5)}, builders.List(dev, "1", mem, "10"), []string{other}},
		"a class that this cluster lacks does not count": {full,
			[]resourceapi.DeviceSubRequest{builders.Sub("a", "c", 1), builders.Sub("b", "absent", 5)}, builders.List(dev, "1", mem, "10"), nil},
		"a class without devices does not count beside another": {newInventory(c, o, builders.Slice("o", "n", builders.Device("z", "mem", "3"))),
			[]resourceapi.DeviceSubRequest{builders.Sub("a", "c", 1), builders.Sub("b", "other", 2)}, builders.List(dev, "1", other, "6"), nil},
		"unknown when none is known": {newInventory(c),
			[]resourceapi.DeviceSubRequest{builders.Sub("a", "c", 1), builders.Sub("b", "c", 3)}, builders.List(dev, "3"), []string{mem}},
		"devices that keep silent are not hidden by a cheap alternative": {full,
			[]resourceapi.DeviceSubRequest{builders.Sub("a", "c", 4, "warm=no"), builders.Sub("b", "absent", 1)}, builders.List(dev, "4"), []string{mem}},
		"silent beside known of the same key": {full,
			[]resourceapi.DeviceSubRequest{builders.Sub("a", "c", 4, "warm=no"), builders.Sub("b", "c", 1)}, builders.List(dev, "4", mem, "10"), nil},
	} {
		got := requested(t, test.v, parse(t, unlimited(dev, mem, other)), builders.FirstAvailable("r", test.subs...))
		same(t, name, test.want, got.Amounts)
		if diff := cmp.Diff(test.unknown, unknowns(got)); diff != "" {
			t.Errorf("%s: unknown (-want +got):\n%s", name, diff)
		}
	}
}

func TestSelectorsOverTheirBudgetAreChargedByTheClassAlone(t *testing.T) {
	t.Parallel()
	dev, mem := own("c", "devices"), own("c", "capacity.mem")
	q := parse(t, unlimited(dev, mem))
	v := newInventory(builders.Class("c", "driver=d"), builders.Class("x", "expensive"),
		builders.Slice("d", "n", builders.Device("a", "mem", "10"), builders.Device("b", "mem", "30")))
	got := requested(t, v, q, builders.Exactly("r", "c", 2, "expensive"))
	same(t, "count", builders.List(dev, "2", mem, "60"), got.Amounts)
	if len(got.Unknown) > 0 || !strings.Contains(fmt.Sprint(got.Rules), "cost too much") {
		t.Errorf("unknown %v, rules %v", got.Unknown, got.Rules)
	}
	got = requested(t, v, q, builders.All("r", "c", "expensive"))
	same(t, "all", builders.List(dev, "2", mem, "40"), got.Amounts)

	q = parse(t, unlimited(own("x", "devices"), own("x", "capacity.mem")))
	got = requested(t, v, q, builders.Exactly("r", "x", 2))
	same(t, "the class itself", builders.List(own("x", "devices"), "2"), got.Amounts)
	if diff := cmp.Diff([]string{own("x", "capacity.mem")}, unknowns(got)); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	got = requested(t, v, q, builders.All("r", "x"))
	same(t, "all of the class itself", builders.List(own("x", "devices"), "32"), got.Amounts)
}

func TestAdminAccessCostsNothingButTheObject(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices, gpuMemory, "count/resourceclaims.resource.k8s.io"))
	yes := true
	r := builders.Exactly("r", "gpu.nvidia.com", 4)
	r.Exactly.AdminAccess = &yes
	got := requested(t, fleet(), q, r)
	same(t, "requested", builders.List("count/resourceclaims.resource.k8s.io", "1"), got.Amounts)
	claim := builders.Allocate(builders.Claim("a", "c", r), "r gpu.nvidia.com n2 gpu-0")
	claim.Status.Allocation.Devices.Results[0].AdminAccess = &yes
	allocated, ok := quota.NewCharger(fleet()).Allocated(claim, q)
	same(t, "allocated", builders.List("count/resourceclaims.resource.k8s.io", "1"), allocated.Amounts)
	if !ok {
		t.Error("not computable")
	}
}

func TestExtendedResourcesAreOneBucketInThreeSpellings(t *testing.T) {
	t.Parallel()
	ext := "nvidia.com/gpu"
	keys := []string{"requests.nvidia.com/gpu", "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com", "gpu.nvidia.com.deviceclass.resource.k8s.io/devices", gpuDevices}
	q := parse(t, unlimited(keys...))
	want := builders.List(keys[0], "3", keys[1], "3", keys[2], "3", keys[3], "3")
	same(t, "claim", want, requested(t, fleet(), q, builders.Exactly("r", "gpu.nvidia.com", 3)).Amounts)
	charger := quota.NewCharger(fleet())
	for _, name := range []string{ext, "deviceclass.resource.kubernetes.io/gpu.nvidia.com"} {
		got, err := charger.Pod(builders.Pod("a", "p", builders.Container("c", name, "3")), q)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "pod with "+name, want, got.Amounts)
	}
	same(t, "claim of another class", builders.List(), requested(t, fleet(), q, builders.Exactly("r", "mig.nvidia.com", 3)).Amounts)
}

func TestTwoClassesWithOneExtendedResourceNameShareItsKey(t *testing.T) {
	t.Parallel()
	ext := "example.com/gpu"
	class := func(name string, age time.Duration) *resourceapi.DeviceClass {
		c := builders.Class(name, "driver="+name)
		c.Spec.ExtendedResourceName = &ext
		c.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0).Add(-age))
		return c
	}
	q := parse(t, unlimited("requests.example.com/gpu", own("old", "devices"), own("new", "devices"), own("anew", "devices")))
	pod := builders.Pod("a", "p", builders.Container("c", ext, "2"))
	for name, test := range map[string]struct {
		v    *inventory
		want corev1.ResourceList
	}{
		"the newest serves pods":      {newInventory(class("old", time.Hour), class("new", 0)), builders.List("requests.example.com/gpu", "2", own("new", "devices"), "2")},
		"of equal ones the lower":     {newInventory(class("new", 0), class("anew", 0)), builders.List("requests.example.com/gpu", "2", own("anew", "devices"), "2")},
		"no class: a device plugin's": {newInventory(), builders.List()},
	} {
		got, err := quota.NewCharger(test.v).Pod(pod, q)
		if err != nil {
			t.Fatal(err)
		}
		same(t, name, test.want, got.Amounts)
	}
	v := newInventory(class("old", time.Hour), class("new", 0))
	for _, c := range []string{"old", "new"} {
		same(t, "claims through "+c, builders.List("requests.example.com/gpu", "3", own(c, "devices"), "3"),
			requested(t, v, q, builders.Exactly("r", c, 3)).Amounts)
	}
}

func TestHugeCountsAreChargedExactly(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices, gpuMemory))
	got := requested(t, fleet(), q, builders.Exactly("a", "gpu.nvidia.com", math.MaxInt64), builders.Exactly("b", "gpu.nvidia.com", math.MaxInt64))
	dev, mem := got.Amounts[gpuDevices], got.Amounts[gpuMemory]
	if dev.String() != "18446744073709551614" {
		t.Errorf("devices: %s", dev.String())
	}
	if dec := mem.AsDec(); dec.String() != "1584563250285286751699080314880" {
		t.Errorf("memory: %s", dec)
	}
}

func TestAbsurdPublishedValuesNeverLowerASum(t *testing.T) {
	t.Parallel()
	dev := builders.Device("x", "mem", "-9E", "cores", "9E")
	dev.ConsumesCounters = []resourceapi.DeviceCounterConsumption{builders.Consumes("a", "units", "-9E", "slots", "9E"), builders.Consumes("b", "units", "3", "slots", "9E")}
	v := newInventory(builders.Class("c", "driver=d"), builders.Slice("d", "n", dev, builders.Device("y", "mem", "1m")))
	q := parse(t, unlimited(own("c", "capacity.mem"), own("c", "capacity.cores"), own("c", "counter.units"), own("c", "counter.slots")))
	got := requested(t, v, q, builders.Exactly("r", "c", 4))
	want := builders.List(own("c", "capacity.mem"), "4m", own("c", "counter.units"), "12")
	for k, n := range map[string]int{own("c", "capacity.cores"): 4, own("c", "counter.slots"): 8} {
		for range n {
			want = quota.Add(want, builders.List(k, "9E"))
		}
	}
	same(t, "requested", want, got.Amounts)
	claim := builders.Allocate(builders.Claim("a", "c", builders.Exactly("r", "c", 1)), "r d n x")
	allocated, _ := quota.NewCharger(v).Allocated(claim, q)
	same(t, "allocated", quota.Add(quota.Add(builders.List(own("c", "capacity.cores"), "9E", own("c", "counter.units"), "3"),
		builders.List(own("c", "counter.slots"), "9E")), builders.List(own("c", "counter.slots"), "9E")), allocated.Amounts)
}

func TestBadClaimsAreErrorsThatNameTheField(t *testing.T) {
	t.Parallel()
	change := func(r resourceapi.DeviceRequest, f func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
		f(r.Exactly)
		return r
	}
	good := builders.Exactly("g", "gpu.nvidia.com", 1)
	bad := builders.Sub("s", "gpu.nvidia.com", -1, "broken")
	bad.AllocationMode = "Some"
	yes := true
	for name, test := range map[string]struct {
		requests []resourceapi.DeviceRequest
		want     []string
	}{
		"neither exactly nor firstAvailable": {[]resourceapi.DeviceRequest{good, {Name: "r"}}, []string{"spec.devices.requests[1]"}},
		"both":                               {[]resourceapi.DeviceRequest{{Name: "r", Exactly: good.Exactly, FirstAvailable: []resourceapi.DeviceSubRequest{builders.Sub("s", "c", 1)}}}, []string{"spec.devices.requests[0]"}},
		"negative count":                     {[]resourceapi.DeviceRequest{builders.Exactly("r", "gpu.nvidia.com", -1)}, []string{"spec.devices.requests[0].exactly.count"}},
		"most negative count":                {[]resourceapi.DeviceRequest{builders.Exactly("r", "gpu.nvidia.com", math.MinInt64)}, []string{"spec.devices.requests[0].exactly.count"}},
		"unknown mode": {[]resourceapi.DeviceRequest{change(builders.Exactly("r", "gpu.nvidia.com", 1), func(e *resourceapi.ExactDeviceRequest) { e.AllocationMode = "Most" })},
			[]string{"spec.devices.requests[0].exactly.allocationMode"}},
		"no class": {[]resourceapi.DeviceRequest{builders.Exactly("r", "", 1)}, []string{"spec.devices.requests[0].exactly.deviceClassName"}},
		"selector does not compile": {[]resourceapi.DeviceRequest{good, builders.Exactly("r", "gpu.nvidia.com", 1, "true", "broken")},
			[]string{"spec.devices.requests[1].exactly.selectors[1].cel.expression"}},
		"selector does not compile, no such class": {[]resourceapi.DeviceRequest{builders.Exactly("r", "absent", 1, "broken")},
			[]string{"spec.devices.requests[0].exactly.selectors[0].cel.expression"}},
		"selector of a type not known": {[]resourceapi.DeviceRequest{change(builders.Exactly("r", "gpu.nvidia.com", 1), func(e *resourceapi.ExactDeviceRequest) { e.Selectors = make([]resourceapi.DeviceSelector, 1) })},
			[]string{"spec.devices.requests[0].exactly.selectors[0].cel"}},
		"negative capacity": {[]resourceapi.DeviceRequest{withCapacity(builders.Exactly("r", "gpu.nvidia.com", 1), "memory", "-1")},
			[]string{"spec.devices.requests[0].exactly.capacity.requests[memory]"}},
		"adminAccess hides nothing": {[]resourceapi.DeviceRequest{change(builders.Exactly("r", "gpu.nvidia.com", -1), func(e *resourceapi.ExactDeviceRequest) { e.AdminAccess = &yes })},
			[]string{"spec.devices.requests[0].exactly.count"}},
		"alternatives": {[]resourceapi.DeviceRequest{builders.FirstAvailable("r", builders.Sub("a", "gpu.nvidia.com", 1), bad)},
			[]string{"spec.devices.requests[0].firstAvailable[1].allocationMode", "spec.devices.requests[0].firstAvailable[1].count"}},
		"all of them": {[]resourceapi.DeviceRequest{{Name: "r"}, builders.Exactly("s", "", -1), builders.Exactly("t", "gpu.nvidia.com", 1, "broken")},
			[]string{"spec.devices.requests[0]", "spec.devices.requests[1].exactly.count", "spec.devices.requests[1].exactly.deviceClassName", "spec.devices.requests[2].exactly.selectors[0].cel.expression"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			charge, err := quota.NewCharger(fleet()).Requested(&builders.Claim("a", "c", test.requests...).Spec, parse(t, unlimited(gpuDevices)))
			var invalid *quota.InvalidClaimError
			if !errors.As(err, &invalid) {
				t.Fatalf("no error, charge %v", charge)
			}
			if diff := cmp.Diff(test.want, fields(invalid.List)); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
			if len(charge.Amounts) > 0 || !strings.Contains(err.Error(), test.want[0]) {
				t.Errorf("charge %v, error %v", charge, err)
			}
		})
	}
}

func TestModeAndCountHaveTheirDocumentedDefaults(t *testing.T) {
	t.Parallel()
	r := builders.Exactly("r", "gpu.nvidia.com", 0)
	r.Exactly.AllocationMode = ""
	same(t, "defaults", builders.List(gpuDevices, "1"), requested(t, fleet(), parse(t, unlimited(gpuDevices)), r).Amounts)
}

func TestClaimsWithoutRequestsCostTheObject(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices, "count/resourceclaims.resource.k8s.io"))
	same(t, "empty", builders.List("count/resourceclaims.resource.k8s.io", "1"), requested(t, fleet(), q).Amounts)
}

func TestAQuotaSelectorThatDoesNotCompileIsUnknown(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited("sel.selector.devicequota.io/devices"), "selector.devicequota.io/sel", "broken")
	got := requested(t, fleet(), q, builders.Exactly("r", "gpu.nvidia.com", 2))
	if len(got.Unknown) != 1 || !strings.Contains(got.Unknown[0].Why, "compile") {
		t.Errorf("unknown: %v", got.Unknown)
	}
}

func TestAnInventoryIsAskedOncePerShape(t *testing.T) {
	t.Parallel()
	v := fleet()
	charger := quota.NewCharger(v)
	q := parse(t, unlimited(gpuMemory, gpuDevices))
	spec := builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 2, "true")).Spec
	first, err := charger.Requested(&spec, q)
	if err != nil {
		t.Fatal(err)
	}
	asked := v.asked
	first.Amounts[gpuMemory] = builders.List("x", "1")["x"] // the caller's own
	for range 3 {
		again, err := charger.Requested(&spec, parse(t, unlimited(gpuMemory, gpuDevices)))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "again", builders.List(gpuMemory, "160Gi", gpuDevices, "2"), again.Amounts)
	}
	if v.asked != asked {
		t.Errorf("the inventory was asked %d times more", v.asked-asked)
	}
	if _, err := charger.Requested(&spec, parse(t, unlimited(gpuMemory))); err != nil {
		t.Fatal(err)
	}
	if v.asked > asked+1 { // whether the selectors compile
		t.Errorf("another quota asked %d times more", v.asked-asked)
	}
}

func TestConstraintsNeverLowerACharge(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices, gpuMemory))
	charger := quota.NewCharger(fleet())
	claim := builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 2))
	attribute := resourceapi.FullyQualifiedName("gpu.nvidia.com/productName")
	for _, c := range []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}, {Requests: []string{"r"}, DistinctAttribute: &attribute}, {}} {
		claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, c)
		got, err := charger.Requested(&claim.Spec, q)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "requested", builders.List(gpuDevices, "2", gpuMemory, "160Gi"), got.Amounts)
	}
}

func TestChangingASelectorsExpressionChangesTheCharge(t *testing.T) {
	t.Parallel()
	charger := quota.NewCharger(fleet())
	claim := builders.Allocate(builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 2, "productName=A100-40")), "r gpu.nvidia.com n3 gpu-0", "r gpu.nvidia.com n3 gpu-1")
	for expression, want := range map[string]string{"productName=A100-40": "2", "productName=A100-80": "0", "driver=gpu.nvidia.com": "2"} {
		q := parse(t, unlimited("sel.selector.devicequota.io/devices"), "selector.devicequota.io/sel", expression)
		got, err := charger.Requested(&claim.Spec, q)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "requested by "+expression, builders.List("sel.selector.devicequota.io/devices", want), got.Amounts)
		allocated, _ := charger.Allocated(claim, q)
		same(t, "allocated by "+expression, builders.List("sel.selector.devicequota.io/devices", want), allocated.Amounts)
	}
}

func TestOneChargerServesManyAtOnce(t *testing.T) {
	t.Parallel()
	charger := quota.NewCharger(fleet())
	q := parse(t, unlimited(gpuDevices, gpuMemory, "sel.selector.devicequota.io/devices"), "selector.devicequota.io/sel", "productName=A100-80")
	want := builders.List(gpuDevices, "9223372036854775807", "sel.selector.devicequota.io/devices", "9223372036854775807")
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				spec := builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", math.MaxInt64)).Spec
				got, err := charger.Requested(&spec, q)
				if err != nil {
					t.Error(err)
					return
				}
				delete(got.Amounts, gpuMemory)
				if !quota.Equal(want, got.Amounts) {
					t.Errorf("charge %s", quota.Format(got.Amounts))
				}
				quota.AddTo(got.Amounts, got.Amounts) // the caller's own
			}
		})
	}
	wait.Wait()
}
