package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota/cluster"
)

// allocated returns the names of the claim's devices.
func allocated(claim *resourceapi.ResourceClaim) []string {
	if claim.Status.Allocation == nil {
		return nil
	}
	var names []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		names = append(names, r.Device)
	}
	return names
}

func wantAllocated(claim *resourceapi.ResourceClaim, want int) error {
	stored := &resourceapi.ResourceClaim{}
	if err := cp.Client.Get(context.Background(), client.ObjectKeyFromObject(claim), stored); err != nil {
		return err
	}
	got := allocated(stored)
	if len(got) != want {
		return fmt.Errorf("%s: want %d devices, got %v", claim.Name, want, got)
	}
	if want > 0 && !slices.Contains(stored.Finalizers, resourceapi.Finalizer) {
		return fmt.Errorf("%s: allocated without finalizer", claim.Name)
	}
	return nil
}

func TestPendingClaimsAreAllocatedOldestFirstAndReleased(t *testing.T) {
	for _, version := range []string{devices.V1, devices.V1beta2, devices.V1beta1} {
		t.Run(version, func(t *testing.T) {
			s := newScene(t, "alloc-"+version, 1, 3)
			r := newReplica(t, version, cluster.Kubernetes)
			r.allocate()
			first, second := s.claim(0, "first", 2), s.claim(0, "second", 1)
			r.eventually("both allocated", func() error {
				if err := wantAllocated(first, 2); err != nil {
					return err
				}
				return wantAllocated(second, 1)
			})
			third := s.claim(0, "third", 2)
			if err := cp.Client.Delete(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			r.eventually("first is gone", func() error {
				if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(first), &resourceapi.ResourceClaim{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("still there: %v", err)
				}
				return nil
			})
			r.eventually("third takes its devices", func() error { return wantAllocated(third, 2) })
		})
	}
}

func TestAPendingClaimIsAllocatedWhenDevicesCome(t *testing.T) {
	s := newScene(t, "devices-come", 1, 1)
	r := newReplica(t, "", cluster.Kubernetes)
	r.allocate()
	claim := s.claim(0, "big", 3)
	small := s.claim(0, "small", 1)
	r.eventually("the one that fits is not held up", func() error { return wantAllocated(small, 1) })
	if err := wantAllocated(claim, 0); err != nil {
		t.Error(err)
	}
	slice := &resourceapi.ResourceSlice{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, slice); err != nil {
		t.Fatal(err)
	}
	slice.Spec.Devices = s.slice(4).Spec.Devices
	slice.Spec.Pool.Generation++
	if err := cp.Client.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	r.eventually("allocated", func() error { return wantAllocated(claim, 3) })
}

func TestAReservedClaimIsNotReleased(t *testing.T) {
	s := newScene(t, "reserved", 1, 1)
	r := newReplica(t, "", cluster.Kubernetes)
	r.allocate()
	claim := s.claim(0, "used", 1)
	r.eventually("allocated", func() error { return wantAllocated(claim, 1) })
	if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	if err := cp.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if err := cp.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	// Another claim waits for the device: when its pass is over, the first must still hold it.
	other := s.claim(0, "waits", 1)
	r.eventually("deletion is seen", func() error {
		c := r.view.Claim(s.project(0), "used")
		if c == nil || c.DeletionTimestamp == nil {
			return fmt.Errorf("claim: %v", c)
		}
		return nil
	})
	if err := wantAllocated(claim, 1); err != nil {
		t.Error(err)
	}
	if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = nil
	if err := cp.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	r.eventually("released to the other", func() error { return wantAllocated(other, 1) })
}
