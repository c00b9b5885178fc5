package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota"
)

// Holder is one object that counts against a quota.
type Holder struct {
	Object Ref
	Charge corev1.ResourceList
	// Owner is the controller of the object, empty when there is none.
	Owner string
	// Created, and Deleting since when it is being deleted; zero while it is not.
	Created, Deleting time.Time
	// Allocated and InUse are for claims: it holds devices, and pods have reserved it.
	Allocated, InUse bool
}

// Holders returns the objects that count against the quota, by namespace and name; nil when
// there is no such quota.
func (c *Cluster) Holders(n string) []Holder {
	s := c.state
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[n]
	if a == nil {
		return nil
	}
	s.countLocked(a)
	var out []Holder
	for _, namespace := range slices.Sorted(maps.Keys(a.byNamespace)) {
		for _, o := range s.projects[namespace].objects {
			if charge := quota.Positive(s.effectiveLocked(o, a.quota)); len(charge) > 0 {
				out = append(out, holder(o, charge))
			}
		}
	}
	slices.SortFunc(out, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Object.Namespace, b.Object.Namespace), cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Name, b.Object.Name))
	})
	return out
}

func holder(o *object, charge corev1.ResourceList) Holder {
	h := Holder{Charge: charge}
	var m metav1.Object
	if o.claim != nil {
		m = o.claim
		h.Object = Ref{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}
		h.Allocated, h.InUse = o.claim.Status.Allocation != nil, len(o.claim.Status.ReservedFor) > 0
	} else {
		m = o.pod
		h.Object = Ref{APIVersion: "v1", Kind: "Pod"}
		h.InUse = true
	}
	h.Object.Namespace, h.Object.Name = m.GetNamespace(), m.GetName()
	h.Created = m.GetCreationTimestamp().Time
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		h.Owner = owner.Kind + "/" + owner.Name
	}
	if m.GetDeletionTimestamp() != nil {
		h.Deleting = m.GetDeletionTimestamp().Time
	}
	return h
}

// Now is the cluster's virtual time.
func (c *Cluster) Now() time.Time { return c.clock.Now() }

// Counts tells whether the claim is stored, so that it counts already.
func (c *Cluster) Counts(claim *resourceapi.ResourceClaim) bool {
	return c.state.get(quota.Claims, claim.Namespace, claim.Name) != nil
}
