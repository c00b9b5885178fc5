package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// errGone: there is neither a ledger nor a quota of that name.
var errGone = errors.New("quota is gone")

// create stores the ledger of a quota that has none, counted from a live observation. It is
// marked as rebuilding: what was admitted to an earlier ledger may be on its way. The first
// write ends that when the quota was younger than HoldAge when the ledger was created, both
// by the API server's own timestamps: then there was no time for an earlier ledger.
func (a *account) create(ctx context.Context) (*v1alpha1.DeviceLedger, error) {
	q, err := a.l.view.Quota(ctx, a.name)
	if err != nil {
		return nil, err
	}
	if q == nil {
		return nil, errGone
	}
	s, err := a.l.live.after(ctx, a.l.o.Clock.Now())
	if err != nil {
		return nil, err
	}
	l := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: a.name}}
	finalize(l)
	holds := a.lost(l)
	o := s.Observe(a.name, nil, wanted(holds, nil, nil))
	if o.Quota == nil {
		return nil, errGone
	}
	l.Status.Holds = holds
	l.Status = quota.Settle(l.Status, o, func(types.UID) bool { return false })
	l.Status.Rebuilding = true
	stored, err := a.l.store.Create(ctx, l)
	if err != nil {
		return nil, err
	}
	a.remember(stored, stored.Status.Holds, nil)
	a.wrote(stored)
	if first(stored, o.Quota, a.l.o.HoldAge) {
		a.mu.Lock()
		a.young = versionOf(stored)
		a.mu.Unlock()
	}
	return stored, nil
}

// first returns true if there was no time for an earlier ledger of the quota: its creator ends
// the mark with its next write.
func first(l *v1alpha1.DeviceLedger, q *quota.Quota, age time.Duration) bool {
	return l.CreationTimestamp.Sub(q.Created) < age
}

// finalize makes sure that the ledger stays until Remove.
func finalize(l *v1alpha1.DeviceLedger) {
	if !slices.Contains(l.Finalizers, v1alpha1.LedgerFinalizer) {
		l.Finalizers = append(l.Finalizers, v1alpha1.LedgerFinalizer)
	}
}
