package envtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

func TestAFootprintThatNobodyTellsIsDenied(t *testing.T) {
	key := "tpu.google.com.deviceclass.devicequota.io/capacity.memory"
	tn := newTenant(t, 1, hard(key, "10Gi"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "c", "tpu.google.com", 1)), "FootprintUnknown", key)
	tn.wantUsed(hard(key, "0"))
}

func TestALimitBelowUseIsWarnedOf(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "3"))
	create(t, claim(tn.namespaces[0], "three", "gpu.nvidia.com", 3))
	tn.wantUsed(hard(string(gpuKey), "3"))
	c, w := warned(t)
	harness.Eventually(t, "the warning, once the manager that is asked knows the usage", func(ctx context.Context) error {
		q := tn.quota(nil)
		if err := c.Get(ctx, client.ObjectKeyFromObject(q), q); err != nil {
			return err
		}
		q.Spec.Quota.Hard = hard(string(gpuKey), "1")
		if err := c.Update(ctx, q, client.DryRunAll); err != nil {
			return err
		}
		if !strings.Contains(w.String(), "BelowUsage") {
			return fmt.Errorf("warnings: %s", w)
		}
		return nil
	})
}

func TestACapacityThatDefaultsToZeroIsWarnedOf(t *testing.T) {
	driver := "zero.example.com"
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}}}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To("gpu-1"), Pool: resourceapi.ResourcePool{Name: "gpu-1", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu-0", AllowMultipleAllocations: ptr.To(true), Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("40Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: ptr.To(resource.MustParse("0")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0"))}}}}}}}}
	for _, o := range []client.Object{class, slice} {
		create(t, o)
		t.Cleanup(func() {
			if err := cp.Client.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
	}
	c, w := warned(t)
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "zero-default"}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": "nobody"}}
	q.Spec.Quota.Hard = hard(driver+".deviceclass.devicequota.io/capacity.memory", "10Gi")
	harness.Eventually(t, "the warning, once the devices are known", func(ctx context.Context) error {
		if err := c.Create(ctx, q.DeepCopy(), client.DryRunAll); err != nil {
			return err
		}
		if !strings.Contains(w.String(), "ZeroDefault") {
			return fmt.Errorf("warnings: %s", w)
		}
		return nil
	})
}

// Bypass: a template whose metadata makes its claims look like the scheduler's for a charged pod.
func TestABypassByATemplatesMetadataIsChargedBesideThePod(t *testing.T) {
	cfg, _, err := cp.User("system:serviceaccount:kube-system:resource-claim-controller", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	controller, err := client.New(cfg, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	tn := newTenant(t, 1, hard(string(gpuKey), "3"))
	pod := extendedPod(tn.namespaces[0], "gpus", "2")
	create(t, pod)
	made := func(name string, count int64) *resourceapi.ResourceClaim {
		c := claim(tn.namespaces[0], name, "gpu.nvidia.com", count)
		c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"} // copied from the template
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
		return c
	}
	wantDenied(t, controller.Create(t.Context(), made("two", 2)), "requested: "+string(gpuKey)+"=2")
	if err := controller.Create(t.Context(), made("one", 1)); err != nil {
		t.Fatal(err)
	}
	tn.wantUsed(hard(string(gpuKey), "3"))
}
