package quota_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// The shapes that drivers publish, as in their own code and documentation.

func typed(d resourceapi.Device, attributes ...string) resourceapi.Device {
	for i := 0; i < len(attributes); i += 2 {
		d.Attributes[resourceapi.QualifiedName(attributes[i])] = builders.Text(attributes[i+1])
	}
	return d
}

func shareable(d resourceapi.Device) resourceapi.Device {
	yes := true
	d.AllowMultipleAllocations = &yes
	return d
}

// ranged sets a capacity's request policy; empty texts are not set.
func ranged(d resourceapi.Device, name, def, low, high, step string) resourceapi.Device {
	p := &resourceapi.CapacityRequestPolicy{Default: pointer(def)}
	if low+high+step != "" {
		p.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: pointer(low), Max: pointer(high), Step: pointer(step)}
	}
	c := d.Capacity[resourceapi.QualifiedName(name)]
	c.RequestPolicy = p
	d.Capacity[resourceapi.QualifiedName(name)] = c
	return d
}

func pointer(s string) *resource.Quantity {
	if s == "" {
		return nil
	}
	q := resource.MustParse(s)
	return &q
}

// migNode is an A100-40GB whose partitions consume the counters of KEP-4815.
func migNode(node string) *resourceapi.ResourceSlice {
	var devices []resourceapi.Device
	add := func(name, profile, memory string, multiprocessors int, slices ...int) {
		counters := []string{"memory", memory, "multiprocessors", fmt.Sprint(multiprocessors)}
		for _, s := range slices {
			counters = append(counters, fmt.Sprintf("memory-slice-%d", s), "1")
		}
		d := typed(builders.Device(name, "memory", memory, "multiprocessors", fmt.Sprint(multiprocessors)),
			"type", "mig", "profile", profile, "productName", "NVIDIA A100-SXM4-40GB")
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{builders.Consumes("gpu-0-counter-set", counters...)}
		devices = append(devices, d)
	}
	for i := range 7 {
		add(fmt.Sprintf("gpu-0-mig-1g5gb-19-%d", i), "1g.5gb", "4864Mi", 14, i)
	}
	for _, i := range []int{0, 2, 4} {
		add(fmt.Sprintf("gpu-0-mig-2g10gb-14-%d", i), "2g.10gb", "9856Mi", 28, i, i+1)
	}
	add("gpu-0-mig-3g20gb-9-0", "3g.20gb", "19968Mi", 42, 0, 1, 2, 3)
	add("gpu-0-mig-3g20gb-9-4", "3g.20gb", "19968Mi", 42, 4, 5, 6, 7)
	whole := typed(builders.Device("gpu-0", "memory", "40192Mi"), "type", "gpu", "productName", "NVIDIA A100-SXM4-40GB")
	whole.ConsumesCounters = []resourceapi.DeviceCounterConsumption{builders.Consumes("gpu-0-counter-set", "memory", "40192Mi", "multiprocessors", "98",
		"memory-slice-0", "1", "memory-slice-1", "1", "memory-slice-2", "1", "memory-slice-3", "1",
		"memory-slice-4", "1", "memory-slice-5", "1", "memory-slice-6", "1", "memory-slice-7", "1")}
	return builders.Slice("gpu.nvidia.com", node, append(devices, whole)...)
}

func gpu(name, memory, product string) resourceapi.Device {
	return typed(builders.Device(name, "memory", memory), "type", "gpu", "productName", product)
}

func nvidiaClasses() []any {
	whole := builders.Class("gpu.nvidia.com", "driver=gpu.nvidia.com", "type=gpu")
	name := "nvidia.com/gpu"
	whole.Spec.ExtendedResourceName = &name
	return []any{whole, builders.Class("mig.nvidia.com", "driver=gpu.nvidia.com", "type=mig")}
}

// fleet is a cluster with all of them.
func fleet() *inventory {
	objects := nvidiaClasses()
	tpu := func(node string) *resourceapi.ResourceSlice {
		return builders.Slice("tpu.google.com", node, builders.Device("accel0"), builders.Device("accel1"), builders.Device("accel2"), builders.Device("accel3"))
	}
	nic := shareable(builders.Device("nic-0", "vfs", "100", "ingressBandwidth", "100G"))
	nic = ranged(nic, "ingressBandwidth", "1G", "100M", "100G", "1M")
	nic = ranged(nic, "vfs", "1", "", "", "")
	vfs := nic.Capacity["vfs"]
	vfs.RequestPolicy.ValidValues = []resource.Quantity{resource.MustParse("1")}
	nic.Capacity["vfs"] = vfs
	hami := shareable(builders.Device("hami-gpu-0", "cores", "100", "memory", "24Gi"))
	hami = ranged(ranged(hami, "cores", "100", "0", "100", "1"), "memory", "24Gi", "1Mi", "", "1Mi")
	shares := shareable(gpu("gpu-0", "40Gi", "A100"))
	shares.Capacity["shares"] = resourceapi.DeviceCapacity{Value: resource.MustParse("4")}
	shares = ranged(ranged(shares, "shares", "1", "1", "4", "1"), "memory", "0", "0", "40Gi", "1Mi")
	cpu := shareable(builders.Device("cpudevnuma000", "dra.cpu/cpu", "64"))
	return newInventory(append(objects,
		migNode("n1"),
		builders.Slice("gpu.nvidia.com", "n2", gpu("gpu-0", "80Gi", "A100-80")),
		builders.Slice("gpu.nvidia.com", "n3", gpu("gpu-0", "40Gi", "A100-40"), gpu("gpu-1", "40Gi", "A100-40")),
		builders.Class("unused", "driver=unused"),
		builders.Class("tpu.google.com", "driver=tpu.google.com"), tpu("t1"), tpu("t2"),
		builders.Class("gpu.intel.com", "driver=gpu.intel.com"), builders.Class("gpu-vfio.intel.com", "driver=gpu.intel.com"),
		builders.Slice("gpu.intel.com", "i1", builders.Device("0000-04-00-0-0xe211", "memory", "0", "millicores", "1k")),
		builders.Class("gpu.amd.com", "driver=gpu.amd.com"),
		builders.Slice("gpu.amd.com", "a1",
			typed(builders.Device("gpu-0", "memory", "192Gi", "computeUnits", "304"), "type", "amdgpu"),
			typed(builders.Device("gpu-1-p0", "memory", "24Gi", "computeUnits", "38"), "type", "amdgpu-partition"),
			typed(builders.Device("gpu-1-p1", "memory", "24Gi", "computeUnits", "38"), "type", "amdgpu-partition")),
		builders.Class("hami-core-gpu.project-hami.io", "driver=hami-core-gpu.project-hami.io"),
		builders.Slice("hami-core-gpu.project-hami.io", "h1", hami),
		builders.Class("net.example.com", "driver=net.example.com"), builders.Slice("net.example.com", "x1", nic),
		builders.Class("shares.nvidia.com", "driver=shares.nvidia.com"), builders.Slice("shares.nvidia.com", "s1", shares),
		builders.Class("dra.cpu", "driver=dra.cpu"), builders.Slice("dra.cpu", "c1", cpu),
	)...)
}

func own(class, measure string) string { return class + ".deviceclass.devicequota.io/" + measure }

func withCapacity(r resourceapi.DeviceRequest, kv ...string) resourceapi.DeviceRequest {
	r.Exactly.Capacity = builders.Capacity(kv...)
	return r
}

// share makes the i-th result of an allocated claim a share with this consumption.
func share(claim *resourceapi.ResourceClaim, i int, kv ...string) *resourceapi.ResourceClaim {
	r := &claim.Status.Allocation.Devices.Results[i]
	id := types.UID(fmt.Sprintf("share-%d", i))
	r.ShareID, r.ConsumedCapacity = &id, builders.Capacity(kv...).Requests
	return claim
}

func TestDriverShapes(t *testing.T) {
	t.Parallel()
	const hami, net, shares = "hami-core-gpu.project-hami.io", "net.example.com", "shares.nvidia.com"
	for name, test := range map[string]struct {
		hard      corev1.ResourceList
		selectors []string
		claim     *resourceapi.ResourceClaim // allocated unless nothing is
		requested corev1.ResourceList
		allocated corev1.ResourceList
		unknown   []corev1.ResourceName
	}{
		"NVIDIA: any whole GPU costs the largest, then what it is": {
			hard:      unlimited(gpuDevices, gpuMemory, "count/resourceclaims.resource.k8s.io"),
			claim:     builders.Allocate(builders.Claim("a", "c", builders.Exactly("gpu", "gpu.nvidia.com", 2)), "gpu gpu.nvidia.com n3 gpu-0", "gpu gpu.nvidia.com n3 gpu-1"),
			requested: builders.List(gpuDevices, "2", gpuMemory, "160Gi", "count/resourceclaims.resource.k8s.io", "1"),
			allocated: builders.List(gpuDevices, "2", gpuMemory, "80Gi", "count/resourceclaims.resource.k8s.io", "1"),
		},
		"NVIDIA: a selector narrows the candidates": {
			hard:      unlimited(gpuMemory),
			claim:     builders.Allocate(builders.Claim("a", "c", builders.Exactly("gpu", "gpu.nvidia.com", 2, "productName=A100-40")), "gpu gpu.nvidia.com n3 gpu-0", "gpu gpu.nvidia.com n3 gpu-1"),
			requested: builders.List(gpuMemory, "80Gi"),
			allocated: builders.List(gpuMemory, "80Gi"),
		},
		"NVIDIA: 1x80 else 2x40 of one class costs the larger per key": {
			hard: unlimited(gpuDevices, gpuMemory),
			claim: builders.Allocate(builders.Claim("a", "c", builders.FirstAvailable("gpu",
				builders.Sub("big", "gpu.nvidia.com", 1, "productName=A100-80"), builders.Sub("small", "gpu.nvidia.com", 2, "productName=A100-40"))), "gpu/big gpu.nvidia.com n2 gpu-0"),
			requested: builders.List(gpuDevices, "2", gpuMemory, "80Gi"),
			allocated: builders.List(gpuDevices, "1", gpuMemory, "80Gi"),
		},
		"MIG: counters and one memory bucket for partitions and whole GPUs": {
			hard:      unlimited(own("mig.nvidia.com", "counter.memory"), own("mig.nvidia.com", "counter.memory-slice-0"), "any.selector.devicequota.io/counter.memory", "any.selector.devicequota.io/devices"),
			selectors: []string{"any", "driver=gpu.nvidia.com"},
			claim: builders.Allocate(builders.Claim("a", "c", builders.Exactly("mig", "mig.nvidia.com", 1, "profile=1g.5gb"), builders.Exactly("gpu", "gpu.nvidia.com", 1, "productName=NVIDIA A100-SXM4-40GB")),
				"mig gpu.nvidia.com n1 gpu-0-mig-1g5gb-19-3", "gpu gpu.nvidia.com n1 gpu-0"),
			requested: builders.List(own("mig.nvidia.com", "counter.memory"), "4864Mi", own("mig.nvidia.com", "counter.memory-slice-0"), "1", "any.selector.devicequota.io/counter.memory", "45056Mi", "any.selector.devicequota.io/devices", "2"),
			allocated: builders.List(own("mig.nvidia.com", "counter.memory"), "4864Mi", "any.selector.devicequota.io/counter.memory", "45056Mi", "any.selector.devicequota.io/devices", "2"),
		},
		"MIG: a partition that consumes none of a counter says so": {
			hard:      unlimited(own("mig.nvidia.com", "counter.decoders")),
			claim:     builders.Allocate(builders.Claim("a", "c", builders.Exactly("mig", "mig.nvidia.com", 1)), "mig gpu.nvidia.com n1 gpu-0-mig-1g5gb-19-3"),
			requested: builders.List(),
			allocated: builders.List(),
		},
		"shares: memory defaults to 0, the share counts": {
			hard:      unlimited(own(shares, "capacity.memory"), own(shares, "capacity.shares"), own(shares, "devices")),
			claim:     share(builders.Allocate(builders.Claim("a", "c", builders.Exactly("s", shares, 1)), "s "+shares+" s1 gpu-0"), 0, "shares", "1", "memory", "0"),
			requested: builders.List(own(shares, "capacity.shares"), "1", own(shares, "devices"), "1"),
			allocated: builders.List(own(shares, "capacity.shares"), "1", own(shares, "devices"), "1"),
		},
		"shares: requested memory is rounded up to the step": {
			hard:      unlimited(own(shares, "capacity.memory")),
			claim:     share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("s", shares, 1), "memory", "1000000")), "s "+shares+" s1 gpu-0"), 0, "shares", "1", "memory", "1Mi"),
			requested: builders.List(own(shares, "capacity.memory"), "1Mi"),
			allocated: builders.List(own(shares, "capacity.memory"), "1Mi"),
		},
		"TPU: All costs the largest host, not 32": {
			hard: unlimited(own("tpu.google.com", "devices"), "tpu.google.com.deviceclass.resource.k8s.io/devices"),
			claim: builders.Allocate(builders.Claim("a", "c", builders.All("tpu", "tpu.google.com")),
				"tpu tpu.google.com t1 accel0", "tpu tpu.google.com t1 accel1", "tpu tpu.google.com t1 accel2", "tpu tpu.google.com t1 accel3"),
			requested: builders.List(own("tpu.google.com", "devices"), "4", "tpu.google.com.deviceclass.resource.k8s.io/devices", "4"),
			allocated: builders.List(own("tpu.google.com", "devices"), "4", "tpu.google.com.deviceclass.resource.k8s.io/devices", "4"),
		},
		"Intel: memory 0 at cold start is unknown, not free": {
			hard:      unlimited(own("gpu.intel.com", "capacity.memory"), own("gpu.intel.com", "devices"), own("gpu.intel.com", "capacity.millicores")),
			claim:     builders.Allocate(builders.Claim("a", "c", builders.Exactly("gpu", "gpu.intel.com", 1)), "gpu gpu.intel.com i1 0000-04-00-0-0xe211"),
			requested: builders.List(own("gpu.intel.com", "devices"), "1", own("gpu.intel.com", "capacity.millicores"), "1k"),
			allocated: builders.List(own("gpu.intel.com", "devices"), "1", own("gpu.intel.com", "capacity.millicores"), "1k"),
			unknown:   []corev1.ResourceName{corev1.ResourceName(own("gpu.intel.com", "capacity.memory"))},
		},
		"Intel: a second class on the same devices is seen by a selector key only": {
			hard:      unlimited(own("gpu.intel.com", "devices"), "intel.selector.devicequota.io/devices"),
			selectors: []string{"intel", "driver=gpu.intel.com"},
			claim:     builders.Allocate(builders.Claim("a", "c", builders.Exactly("gpu", "gpu-vfio.intel.com", 1)), "gpu gpu.intel.com i1 0000-04-00-0-0xe211"),
			requested: builders.List("intel.selector.devicequota.io/devices", "1"),
			allocated: builders.List("intel.selector.devicequota.io/devices", "1"),
		},
		"AMD: partitions": {
			hard: unlimited(own("gpu.amd.com", "capacity.memory"), own("gpu.amd.com", "capacity.computeUnits")),
			claim: builders.Allocate(builders.Claim("a", "c", builders.Exactly("p", "gpu.amd.com", 2, "type=amdgpu-partition")),
				"p gpu.amd.com a1 gpu-1-p0", "p gpu.amd.com a1 gpu-1-p1"),
			requested: builders.List(own("gpu.amd.com", "capacity.memory"), "48Gi", own("gpu.amd.com", "capacity.computeUnits"), "76"),
			allocated: builders.List(own("gpu.amd.com", "capacity.memory"), "48Gi", own("gpu.amd.com", "capacity.computeUnits"), "76"),
		},
		"HAMi: cores and memory of a shared GPU": {
			hard:      unlimited(own(hami, "capacity.cores"), own(hami, "capacity.memory")),
			claim:     share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("g", hami, 1), "cores", "30", "memory", "8Gi")), "g "+hami+" h1 hami-gpu-0"), 0, "cores", "30", "memory", "8Gi"),
			requested: builders.List(own(hami, "capacity.cores"), "30", own(hami, "capacity.memory"), "8Gi"),
			allocated: builders.List(own(hami, "capacity.cores"), "30", own(hami, "capacity.memory"), "8Gi"),
		},
		"HAMi: what is not asked for defaults to all": {
			hard:      unlimited(own(hami, "capacity.cores"), own(hami, "capacity.memory")),
			claim:     share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("g", hami, 2), "memory", "2048Mi")), "g "+hami+" h1 hami-gpu-0"), 0, "cores", "100", "memory", "2Gi"),
			requested: builders.List(own(hami, "capacity.cores"), "200", own(hami, "capacity.memory"), "4096Mi"),
			allocated: builders.List(own(hami, "capacity.cores"), "100", own(hami, "capacity.memory"), "2Gi"),
		},
		"NIC: bandwidth": {
			hard:      unlimited(own(net, "capacity.ingressBandwidth"), own(net, "capacity.vfs")),
			claim:     share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("n", net, 1), "ingressBandwidth", "2500500k")), "n "+net+" x1 nic-0"), 0, "ingressBandwidth", "2501M", "vfs", "1"),
			requested: builders.List(own(net, "capacity.ingressBandwidth"), "2501M", own(net, "capacity.vfs"), "1"),
			allocated: builders.List(own(net, "capacity.ingressBandwidth"), "2501M", own(net, "capacity.vfs"), "1"),
		},
		"CPU: a capacity in the driver's own domain, written either way": {
			hard:      unlimited(own("dra.cpu", "capacity.cpu"), own("dra.cpu", "capacity.dra.cpu_cpu"), own("dra.cpu", "capacity.other.cpu_cpu")),
			claim:     share(builders.Allocate(builders.Claim("a", "c", withCapacity(builders.Exactly("c", "dra.cpu", 1), "dra.cpu/cpu", "6")), "c dra.cpu c1 cpudevnuma000"), 0, "dra.cpu/cpu", "6"),
			requested: builders.List(own("dra.cpu", "capacity.cpu"), "6", own("dra.cpu", "capacity.dra.cpu_cpu"), "6"),
			allocated: builders.List(own("dra.cpu", "capacity.cpu"), "6", own("dra.cpu", "capacity.dra.cpu_cpu"), "6"),
			unknown:   []corev1.ResourceName{corev1.ResourceName(own("dra.cpu", "capacity.other.cpu_cpu"))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var annotations []string
			for i := 0; i < len(test.selectors); i += 2 {
				annotations = append(annotations, "selector.devicequota.io/"+test.selectors[i], test.selectors[i+1])
			}
			q := parse(t, test.hard, annotations...)
			before := test.claim.DeepCopy()
			charger := quota.NewCharger(fleet())
			charge, err := charger.Requested(&test.claim.Spec, q)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "requested", test.requested, charge.Amounts)
			var unknown []corev1.ResourceName
			for _, u := range charge.Unknown {
				unknown = append(unknown, u.Key)
			}
			if fmt.Sprint(unknown) != fmt.Sprint(test.unknown) {
				t.Errorf("unknown: want %v, got %v", test.unknown, charge.Unknown)
			}
			allocated, ok := charger.Allocated(test.claim, q)
			if !ok {
				t.Errorf("allocated is not computable: %v", allocated.Unknown)
			}
			same(t, "allocated", test.allocated, allocated.Amounts)
			if len(test.unknown) == 0 {
				same(t, "larger of both", quota.Max(charge.Amounts, allocated.Amounts), charge.Amounts)
			}
			if fmt.Sprint(before) != fmt.Sprint(test.claim) {
				t.Error("the claim was changed")
			}
		})
	}
}
