package envtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	gpuMemory = "gpu.nvidia.com.deviceclass.devicequota.io/capacity.memory"
	migSMs    = "mig.nvidia.com.deviceclass.devicequota.io/counter.multiprocessors"
	cards     = "a100.selector.devicequota.io/devices"
	cardsSMs  = "a100.selector.devicequota.io/counter.memory-slice-0"
)

// annotate adds annotations to the tenant's quota and waits until they are in force.
func (tn *tenant) annotate(annotations map[string]string, limit corev1.ResourceList) {
	tn.t.Helper()
	var changed uint64
	harness.Eventually(tn.t, "change the quota", func(ctx context.Context) error { // its status is written all the while
		q := tn.quota(nil)
		if err := cp.Client.Get(ctx, client.ObjectKeyFromObject(q), q); err != nil {
			return err
		}
		q.Annotations = annotations
		q.Spec.Quota.Hard = limit
		if err := cp.Client.Update(ctx, q); err != nil {
			return err
		}
		var err error
		changed, err = quota.ParseVersion(q.ResourceVersion)
		return err
	})
	harness.Eventually(tn.t, "changed quota in force", func(ctx context.Context) error {
		l, err := tn.ledger(ctx)
		if err != nil {
			return err
		}
		if v, err := quota.ParseVersion(l.Status.CRQResourceVersion); err != nil || v < changed {
			return fmt.Errorf("ledger is at version %d of the quota, want %d (%w)", v, changed, err)
		}
		return nil
	})
}

// selecting changes a request so that it takes only devices for which the expression is true.
func selecting(c *resourceapi.ResourceClaim, expression string) *resourceapi.ResourceClaim {
	c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return c
}

// allocate writes an allocation as the scheduler does; devices are request, pool, device triples.
func allocate(t *testing.T, namespace, name string, devices ...string) {
	t.Helper()
	status(t, namespace, name, func(c *resourceapi.ResourceClaim) {
		a := &resourceapi.AllocationResult{}
		for i := 0; i < len(devices); i += 3 {
			a.Devices.Results = append(a.Devices.Results, resourceapi.DeviceRequestAllocationResult{
				Request: devices[i], Driver: "gpu.nvidia.com", Pool: devices[i+1], Device: devices[i+2]})
		}
		c.Status.Allocation = a
	})
}

func status(t *testing.T, namespace, name string, change func(c *resourceapi.ResourceClaim)) {
	t.Helper()
	c := &resourceapi.ResourceClaim{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, c); err != nil {
		t.Fatal(err)
	}
	change(c)
	if err := cp.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func TestCapacityCounterAndSelectorKeysFollowTheDevices(t *testing.T) {
	limit := hard(gpuMemory, "200Gi", migSMs, "98", cards, "4", cardsSMs, "2")
	tn := newTenant(t, 2, hard(string(claimsKey), "10"))
	tn.annotate(map[string]string{
		"selector.devicequota.io/a100":           `device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA A100")`,
		"devicequota.io/true-down":               "Always",
		"devicequota.io/unknown-footprint":       "Allow",
		"example.com/not-ours-and-of-no-meaning": "x",
	}, limit)

	create(t, claim(tn.namespaces[0], "any-gpu", "gpu.nvidia.com", 1)) // 80Gi is the largest
	tn.wantUsed(hard(gpuMemory, "80Gi", migSMs, "0", cards, "1", cardsSMs, "1"))
	allocate(t, tn.namespaces[0], "any-gpu", "r0", "gpu-2", "gpu-0") // a 40Gi card without counters
	tn.wantUsed(hard(gpuMemory, "40Gi", migSMs, "0", cards, "1", cardsSMs, "0"))

	create(t, selecting(claim(tn.namespaces[1], "mig", "mig.nvidia.com", 2), `device.attributes["gpu.nvidia.com"].profile == "1g.5gb"`))
	tn.wantUsed(hard(gpuMemory, "40Gi", migSMs, "28", cards, "3", cardsSMs, "2"))
	allocate(t, tn.namespaces[1], "mig", "r0", "mig-1", "gpu-0-mig-1g5gb-19-1", "r0", "mig-1", "gpu-0-mig-1g5gb-19-2")
	tn.wantUsed(hard(gpuMemory, "40Gi", migSMs, "28", cards, "3", cardsSMs, "0"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[1], "two-more", "gpu.nvidia.com", 2)), cards+"=2", "limited: "+cards+"=4")

	status(t, tn.namespaces[0], "any-gpu", func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil })
	tn.wantUsed(hard(gpuMemory, "80Gi", migSMs, "28", cards, "3", cardsSMs, "1")) // deallocated: as requested

	tn.annotate(map[string]string{"selector.devicequota.io/a100": `device.attributes["gpu.nvidia.com"].type == "mig"`,
		"devicequota.io/true-down": "Always", "devicequota.io/unknown-footprint": "Allow"}, limit)
	tn.wantUsed(hard(gpuMemory, "80Gi", migSMs, "28", cards, "2", cardsSMs, "0")) // another expression: counted anew
}

// Bypass: a claim of one's own is allocated small, released, and allocated large.
func TestABypassByReallocationStaysChargedAsRequested(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	ns := tn.namespaces[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "owner"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/none"}}}}
	create(t, pod)
	owned := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}
	for name, owners := range map[string][]metav1.OwnerReference{"standalone": nil, "with-an-owner-that-a-tenant-wrote": {owned}} {
		c := claim(ns, name, "gpu.nvidia.com", 1)
		c.OwnerReferences = owners
		c.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "r0", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "small", DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
			{Name: "large", DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2}}}
		create(t, c)
		tn.wantUsed(hard(string(gpuKey), "2"))
		allocate(t, ns, name, "r0/small", "gpu-2", "gpu-0")
		tn.wantUsed(hard(string(gpuKey), "2"))
		if err := cp.Client.Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		tn.wantUsed(hard(string(gpuKey), "0"))
	}
	// what really belongs to one pod, as only the API server's status tells, is trued down
	c := claim(ns, "owned", "gpu.nvidia.com", 1)
	c.OwnerReferences = []metav1.OwnerReference{owned}
	c.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "r0", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "small", DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		{Name: "large", DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2}}}
	create(t, c)
	allocate(t, ns, "owned", "r0/small", "gpu-2", "gpu-0")
	status(t, ns, "owned", func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	})
	tn.wantUsed(hard(string(gpuKey), "1"))
}

// extendedPod asks for devices as an extended resource.
func extendedPod(namespace, name, count string) *corev1.Pod {
	q := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(count)}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/none", Resources: corev1.ResourceRequirements{Limits: q, Requests: q}}}}}
}

// Bypass: a claim that looks as if the scheduler had made it for a pod that is charged already.
func TestABypassByAForgedSchedulerClaimIsChargedBesideThePod(t *testing.T) {
	forge := func(c *resourceapi.ResourceClaim, pod *corev1.Pod) {
		c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
	}
	tn := newTenant(t, 1, hard(string(gpuKey), "4", string(claimsKey), "10"))
	ns := tn.namespaces[0]
	pod := extendedPod(ns, "gpus", "2")
	create(t, pod)
	tn.wantUsed(hard(string(gpuKey), "2", string(claimsKey), "1"))

	c := claim(ns, "forged-at-creation", "gpu.nvidia.com", 2)
	forge(c, pod)
	create(t, c)
	tn.wantUsed(hard(string(gpuKey), "4", string(claimsKey), "2"))
	if err := cp.Client.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}

	c = claim(ns, "forged-later", "gpu.nvidia.com", 2)
	create(t, c)
	forge(c, pod)
	if err := cp.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	tn.wantUsed(hard(string(gpuKey), "4", string(claimsKey), "2"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(ns, "more", "gpu.nvidia.com", 1)), "exceeded quota")

	// the pod runs on a device plugin's node and never gets a claim: it is charged until it ends
	pod.Status.Phase = corev1.PodSucceeded
	if err := cp.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	tn.wantUsed(hard(string(gpuKey), "2", string(claimsKey), "1"))
}

// Bypass: a template is small when the pod is admitted and large when its claim is made.
func TestABypassByAReplacedTemplateIsDeniedAtTheClaim(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	ns := tn.namespaces[0]
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "gpu"}}
	template.Spec.Spec = claim(ns, "", "gpu.nvidia.com", 1).Spec
	create(t, template)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "small"}, Spec: corev1.PodSpec{
		Containers:     []corev1.Container{{Name: "c", Image: "example.com/none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}}}
	create(t, pod)
	if err := cp.Client.Delete(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	// the claim controller makes the claim from what the template is now
	c := claim(ns, "small-gpu-x", "gpu.nvidia.com", 8)
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
	wantDenied(t, cp.Client.Create(t.Context(), c), "requested: "+string(gpuKey)+"=8")
	tn.wantUsed(hard(string(gpuKey), "0"))
}

// Bypass: another class on the same devices.
func TestABypassByAnotherClassIsSeenByASelectorKey(t *testing.T) {
	other := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "other-name-for-gpus"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`}}}}}
	create(t, other)
	t.Cleanup(func() {
		if err := cp.Client.Delete(context.Background(), other); err != nil {
			t.Error(err)
		}
	})
	tn := newTenant(t, 1, hard(string(gpuKey), "10"))
	key := "whole.selector.devicequota.io/devices"
	tn.annotate(map[string]string{"selector.devicequota.io/whole": `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`},
		hard(string(gpuKey), "10", key, "2"))
	create(t, claim(tn.namespaces[0], "one", "gpu.nvidia.com", 1))
	create(t, claim(tn.namespaces[0], "two", "other-name-for-gpus", 1))
	tn.wantUsed(hard(string(gpuKey), "1", key, "2"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "three", "other-name-for-gpus", 1)), key)
	harness.Eventually(t, "the condition AliasedKey", func(ctx context.Context) error {
		l, err := tn.ledger(ctx)
		if err != nil {
			return err
		}
		for _, c := range l.Status.Conditions {
			if c.Type == v1alpha1.ConditionAliasedKey && c.Key == string(gpuKey) && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, other.Name) {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", l.Status.Conditions)
	})
}

// Bypass: labels and annotations that a tenant can set on claims, templates and pods.
func TestABypassByWhatATenantCanWriteIsChargedInFull(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	c := claim(tn.namespaces[0], "dressed-up", "gpu.nvidia.com", 2)
	c.Labels = map[string]string{"kubernetes.io/metadata.name": "kube-system", "devicequota.io/exempt": "true", "openshift.io/run-level": "0"}
	c.Annotations = map[string]string{"devicequota.io/enforcement": "Audit", "devicequota.io/true-down": "Always", "devicequota.io/footprint": `{"devices":"0"}`,
		resourceapi.PodResourceClaimAnnotation: "gpu"}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "none", UID: types.UID("11111111-2222-3333-4444-555555555555"), Controller: ptr.To(true)}}
	create(t, c)
	tn.wantUsed(hard(string(gpuKey), "2"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "more", "gpu.nvidia.com", 1)), "exceeded quota")
}
