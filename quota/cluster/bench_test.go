package cluster

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
)

// published is an inventory of nodes with 8 GPUs of 80Gi each.
func published(b *testing.B, nodes int) *allocator.Builder {
	b.Helper()
	builder := allocator.NewBuilder(allocator.BuilderOptions{})
	builder.SetClass(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu", UID: "gpu", ResourceVersion: "1"},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}}},
	})
	for n := range nodes {
		builder.SetSlice(gpuSlice(n, 80))
	}
	return builder
}

func gpuSlice(n int, memory int64) *resourceapi.ResourceSlice {
	node := fmt.Sprintf("node-%04d", n)
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node), ResourceVersion: "1"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: ptr.To(node),
			Pool: resourceapi.ResourcePool{Name: node, Generation: memory, ResourceSliceCount: 1},
		},
	}
	for d := range 8 {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name:     fmt.Sprintf("gpu-%d", d),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *resource.NewQuantity(memory<<30, resource.BinarySI)}},
		})
	}
	return slice
}

// populated is an index of claims over 1000 projects and 100 quotas, each project covered by
// one quota of its own tenth and one over all of its team.
func populated(b *testing.B, claims int, builder *allocator.Builder) *index {
	b.Helper()
	x := newIndex(Options{Clock: clock.RealClock{}}, func(Change) {})
	var quotas, namespaces, objs []client.Object
	for i := range 100 {
		crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("quota-%02d", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}}
		crq.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"group": fmt.Sprint(i % 90)}}
		if i >= 90 {
			crq.Spec.Selector.LabelSelector.MatchLabels = map[string]string{"team": fmt.Sprint(i % 10)}
		}
		crq.Spec.Quota.Hard = corev1.ResourceList{
			"count/resourceclaims.resource.k8s.io":           resource.MustParse("100000"),
			"gpu.deviceclass.devicequota.io/devices":         resource.MustParse("100000"),
			"gpu.deviceclass.devicequota.io/capacity.memory": resource.MustParse("1Pi"),
		}
		quotas = append(quotas, crq)
	}
	for i := range 1000 {
		namespaces = append(namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("project-%04d", i), ResourceVersion: "1", Labels: map[string]string{"group": fmt.Sprint(i % 90), "team": fmt.Sprint(i % 10)}}})
	}
	for i := range claims {
		objs = append(objs, benchClaim(i, 1))
	}
	for c, list := range map[quota.Component][]client.Object{quota.Quotas: quotas, quota.Namespaces: namespaces, quota.Claims: objs} {
		indexTarget{x: x, component: c}.Replace(list, 2)
	}
	x.setInventory(inventoryAt{inventory: builder.Snapshot()})
	return x
}

func benchClaim(i, version int) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("project-%04d", i%1000), Name: fmt.Sprintf("claim-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)), ResourceVersion: fmt.Sprint(version)}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(1 + i%4),
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(`device.capacity["gpu.example.com"].memory.compareTo(quantity("%dGi")) >= 0`, 10*(1+i%8))}}},
	}}}
	if i%2 == 0 {
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: "gpu.example.com", Pool: fmt.Sprintf("node-%04d", i%500), Device: fmt.Sprintf("gpu-%d", i%8)},
		}}}
	}
	return claim
}

// cpu is the CPU time that the process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure runs the body and reports CPU time, garbage collection included: time alone says
// little on a busy machine.
func measure(b *testing.B, body func()) {
	b.Helper()
	runtime.GC()
	before := cpu(b)
	for b.Loop() {
		body()
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// BenchmarkRecount is a full recount because the inventory changed.
func BenchmarkRecount(b *testing.B) {
	for _, claims := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprintf("claims=%d", claims), func(b *testing.B) {
			builder := published(b, 500)
			x := populated(b, claims, builder)
			memory := int64(80)
			measure(b, func() {
				memory++
				builder.SetSlice(gpuSlice(0, memory))
				x.setInventory(inventoryAt{inventory: builder.Snapshot()})
			})
		})
	}
}

// BenchmarkClaimEvent is one event of a claim that changes what it costs.
func BenchmarkClaimEvent(b *testing.B) {
	for _, claims := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprintf("claims=%d", claims), func(b *testing.B) {
			x := populated(b, claims, published(b, 500))
			version := 2
			measure(b, func() {
				version++
				claim := benchClaim(version%claims, version)
				claim.Spec.Devices.Requests[0].Exactly.Count = int64(1 + version%7)
				indexTarget{x: x, component: quota.Claims}.Set(claim, uint64(version))
			})
		})
	}
}

// BenchmarkObserve is one look at one quota beside events, as an admission does.
func BenchmarkObserve(b *testing.B) {
	x := populated(b, 20000, published(b, 500))
	o := cached{&View{index: x}}
	version := 2
	measure(b, func() {
		version++
		indexTarget{x: x, component: quota.Claims}.Set(benchClaim(version%20000, version), uint64(version))
		o.Observe("quota-95", nil, nil)
	})
}
