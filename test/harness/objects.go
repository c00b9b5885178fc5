package harness

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Claim returns a claim that asks for count devices of a class, in a request "r0".
func Claim(namespace, name, class string, count int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name:    "r0",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
}

// Ledger returns the stored ledger of a quota.
func (c *ControlPlane) Ledger(ctx context.Context, quota string) (*v1alpha1.DeviceLedger, error) {
	l := &v1alpha1.DeviceLedger{}
	return l, c.Client.Get(ctx, client.ObjectKey{Name: quota}, l)
}
