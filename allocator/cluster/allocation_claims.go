package cluster

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// snapshot returns the claims in the order in which they are allocated.
func (a *Allocation) snapshot() ([]*resourceapi.ResourceClaim, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	claims := make([]*resourceapi.ResourceClaim, 0, len(a.claims))
	for _, claim := range a.claims {
		claims = append(claims, claim)
	}
	slices.SortFunc(claims, func(x, y *resourceapi.ResourceClaim) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	for uid := range a.tried {
		if _, exists := a.claims[uid]; !exists {
			delete(a.tried, uid)
		}
	}
	return claims, a.freed
}

// setLocked keeps the claim unless a newer version of it is known, as after own writes.
func (a *Allocation) setLocked(claim *resourceapi.ResourceClaim) {
	key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	if uid, ok := a.names[key]; ok && uid != claim.UID {
		a.removeLocked(uid)
	}
	old := a.claims[claim.UID]
	if old != nil {
		before, errBefore := parseVersion(old)
		after, errAfter := parseVersion(claim)
		if errBefore == nil && errAfter == nil && after <= before {
			return
		}
		if old.Status.Allocation != nil && claim.Status.Allocation == nil {
			a.freed++
		}
	}
	a.claims[claim.UID], a.names[key] = claim, claim.UID
}

func (a *Allocation) removeLocked(uid types.UID) {
	claim := a.claims[uid]
	if claim == nil {
		return
	}
	if claim.Status.Allocation != nil {
		a.freed++
	}
	delete(a.claims, uid)
	delete(a.names, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
}

// claimTarget feeds the claims.
type claimTarget struct{ a *Allocation }

func (t claimTarget) Set(obj client.Object, _ uint64) {
	if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
		t.a.mu.Lock()
		t.a.setLocked(claim)
		t.a.mu.Unlock()
		t.a.kick()
	}
}

func (t claimTarget) Delete(obj client.Object, _ uint64) {
	t.a.mu.Lock()
	t.a.removeLocked(obj.GetUID())
	t.a.mu.Unlock()
	t.a.kick()
}

func (t claimTarget) Replace(objs []client.Object, _ uint64) {
	t.a.mu.Lock()
	listed := make(map[types.UID]bool, len(objs))
	for _, obj := range objs {
		listed[obj.GetUID()] = true
		if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
			t.a.setLocked(claim)
		}
	}
	for uid := range t.a.claims {
		if !listed[uid] {
			t.a.removeLocked(uid)
		}
	}
	t.a.mu.Unlock()
	t.a.kick()
}

func (t claimTarget) Bookmark(uint64) {}
