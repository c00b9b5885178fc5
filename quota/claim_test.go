package quota_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// portable asks for four small or one large GPU, and got the large one.
func portable() *resourceapi.ResourceClaim {
	return builders.Allocate(builders.Claim("a", "c", builders.FirstAvailable("gpu",
		builders.Sub("big", "gpu.nvidia.com", 1, "productName=A100-80"), builders.Sub("small", "gpu.nvidia.com", 4, "productName=A100-40"))),
		"gpu/big gpu.nvidia.com n2 gpu-0")
}

var (
	portableRequested = builders.List(gpuDevices, "4", gpuMemory, "160Gi")
	portableAllocated = builders.List(gpuDevices, "1", gpuMemory, "80Gi")
)

func TestTrueDown(t *testing.T) {
	t.Parallel()
	pod, other := builders.Pod("a", "p"), builders.Pod("a", "q")
	namesake := pod.DeepCopy()
	namesake.UID = "another"
	owned := func() *resourceapi.ResourceClaim { return builders.ReservedFor(builders.OwnedBy(portable(), pod), pod) }
	change := func(c *resourceapi.ResourceClaim, f func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
		f(c)
		return c
	}
	unallocated := func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil }
	for name, test := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  map[quota.TrueDown]corev1.ResourceList
	}{
		"of its pod":                          {owned(), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableAllocated, quota.TrueDownAlways: portableAllocated, quota.TrueDownNever: portableRequested}},
		"standalone":                          {portable(), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested, quota.TrueDownAlways: portableAllocated, quota.TrueDownNever: portableRequested}},
		"deallocated":                         {change(owned(), unallocated), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested, quota.TrueDownAlways: portableRequested, quota.TrueDownNever: portableRequested}},
		"not reserved":                        {builders.OwnedBy(portable(), pod), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"reserved for another pod":            {builders.ReservedFor(builders.OwnedBy(portable(), pod), other), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"reserved for a pod of the same name": {builders.ReservedFor(builders.OwnedBy(portable(), pod), namesake), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"reserved for another pod, too":       {builders.ReservedFor(owned(), other), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"owner is not the controller":         {change(owned(), func(c *resourceapi.ResourceClaim) { c.OwnerReferences[0].Controller = nil }), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"owner is no pod":                     {change(owned(), func(c *resourceapi.ResourceClaim) { c.OwnerReferences[0].Kind = "Job" }), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"owner is a pod of another API":       {change(owned(), func(c *resourceapi.ResourceClaim) { c.OwnerReferences[0].APIVersion = "example.com/v1" }), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
		"reserved by something else":          {change(owned(), func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor[0].Resource = "podgroups" }), map[quota.TrueDown]corev1.ResourceList{quota.TrueDownOwned: portableRequested}},
	} {
		for mode, want := range test.want {
			q := parse(t, unlimited(gpuDevices, gpuMemory), quota.TrueDownAnnotation, string(mode))
			got, computed := quota.NewCharger(fleet()).Claim(test.claim, q, nil)
			same(t, name+", "+string(mode), want, got)
			if !computed {
				t.Errorf("%s, %s: not computed", name, mode)
			}
		}
	}
}

func TestAllocatedMoreThanRequestedIsChargedAsAllocated(t *testing.T) {
	t.Parallel()
	// The larger devices were published after the claim was allocated on them, and are gone from the selectors.
	claim := builders.Allocate(builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 1, "productName=A100-40")), "r gpu.nvidia.com n2 gpu-0")
	for _, mode := range []string{"Owned", "Always", "Never"} {
		q := parse(t, unlimited(gpuMemory), quota.TrueDownAnnotation, mode)
		got, _ := quota.NewCharger(fleet()).Claim(claim, q, nil)
		same(t, mode, builders.List(gpuMemory, "80Gi"), got)
	}
}

func TestWhatCannotBeComputedCountsAsRememberedElseAtWorst(t *testing.T) {
	t.Parallel()
	intel := own("gpu.intel.com", "capacity.memory")
	gone := builders.Allocate(builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 2, "productName=A100-40")), "r gpu.nvidia.com n3 gpu-0", "r gpu.nvidia.com lost gpu-9")
	noClass := builders.Allocate(builders.Claim("a", "c", builders.Exactly("r", "deleted", 2)), "r gpu.nvidia.com n3 gpu-0", "r gpu.nvidia.com n3 gpu-1")
	future := builders.Claim("a", "c", resourceapi.DeviceRequest{Name: "r"})
	broken := builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 2, "broken"))
	deletedMemory := own("deleted", "capacity.memory")
	ext := "requests.example.com/deleted"
	for name, test := range map[string]struct {
		claim      *resourceapi.ResourceClaim
		keys       []string
		remembered corev1.ResourceList
		want       corev1.ResourceList
		computed   string // the modes in which it is
	}{
		"device gone, remembered": {gone, []string{gpuDevices, gpuMemory}, builders.List(gpuDevices, "9", gpuMemory, "177Gi"), builders.List(gpuDevices, "2", gpuMemory, "177Gi"), ""},
		"device gone":             {gone, []string{gpuDevices, gpuMemory}, nil, builders.List(gpuDevices, "2", gpuMemory, "160Gi"), ""},
		"class deleted: devices still count by its name":   {noClass, []string{own("deleted", "devices")}, nil, builders.List(own("deleted", "devices"), "2"), "Always Never"},
		"class deleted: the devices tell the memory":       {noClass, []string{deletedMemory}, nil, builders.List(deletedMemory, "80Gi"), "Always"},
		"class deleted: its extended resource, remembered": {noClass, []string{ext}, builders.List(ext, "2"), builders.List(ext, "2"), ""},
		"class deleted: its extended resource":             {noClass, []string{ext}, nil, builders.List(), ""},
		"a future request type, remembered":                {future, []string{gpuDevices}, builders.List(gpuDevices, "3"), builders.List(gpuDevices, "3"), ""},
		"a future request type is at worst 32 of any class": {future, []string{gpuDevices, gpuMemory, own("absent", "devices"), "requests.nvidia.com/gpu", "count/resourceclaims.resource.k8s.io"}, nil,
			builders.List(gpuDevices, "32", gpuMemory, "2560Gi", own("absent", "devices"), "32", "requests.nvidia.com/gpu", "32", "count/resourceclaims.resource.k8s.io", "1"), ""},
		"a selector that does not compile": {broken, []string{gpuDevices, gpuMemory}, nil, builders.List(gpuDevices, "2", gpuMemory, "160Gi"), ""},
		"silent devices, remembered":       {builders.Claim("a", "c", builders.Exactly("r", "gpu.intel.com", 1)), []string{intel}, builders.List(intel, "24480Mi"), builders.List(intel, "24480Mi"), ""},
		"silent devices":                   {builders.Claim("a", "c", builders.Exactly("r", "gpu.intel.com", 1)), []string{intel}, nil, builders.List(), ""},
		"a key that was not remembered":    {gone, []string{gpuDevices, gpuMemory}, builders.List(gpuDevices, "9"), builders.List(gpuDevices, "2", gpuMemory, "160Gi"), ""},
	} {
		for _, mode := range []string{"Always", "Never"} {
			q := parse(t, unlimited(test.keys...), quota.TrueDownAnnotation, mode)
			got, computed := quota.NewCharger(fleet()).Claim(test.claim, q, test.remembered)
			same(t, name+", "+mode, test.want, got)
			if computed != strings.Contains(test.computed, mode) {
				t.Errorf("%s, %s: computed is %v", name, mode, computed)
			}
		}
	}
}

func TestStaticWorstCoversAll(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(own("tpu.google.com", "devices"), gpuDevices, gpuMemory, "sel.selector.devicequota.io/devices"), "selector.devicequota.io/sel", "driver=tpu.google.com")
	negative := builders.Exactly("n", "gpu.nvidia.com", -4)
	got := quota.NewCharger(fleet()).StaticWorst(&builders.Claim("a", "c", builders.All("r", "tpu.google.com"),
		builders.FirstAvailable("f", builders.Sub("x", "gpu.nvidia.com", 3, "productName=A100-40"), builders.Sub("y", "tpu.google.com", 5)), negative).Spec, q)
	same(t, "worst", builders.List(own("tpu.google.com", "devices"), "37", gpuDevices, "35", gpuMemory, "2800Gi", "sel.selector.devicequota.io/devices", "37"), got)
}

func TestSharedDevicesAndSharedClaims(t *testing.T) {
	t.Parallel()
	dev := shareable(builders.Device("x", "mem", "40"))
	dev.ConsumesCounters = []resourceapi.DeviceCounterConsumption{builders.Consumes("s", "units", "7")}
	v := newInventory(builders.Class("c", "driver=d"), builders.Slice("d", "n", dev))
	mem, units := own("c", "capacity.mem"), own("c", "counter.units")
	q := parse(t, unlimited(mem, units), quota.TrueDownAnnotation, "Always")
	charger := quota.NewCharger(v)
	for i, amount := range []string{"10", "25"} {
		c := share(builders.Allocate(builders.Claim("a", "c"+amount, withCapacity(builders.Exactly("r", "c", 1), "mem", amount)), "r d n x"), 0, "mem", amount)
		for range 3 { // reserved for many pods: paid once
			builders.ReservedFor(c, builders.Pod("a", "p"))
		}
		got, _ := charger.Claim(c, q, nil)
		same(t, "share", builders.List(mem, amount, units, "7"), got)
		_ = i
	}
	// A share whose status does not tell the capacity costs what the request would.
	c := share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("r", "c", 1), "mem", "3")), "r d n x"), 0)
	got, _ := charger.Allocated(c, q)
	same(t, "silent share", builders.List(mem, "3", units, "7"), got.Amounts)
}

func TestConsumedCapacityCountsWhateverIsPublishedNow(t *testing.T) {
	t.Parallel()
	dev := ranged(shareable(builders.Device("x", "mem", "40")), "mem", "1", "0", "40", "8") // the step was 1 when it was allocated
	mem, dev0 := own("c", "capacity.mem"), own("c", "devices")
	q := parse(t, unlimited(mem, dev0))
	c := share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("r", "c", 1), "mem", "3")), "r d n x"), 0, "mem", "3")
	for name, v := range map[string]*inventory{
		"another policy": newInventory(builders.Class("c", "driver=d"), builders.Slice("d", "n", dev)),
		"device gone":    newInventory(builders.Class("c", "driver=d")),
	} {
		got, ok := quota.NewCharger(v).Allocated(c, q)
		same(t, name, builders.List(mem, "3", dev0, "1"), got.Amounts)
		if !ok {
			t.Errorf("%s: not computable: %v", name, got.Unknown)
		}
	}
}

func TestAllocatedNeedsAnAllocation(t *testing.T) {
	t.Parallel()
	got, ok := quota.NewCharger(fleet()).Allocated(builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 1)), parse(t, unlimited(gpuDevices)))
	if ok || len(got.Amounts) > 0 {
		t.Errorf("charge %v", got)
	}
}

func TestAllocatedUsesDeclaredFootprintsOfSilentDevices(t *testing.T) {
	t.Parallel()
	class := builders.Class("c", "driver=d")
	class.Annotations = map[string]string{quota.FootprintAnnotation: `{"capacity.mem":"80Gi"}`}
	v := newInventory(class, builders.Slice("d", "n", builders.Device("x", "mem", "0"), builders.Device("y", "mem", "1Gi")))
	mem := own("c", "capacity.mem")
	claim := builders.Allocate(builders.Claim("a", "c", builders.Exactly("r", "c", 2)), "r d n x", "r d n y")
	got, ok := quota.NewCharger(v).Allocated(claim, parse(t, unlimited(mem)))
	same(t, "allocated", builders.List(mem, "81Gi"), got.Amounts)
	if !ok {
		t.Error("not computable")
	}
}

// Bypasses: what is tried, and what is charged.

func TestBypassTemplateRecreatedWithALargerCount(t *testing.T) {
	t.Parallel()
	// The pod was admitted while its template said 1; the claim that is made from the new one is charged itself.
	template := builders.Template("a", "t", builders.Exactly("r", "gpu.nvidia.com", 8))
	got, err := quota.NewCharger(fleet()).Requested(&template.Spec.Spec, parse(t, unlimited(gpuDevices)))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "claim", builders.List(gpuDevices, "8"), got.Amounts)
}

func TestBypassForgedExtendedResourceClaims(t *testing.T) {
	t.Parallel()
	pod := builders.Pod("a", "p", builders.Container("c", "nvidia.com/gpu", "4"))
	forged := builders.OwnedBy(builders.Claim("a", "forged", builders.Exactly("r", "gpu.nvidia.com", 4)), pod)
	forged.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	named := pod.DeepCopy()
	named.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "forged"}
	other := named.DeepCopy()
	other.Status.ExtendedResourceClaimStatus.ResourceClaimName = "real"
	elsewhere := named.DeepCopy()
	elsewhere.Namespace = "b"
	recreated := named.DeepCopy()
	recreated.UID = "other"
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"annotation and owner reference only": {pod, false}, // also a pod on a node with a device plugin
		"the status names another claim":      {other, false},
		"a pod of another project":            {elsewhere, false},
		"another pod of that name":            {recreated, false},
		"the status names it":                 {named, true},
	} {
		if got := quota.Recognised(forged, test.pod); got != test.want {
			t.Errorf("%s: recognised is %v", name, got)
		}
	}
	// What is not recognised costs its full price beside the pod.
	q := parse(t, unlimited(gpuDevices))
	got, _ := quota.NewCharger(fleet()).Claim(forged, q, nil)
	same(t, "forged", builders.List(gpuDevices, "4"), got)
	ref, ok := quota.ExtendedResourceOwner(forged)
	if !ok || ref.UID != pod.UID || ref.Name != pod.Name || ref.Namespace != "a" {
		t.Errorf("owner %v, %v", ref, ok)
	}
	unowned := forged.DeepCopy()
	unowned.OwnerReferences = nil
	if quota.Recognised(unowned, named) {
		t.Error("a claim without the owner reference is recognised")
	}
	if _, ok := quota.ExtendedResourceOwner(unowned); ok {
		t.Error("a claim without the owner reference says who owns it")
	}
}

func TestBypassStandaloneClaimAllocatedSmallThenLarge(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices, gpuMemory))
	charger := quota.NewCharger(fleet())
	pod := builders.Pod("a", "p")
	for name, claim := range map[string]*resourceapi.ResourceClaim{
		"standalone":                          builders.ReservedFor(portable(), pod),
		"given a pod's owner reference":       builders.OwnedBy(portable(), pod),
		"owned by one pod, used by another":   builders.ReservedFor(builders.OwnedBy(portable(), pod), builders.Pod("a", "q")),
		"owner reference names another's UID": builders.ReservedFor(builders.OwnedBy(portable(), &corev1.Pod{ObjectMeta: builders.Pod("a", "p2").ObjectMeta}), pod),
	} {
		got, _ := charger.Claim(claim, q, nil)
		same(t, name, portableRequested, got)
	}
}

func TestBypassUnknownFutureRequestTypes(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices))
	charger := quota.NewCharger(fleet())
	claim := builders.Claim("a", "c", resourceapi.DeviceRequest{Name: "from the future"})
	if _, err := charger.Requested(&claim.Spec, q); err == nil {
		t.Error("admitted")
	}
	got, _ := charger.Claim(claim, q, nil)
	same(t, "found stored", builders.List(gpuDevices, "32"), got)
}

func TestBypassLabelsAndAnnotationsOfTenants(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices))
	claim := builders.Claim("a", "c", builders.Exactly("r", "gpu.nvidia.com", 2))
	claim.UID = types.UID("x")
	for _, k := range []string{quota.FootprintAnnotation, quota.TrueDownAnnotation, quota.EnforcementAnnotation, quota.UnknownFootprintAnnotation,
		resourceapi.ExtendedResourceClaimAnnotation, resourceapi.PodResourceClaimAnnotation, "devicequota.io/ignore"} {
		for _, value := range []string{"true", "Always", "Allow", `{"devices":"0"}`} {
			claim.Annotations, claim.Labels = map[string]string{k: value}, map[string]string{k: value}
			got, _ := quota.NewCharger(fleet()).Claim(claim, q, nil)
			same(t, k, builders.List(gpuDevices, "2"), got)
		}
	}
}
