//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/test/harness"
)

// node creates a schedulable node for one test.
func node(t *testing.T, name string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	create(t, n)
	t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), n) })
}

// publish creates a complete slice of a node's devices.
func publish(t *testing.T, driver, nodeName string, generation int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	t.Helper()
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", nodeName, driver, generation)},
		Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &nodeName,
			Pool:    resourceapi.ResourcePool{Name: nodeName, Generation: generation, ResourceSliceCount: 1},
			Devices: devices}}
	create(t, s)
	t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), s) })
	return s
}

// class creates a class of all devices of a driver.
func class(t *testing.T, driver string) {
	t.Helper()
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}}}}
	create(t, c)
	t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), c) })
}

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

func amount(s string) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: resource.MustParse(s)}
}

func TestSharesAreChargedAsTheSchedulerRoundsThem(t *testing.T) {
	needs(t, consumableCapacity)
	driver := "shares.example.com"
	memory := resourceapi.DeviceCapacity{Value: resource.MustParse("40Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    ptr.To(resource.MustParse("1Gi")),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("1Gi")), Max: ptr.To(resource.MustParse("40Gi")), Step: ptr.To(resource.MustParse("1Gi"))}}}
	node(t, "shares-1")
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	class(t, driver)
	publish(t, driver, "shares-1", 1, resourceapi.Device{Name: "gpu-0", AllowMultipleAllocations: ptr.To(true),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": memory}})
	deviceLimit, memoryLimit := driver+".deviceclass.devicequota.io/devices", driver+".deviceclass.devicequota.io/capacity.memory"
	tn := newTenant(t, hard(deviceLimit, 10, memoryLimit, "5Gi"), nil)
	share := func(memory string) resourceapi.DeviceRequest {
		r := exact("share", driver, 1)
		if memory != "" {
			r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
		}
		return r
	}
	harness.Eventually(t, "the published devices are known", func(ctx context.Context) error {
		return cp.Client.Create(ctx, tn.claim("rounded", share("1500Mi")))
	})
	create(t, tn.claim("default", share("")))
	tn.wantUsed(hard(deviceLimit, 2, memoryLimit, "3Gi"))
	create(t, tn.pod("p", podSpec("claim/rounded", "claim/default")))
	got := tn.allocated("rounded").Status.Allocation.Devices.Results[0].ConsumedCapacity["memory"]
	if got.Cmp(resource.MustParse("2Gi")) != 0 {
		t.Errorf("the scheduler gave %s, want 2Gi", got.String())
	}
	tn.allocated("default")
	tn.wantUsed(hard(deviceLimit, 2, memoryLimit, "3Gi"))
	if err := cp.Client.Create(t.Context(), tn.claim("more", share("2049Mi"))); err == nil {
		t.Error("a share that rounds up to 3Gi fits a rest of 2Gi")
	}
}

func TestMatchedDevicesAreChargedForEachClass(t *testing.T) {
	gpu, nic := "gpu.match.example.com", "nic.match.example.com"
	node(t, "match-1")
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	class(t, gpu)
	class(t, nic)
	on := func(name, root string) resourceapi.Device {
		return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"resource.kubernetes.io/pcieRoot": text(root)},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"bandwidth": amount("100G")}}
	}
	publish(t, gpu, "match-1", 1, on("gpu-0", "pci0000:00"), on("gpu-1", "pci0000:80"))
	publish(t, nic, "match-1", 1, on("nic-0", "pci0000:80"))
	gpus, bandwidth := gpu+".deviceclass.devicequota.io/devices", nic+".deviceclass.devicequota.io/capacity.bandwidth"
	tn := newTenant(t, hard(gpus, 1, bandwidth, "100G"), nil)
	c := tn.claim("both", exact("gpu", gpu, 1), exact("nic", nic, 1))
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot"))}}
	harness.Eventually(t, "the published devices are known", func(ctx context.Context) error { return cp.Client.Create(ctx, c.DeepCopy()) })
	create(t, tn.pod("p", podSpec("claim/both")))
	results := tn.allocated("both").Status.Allocation.Devices.Results
	if len(results) != 2 || results[0].Device != "gpu-1" || results[1].Device != "nic-0" {
		t.Errorf("the scheduler chose %v", results)
	}
	tn.wantUsed(hard(gpus, 1, bandwidth, "100G"))
}

func TestAnAllocatedClaimKeepsItsChargeWhileItsDevicesChange(t *testing.T) {
	driver := "changing.example.com"
	node(t, "changing-1")
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	class(t, driver)
	gpu := func(memory string) resourceapi.Device {
		return resourceapi.Device{Name: "gpu-0", Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": amount(memory)}}
	}
	first := publish(t, driver, "changing-1", 1, gpu("80Gi"))
	key := driver + ".deviceclass.devicequota.io/capacity.memory"
	tn := newTenant(t, hard(key, "200Gi"), map[string]string{"devicequota.io/true-down": "Always"})
	harness.Eventually(t, "the published devices are known", func(ctx context.Context) error {
		return cp.Client.Create(ctx, tn.claim("c", exact("gpu", driver, 1)))
	})
	create(t, tn.pod("p", podSpec("claim/c")))
	tn.allocated("c")
	tn.wantUsed(hard(key, "80Gi"))

	// the driver restarts: its slice goes, then comes again incomplete, then complete with other content
	if err := cp.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	tn.stays(hard(key, "80Gi"))
	second := publish(t, driver, "changing-1", 2, gpu("40Gi"))
	tn.wantUsed(hard(key, "40Gi"))
	incomplete := second.DeepCopy()
	incomplete.ObjectMeta = metav1.ObjectMeta{Name: "changing-1-incomplete"}
	incomplete.Spec.Pool.Generation, incomplete.Spec.Pool.ResourceSliceCount = 3, 2
	incomplete.Spec.Devices = []resourceapi.Device{gpu("10Gi")}
	create(t, incomplete)
	t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), incomplete) })
	tn.stays(hard(key, "40Gi"))

	if taintAll(t, driver) {
		tn.stays(hard(key, "40Gi"))
	}

	if err := cp.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "changing-1"}}); err != nil {
		t.Fatal(err)
	}
	tn.stays(hard(key, "40Gi"))
}

// taintAll adds a rule that taints all devices of the driver, in the version in which rules are
// served. It returns false where there are none.
func taintAll(t *testing.T, driver string) bool {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	api, err := devices.DiscoverAPI(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if api.TaintRules == "" {
		leaveOut(t, "the DeviceTaintRule: none are served")
		return false
	}
	rule := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"deviceSelector": map[string]any{"driver": driver},
		"taint":          map[string]any{"key": "example.com/broken", "effect": string(resourceapi.DeviceTaintEffectNoSchedule)},
	}}}
	rule.SetGroupVersionKind(schema.GroupVersionKind{Group: resourceapi.GroupName, Version: api.TaintRules, Kind: "DeviceTaintRule"})
	rule.SetName("all-of-" + driver)
	create(t, rule)
	t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), rule) })
	return true
}

// stays writes to the project, waits until that write shows, and checks that the use is
// what it was: what happened before is then seen, too.
func (tn *tenant) stays(want corev1.ResourceList) {
	tn.t.Helper()
	c := tn.claim("marker", exact("g", "no-such-class.example.com", 1))
	create(tn.t, c)
	harness.Eventually(tn.t, "the ledger has observed the marker", func(ctx context.Context) error {
		tn.t.Helper()
		l, err := tn.ledger(ctx)
		if err != nil {
			return err
		}
		for _, h := range l.Status.Holds {
			if h.Name == "marker" {
				return fmt.Errorf("marker is held")
			}
		}
		return nil
	})
	tn.wantUsed(want)
	if err := cp.Client.Delete(tn.t.Context(), c); err != nil {
		tn.t.Fatal(err)
	}
	if err := cp.Client.Get(tn.t.Context(), client.ObjectKeyFromObject(c), c); client.IgnoreNotFound(err) != nil {
		tn.t.Fatal(err)
	}
}
