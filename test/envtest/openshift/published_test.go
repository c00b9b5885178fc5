package openshift

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota"
)

// platformAccepts asks the API server whether the lists are valid in a quota's status.
// OpenShift validates ClusterResourceQuotas, spec and status, with the functions that
// kube-apiserver has for ResourceQuota, so a ResourceQuota asks the same question.
//
// Source: openshift-kube-apiserver/admission/customresourcevalidation/clusterresourcequota/validation
// in openshift/kubernetes (4.21).
func platformAccepts(ctx context.Context, name string, status corev1.ResourceQuotaStatus) error {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "sandbox", Name: name}}
	q.Spec.Hard = status.Hard
	if err := cp.Client.Create(ctx, q); err != nil {
		return fmt.Errorf("hard: %w", err)
	}
	q.Status = status
	if err := cp.Client.Status().Update(ctx, q); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	return nil
}

func TestThePlatformsValidationAcceptsWhatIsPublished(t *testing.T) {
	const (
		migCounter  = corev1.ResourceName(migClass + ".deviceclass.devicequota.io/counter.memory")
		migCopies   = corev1.ResourceName(migClass + ".deviceclass.devicequota.io/capacity.copyEngines")
		domain      = corev1.ResourceName(gpuClass + ".deviceclass.devicequota.io/capacity.gpu.nvidia.com_memory")
		bigDevices  = corev1.ResourceName("big.selector.devicequota.io/devices")
		bigCapacity = corev1.ResourceName("big.selector.devicequota.io/capacity.memory")
	)
	hard := amounts(gpuKey, 5, memoryKey, "400Gi", domain, "400Gi", migCounter, "80Gi", migCopies, 14, bigDevices, 9, bigCapacity, "1Ti",
		claimsKey, 100, nativeGPUKey, 5, "requests.nvidia.com/gpu", 5, "pods", 10)
	tn := newTenant(t, "published", 2, hard, map[string]string{
		"selector.devicequota.io/big": `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
	})
	create(t, claim(tn.projects[0], "gpu", gpuClass, 2))
	create(t, claim(tn.projects[1], "mig", migClass, 1))
	tn.wantUsed(map[string]corev1.ResourceList{
		tn.projects[0]: amounts(gpuKey, 2, memoryKey, "160Gi", domain, "160Gi", bigDevices, 2, bigCapacity, "160Gi"),
		tn.projects[1]: amounts(migCounter, "40192Mi", migCopies, 7),
	})

	l, err := tn.ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	published := map[string]corev1.ResourceQuotaStatus{"ledger": {Hard: l.Status.Hard, Used: l.Status.Used}}
	views, err := tn.views(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for project, a := range views {
		published[project+"-total"] = a.Status.Total
		published[project+"-own"] = a.Status.Namespaces[0].Status
	}
	if len(published) != 5 {
		t.Fatalf("published: %v", published)
	}
	for name, status := range published {
		if err := platformAccepts(t.Context(), name, status); err != nil {
			t.Errorf("%s: %v: %s", name, err, quota.Format(status.Used))
		}
		for k := range status.Used {
			if _, limited := hard[k]; !limited {
				t.Errorf("%s: %q is not a key of the quota", name, k)
			}
		}
		// What the platform counts is not ours to tell.
		for _, k := range []corev1.ResourceName{claimsKey, nativeGPUKey, "requests.nvidia.com/gpu", "pods"} {
			if v, told := status.Used[k]; told {
				t.Errorf("%s: used[%s] is told: %s", name, k, v.String())
			}
		}
	}
	wantCleanAudit(t)
}

func TestThePlatformsValidationIsTheOneMeant(t *testing.T) {
	for name, used := range map[string]corev1.ResourceList{
		"negative":      amounts(gpuKey, -1),
		"fractional":    amounts(gpuKey, "500m"),
		"unqualified":   amounts("gpus", 1),
		"not-a-name":    amounts("not a key!/devices", 1),
		"long-capacity": amounts(gpuClass+".deviceclass.devicequota.io/capacity.a123456789b123456789c123456789d123456789e123456789f123456789", 1),
	} {
		err := platformAccepts(t.Context(), name, corev1.ResourceQuotaStatus{Hard: amounts(gpuKey, 1), Used: used})
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: want it to be refused as invalid, got %v", name, err)
		}
	}
}
