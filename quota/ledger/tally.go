package ledger

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// tally is what a ledger's use and holds count together. It answers quota.Fits for most
// requests without adding up all holds again for each request of a batch.
type tally struct {
	sum corev1.ResourceList
	// names are those of claims that are held: another hold of the name would count as their maximum.
	names map[types.NamespacedName]bool
	uids  map[types.UID]bool
}

func newTally(l *v1alpha1.DeviceLedgerStatus) *tally {
	t := &tally{sum: quota.Add(l.Used, quota.HoldSum(l.Holds, "", nil, false)), names: map[types.NamespacedName]bool{}, uids: map[types.UID]bool{}}
	for i := range l.Holds {
		t.note(&l.Holds[i])
	}
	return t
}

func (t *tally) note(h *v1alpha1.Hold) {
	t.uids[h.UID] = true
	if h.Kind == v1alpha1.HoldClaim && !h.Advisory {
		t.names[types.NamespacedName{Namespace: h.Namespace, Name: h.Name}] = true
	}
}

// plain returns true if the hold counts by itself: no other of its UID or name is held.
func (t *tally) plain(h *v1alpha1.Hold) bool {
	return !h.Advisory && h.PodUID == "" && !t.uids[h.UID] &&
		(h.Kind == v1alpha1.HoldPod || !t.names[types.NamespacedName{Namespace: h.Namespace, Name: h.Name}])
}

// exceeded is quota.Fits for a plain hold.
func (t *tally) exceeded(l *v1alpha1.DeviceLedgerStatus, h *v1alpha1.Hold) []corev1.ResourceName {
	var out []corev1.ResourceName
	for k, q := range h.Charge {
		limit, limited := l.Hard[k]
		if !limited || q.Sign() <= 0 {
			continue
		}
		sum := q.DeepCopy()
		sum.Add(t.sum[k])
		if sum.Cmp(limit) > 0 {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// add counts a plain hold.
func (t *tally) add(h *v1alpha1.Hold) {
	quota.AddTo(t.sum, h.Charge)
	t.note(h)
}

// fits returns the keys that the hold would exceed.
func (p *plan) fits(h *v1alpha1.Hold) []corev1.ResourceName {
	l := &p.next.Status
	if p.tally == nil {
		p.tally = newTally(l)
	}
	if p.tally.plain(h) {
		return p.tally.exceeded(l, h)
	}
	return quota.Fits(l, *h, h.Advisory)
}
