package webhooks

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

func TestAServerWithNothingButV1beta1IsServed(t *testing.T) {
	old, err := harness.Start(harness.Options{Flags: map[string]string{
		"runtime-config": "resource.k8s.io/v1=false,resource.k8s.io/v1beta2=false,resource.k8s.io/v1beta1=true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := old.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := old.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := old.StartManager(t.Context(), harness.ManagerOptions{Args: []string{"--shutdown-delay=0s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	create(t, old.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "old", Labels: map[string]string{"team": "old"}}})
	create(t, old.Client, &resourcev1beta1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	create(t, old.Client, newQuota("old", devicesKey, "4"))
	harness.Eventually(t, "quota in force", func(ctx context.Context) error {
		return old.Client.Get(ctx, client.ObjectKey{Name: "old"}, &v1alpha1.DeviceLedger{})
	})
	claim := func(name string, count int64) *resourcev1beta1.ResourceClaim {
		return &resourcev1beta1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "old", Name: name},
			Spec: resourcev1beta1.ResourceClaimSpec{Devices: resourcev1beta1.DeviceClaim{Requests: []resourcev1beta1.DeviceRequest{
				{Name: "r", DeviceClassName: "gpu", AllocationMode: resourcev1beta1.DeviceAllocationModeExactCount, Count: count}}}}}
	}
	create(t, old.Client, claim("three", 3))
	err = old.Client.Create(t.Context(), claim("two", 2))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: old, requested: "+devicesKey+"=2, used: "+devicesKey+"=3") {
		t.Errorf("want a denial, got %v", err)
	}
}
