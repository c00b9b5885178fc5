//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	randomDriver = "random.example.com"
	scenarios    = 200
)

// scenario is one node with random devices, and one claim for it.
type scenario struct {
	node  string
	slice *resourceapi.ResourceSlice
	claim *resourceapi.ResourceClaim
}

// searchesAs is the minor version of the scheduler whose search ours is.
const searchesAs = 37

// TestOurAllocatorChoosesWhatTheSchedulerChose gives the same inventory and claims to both. How
// often another version of the scheduler chooses otherwise is counted, not judged.
func TestOurAllocatorChoosesWhatTheSchedulerChose(t *testing.T) {
	needs(t, prioritizedList, taints, consumableCapacity)
	class(t, randomDriver)
	key := randomDriver + ".deviceclass.devicequota.io/devices"
	tn := newTenant(t, hard(key, 100000), nil)
	all := make([]scenario, scenarios)
	for i := range all {
		all[i] = randomScenario(rand.New(rand.NewPCG(1, uint64(i))), i, tn.name)
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: all[i].node, Labels: map[string]string{corev1.LabelHostname: all[i].node}}})
		create(t, all[i].slice)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, s := range all {
			_ = cp.Client.Delete(ctx, s.slice)
			_ = cp.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.node}})
		}
	})
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		create(t, s.claim)
		spec := podSpec("claim/" + s.claim.Name)
		spec.NodeSelector = map[string]string{corev1.LabelHostname: s.node}
		create(t, tn.pod("p-"+s.node, spec))
	}
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	var c resourceapi.DeviceClass
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: randomDriver}, &c); err != nil {
		t.Fatal(err)
	}
	b.SetClass(&c)
	for _, s := range all {
		b.SetSlice(s.slice)
	}
	ours, err := allocator.New(b.Snapshot(), allocator.State{}, allocator.Options{Features: allocator.DefaultFeatures()})
	if err != nil {
		t.Fatal(err)
	}
	fit, erred, differ := 0, 0, 0
	differs := func(format string, args ...any) {
		t.Helper()
		differ++
		if kube.Minor == searchesAs {
			t.Errorf(format, args...)
		} else {
			t.Logf(format, args...)
		}
	}
	for _, s := range all {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.node, Labels: map[string]string{corev1.LabelHostname: s.node}}}
		got, err := ours.Allocate(t.Context(), n, []*resourceapi.ResourceClaim{s.claim})
		if err != nil {
			t.Errorf("%s: %v", s.node, err)
			continue
		}
		want, failed := theirs(t, tn, s)
		switch {
		case failed: // upstream gives up with an error where All meets a constraint it cannot keep
			erred++
			if !mayErr(s.claim) {
				differs("%s: the scheduler failed, ours %v", s.node, got)
			}
		case want == nil && got.Unfit == nil:
			differs("%s: the scheduler found nothing, ours %v", s.node, got.Allocations)
		case want != nil && got.Unfit != nil:
			differs("%s: the scheduler found %v, ours nothing: %s", s.node, want, got.Unfit)
		case want != nil:
			fit++
			if diff := cmp.Diff(want.Devices, got.Allocations[0].Devices, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(resourceapi.DeviceRequestAllocationResult{}, "ShareID")); diff != "" {
				differs("%s: (-scheduler +ours)\n%s", s.node, diff)
			}
		}
	}
	t.Logf("%d of %d scenarios fit; in %d the scheduler failed with an error", fit, scenarios, erred)
	if kube.Minor != searchesAs {
		leaveOut(t, fmt.Sprintf("our allocator searches as 1.%d does; %d of %d scenarios differ", searchesAs, differ, scenarios))
	}
	if fit < scenarios/4 || fit > scenarios*9/10 {
		t.Errorf("%d of %d scenarios fit: they say little", fit, scenarios)
	}
}

// mayErr tells whether upstream 1.37 may fail with an error instead of searching on: allocation
// mode All together with a constraint.
func mayErr(c *resourceapi.ResourceClaim) bool {
	if len(c.Spec.Devices.Constraints) == 0 {
		return false
	}
	return slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AllocationMode == resourceapi.DeviceAllocationModeAll
	})
}

// theirs waits until the scheduler has allocated the claim, or has said that it cannot, or has failed.
func theirs(t *testing.T, tn *tenant, s scenario) (found *resourceapi.AllocationResult, failed bool) {
	t.Helper()
	harness.Eventually(t, s.node, func(ctx context.Context) error {
		c, p := &resourceapi.ResourceClaim{}, &corev1.Pod{}
		if err := cp.Client.Get(ctx, client.ObjectKeyFromObject(s.claim), c); err != nil {
			return err
		}
		if found = c.Status.Allocation; found != nil {
			return nil
		}
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: tn.name, Name: "p-" + s.node}, p); err != nil {
			return err
		}
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
			if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonSchedulerError {
				failed = true
				return nil
			}
		}
		return fmt.Errorf("not decided yet: %v", p.Status.Conditions)
	})
	return found, failed
}

func randomScenario(r *rand.Rand, i int, namespace string) scenario {
	s := scenario{node: fmt.Sprintf("random-%03d", i)}
	s.slice = &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: randomDriver, NodeName: &s.node, Pool: resourceapi.ResourcePool{Name: s.node, Generation: 1, ResourceSliceCount: 1}}}
	for d := range 1 + r.IntN(6) {
		dev := resourceapi.Device{Name: fmt.Sprintf("dev-%d", d), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"model": text([]string{"a", "b"}[r.IntN(2)]), "numa": {IntValue: ptr.To(int64(r.IntN(2)))},
		}, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": amount([]string{"40Gi", "80Gi"}[r.IntN(2)])}}
		if r.IntN(4) == 0 {
			dev.AllowMultipleAllocations = ptr.To(true)
		}
		if r.IntN(5) == 0 {
			dev.Taints = []resourceapi.DeviceTaint{{Key: "example.com/slow", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		s.slice.Spec.Devices = append(s.slice.Spec.Devices, dev)
	}
	s.claim = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.node}}
	for q := range 1 + r.IntN(3) {
		s.claim.Spec.Devices.Requests = append(s.claim.Spec.Devices.Requests, randomRequest(r, fmt.Sprintf("r%d", q)))
	}
	if r.IntN(3) == 0 {
		s.claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(randomDriver + "/numa"))}}
	}
	return s
}

func randomRequest(r *rand.Rand, name string) resourceapi.DeviceRequest {
	var selectors []resourceapi.DeviceSelector
	if r.IntN(2) == 0 {
		expression := []string{
			`device.attributes["random.example.com"].model == "a"`,
			`device.attributes["random.example.com"].numa == 1`,
			`device.capacity["random.example.com"].memory.compareTo(quantity("50Gi")) > 0`,
		}[r.IntN(3)]
		selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	if r.IntN(4) == 0 {
		sub := func(name string, count int64, selectors []resourceapi.DeviceSelector) resourceapi.DeviceSubRequest {
			return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: randomDriver, Selectors: selectors,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
		}
		return resourceapi.DeviceRequest{Name: name, FirstAvailable: []resourceapi.DeviceSubRequest{sub("many", int64(2+r.IntN(3)), selectors), sub("one", 1, nil)}}
	}
	req := exact(name, randomDriver, int64(1+r.IntN(2)))
	req.Exactly.Selectors = selectors
	switch r.IntN(8) {
	case 0:
		req.Exactly.AllocationMode, req.Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
	case 1:
		req.Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/slow", Operator: resourceapi.DeviceTolerationOpExists}}
	case 2:
		req.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("30Gi")}}
	}
	return req
}
