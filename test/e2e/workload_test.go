//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

func TestReplicasBeyondTheLimitAreRefusedAtCreation(t *testing.T) {
	needs(t, partitions)
	tn := newTenant(t, hard(migKey, 4), nil)
	create(t, tn.template("partition", exact("p", "mig.nvidia.com", 1, `device.attributes["gpu.nvidia.com"].profile == "1g.5gb"`)))
	create(t, tn.deployment("ten", 10, podSpec("partition")))
	harness.Eventually(t, "4 of 10 pods run and none is pending", func(ctx context.Context) error {
		n, err := tn.pods(ctx, "ten")
		if err != nil {
			return err
		}
		if n[corev1.PodRunning] != 4 || len(n) != 1 {
			return fmt.Errorf("pods by phase: %v", n)
		}
		return nil
	})
	harness.Eventually(t, "the reason is on the ReplicaSet's event", func(ctx context.Context) error {
		var events corev1.EventList
		if err := cp.Client.List(ctx, &events, client.InNamespace(tn.name)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "ReplicaSet" && e.Reason == "FailedCreate" && strings.Contains(e.Message, "exceeded quota: "+tn.name) &&
				strings.Contains(e.Message, "limited: "+string(migKey)+"=4") {
				return nil
			}
		}
		return fmt.Errorf("no such event among %d", len(events.Items))
	})
	tn.wantUsed(hard(migKey, 4))

	create(t, tn.deployment("next", 1, podSpec("partition")))
	scale(t, tn, "ten", 3)
	harness.Eventually(t, "the next pod comes up by itself", func(ctx context.Context) error {
		n, err := tn.pods(ctx, "next")
		if err == nil && n[corev1.PodRunning] != 1 {
			err = fmt.Errorf("pods by phase: %v", n)
		}
		return err
	})
	tn.wantUsed(hard(migKey, 4))
}

func scale(t *testing.T, tn *tenant, deployment string, replicas int32) {
	t.Helper()
	harness.Eventually(t, "scale", func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: tn.name, Name: deployment}, &d); err != nil {
			return err
		}
		d.Spec.Replicas = &replicas
		return cp.Client.Update(ctx, &d)
	})
}

func TestTheChargeFollowsTheSchedulersAllocation(t *testing.T) {
	needs(t, prioritizedList)
	tn := newTenant(t, hard(gpuKey, 2, tpuKey, 4), map[string]string{"devicequota.io/true-down": "Always"})
	first := tn.claim("first")
	product := func(p string) []resourceapi.DeviceSelector {
		return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.nvidia.com"].productName == "` + p + `"`}}}
	}
	first.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "big", DeviceClassName: "gpu.nvidia.com", Selectors: product("NVIDIA A100-SXM4-80GB")},
		{Name: "small", DeviceClassName: "gpu.nvidia.com", Count: 2, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Selectors: product("NVIDIA A100-SXM4-40GB")},
	}}}
	create(t, first)
	tn.wantUsed(hard(gpuKey, 2))
	spec := podSpec("claim/first")
	spec.NodeSelector = map[string]string{corev1.LabelHostname: "gpu-1"} // schedulers before 1.35 do not prefer nodes that have the first alternative
	create(t, tn.pod("runs", spec))
	tn.allocated("first")
	tn.wantUsed(hard(gpuKey, 1))

	all := tn.claim("all", exact("chips", "tpu.google.com", 0))
	all.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	create(t, all)
	tn.wantUsed(hard(gpuKey, 1, tpuKey, 4))

	tn.finish("runs") // the claim controller deallocates: it may be allocated again, larger
	tn.wantUsed(hard(gpuKey, 2, tpuKey, 4))
	if err := cp.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	tn.wantUsed(hard(gpuKey, 0, tpuKey, 4))
}

func TestAllIsChargedAsTheNodeThatTheSchedulerChose(t *testing.T) {
	driver := "all.example.com"
	node(t, "all-small")
	node(t, "all-large")
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	class(t, driver)
	publish(t, driver, "all-small", 1, resourceapi.Device{Name: "a"}, resourceapi.Device{Name: "b"})
	publish(t, driver, "all-large", 1, resourceapi.Device{Name: "a"}, resourceapi.Device{Name: "b"}, resourceapi.Device{Name: "c"})
	key := driver + ".deviceclass.devicequota.io/devices"
	tn := newTenant(t, hard(key, 40), nil)
	all := exact("all", driver, 0)
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	create(t, tn.template("all", all))
	create(t, tn.claim("idle", all))
	tn.wantUsed(hard(key, 3)) // the larger node

	spec := podSpec("all")
	spec.NodeSelector = map[string]string{corev1.LabelHostname: "all-small"}
	create(t, tn.pod("p", spec))
	tn.wantUsed(hard(key, 5)) // the pod's own claim has the smaller one
	if err := cp.Client.Delete(t.Context(), tn.pod("p", spec)); err != nil {
		t.Fatal(err)
	}
	tn.wantUsed(hard(key, 3))
}

func TestExtendedResourcesAreChargedOnceAndReleased(t *testing.T) {
	needs(t, extendedResources)
	tn := newTenant(t, hard(gpuKey, 2, claimsKey, 1), nil)
	spec := podSpec()
	spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	spec.Containers[0].Resources.Requests = spec.Containers[0].Resources.Limits
	create(t, tn.pod("gpus", spec))
	tn.wantUsed(hard(gpuKey, 2, claimsKey, 1))
	harness.Eventually(t, "the scheduler made a claim and bound the pod", func(ctx context.Context) error {
		p := &corev1.Pod{}
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: tn.name, Name: "gpus"}, p); err != nil {
			return err
		}
		if p.Status.ExtendedResourceClaimStatus == nil || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod is %s, claim %v: %v", p.Status.Phase, p.Status.ExtendedResourceClaimStatus, p.Status.Conditions)
		}
		return nil
	})
	tn.wantUsed(hard(gpuKey, 2, claimsKey, 1))
	err := cp.Client.Create(t.Context(), tn.pod("more", spec))
	if err == nil || !strings.Contains(err.Error(), "exceeded quota: "+tn.name) {
		t.Errorf("a pod beyond the limit: %v", err)
	}
	tn.finish("gpus")
	if kube.Minor < 35 {
		leaveOut(t, "the release when the pod completes: there the scheduler's claim stays until the pod is deleted")
		if err := cp.Client.Delete(t.Context(), tn.pod("gpus", spec)); err != nil {
			t.Fatal(err)
		}
	}
	tn.wantUsed(hard(gpuKey, 0, claimsKey, 0))
}

func TestUsageIsWhatTheSchedulerWroteForEveryKey(t *testing.T) {
	needs(t, partitions)
	tn := newTenant(t, hard(gpuKey, 4, memoryKey, "400Gi", migKey, 7, migSMKey, 98, cardKey, 300),
		map[string]string{"selector.devicequota.io/card": `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`})
	create(t, tn.template("mig", exact("p", "mig.nvidia.com", 1, `device.attributes["gpu.nvidia.com"].profile == "2g.10gb"`)))
	create(t, tn.template("gpu", exact("g", "gpu.nvidia.com", 1, `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("50Gi")) > 0`)))
	create(t, tn.pod("mig", podSpec("mig")))
	create(t, tn.pod("gpu", podSpec("gpu")))
	harness.Eventually(t, "both pods run", func(ctx context.Context) error {
		n, err := tn.pods(ctx, "")
		if err == nil && n[corev1.PodRunning] != 2 {
			err = fmt.Errorf("pods by phase: %v", n)
		}
		return err
	})
	tn.wantUsed(hard(gpuKey, 1, memoryKey, "80Gi", migKey, 1, migSMKey, 28, cardKey, 28))
}

func TestWhatNativeQuotaDeniesAfterUsLeavesNothingBehind(t *testing.T) {
	tn := newTenant(t, hard(gpuKey, 2), nil)
	create(t, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: tn.name, Name: "native"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{claimsKey: resource.MustParse("0")}}})
	nativeDenies := func(ctx context.Context, opts ...client.CreateOption) error {
		err := cp.Client.Create(ctx, tn.claim("denied", exact("g", "gpu.nvidia.com", 2)), opts...)
		if err == nil || !strings.Contains(err.Error(), "quota: native") {
			return fmt.Errorf("want a denial by the native quota, got: %w", err)
		}
		return nil
	}
	harness.Eventually(t, "native quota in force", func(ctx context.Context) error { return nativeDenies(ctx, client.DryRunAll) })
	if err := nativeDenies(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &v1alpha1.DeviceLedger{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: tn.name}, l); err != nil || len(l.Status.Holds) != 1 {
		t.Fatalf("want the hold of the denied claim, got %v, %v", l.Status.Holds, err)
	}
	if err := cp.Client.DeleteAllOf(t.Context(), &corev1.ResourceQuota{}, client.InNamespace(tn.name)); err != nil {
		t.Fatal(err)
	}
	// the hold of the denied object ages out: then the place can be used
	harness.Eventually(t, "the place is free again", func(ctx context.Context) error {
		return cp.Client.Create(ctx, tn.claim("ok", exact("g", "gpu.nvidia.com", 2)))
	})
	tn.wantUsed(hard(gpuKey, 2))
}
