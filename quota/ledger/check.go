package ledger

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Check decides a request from what this replica knows and writes nothing. Denied means that
// it can never fit: its charge alone exceeds hard (after a live read of the quota), or is
// unknown. What does not fit now is in NotNow. It never waits and is never Busy.
func (l *Ledger) Check(ctx context.Context, r Request) (Decision, error) {
	r.DryRun = true
	a := &admission{l: l, r: r}
	if err := a.cover(ctx); err != nil {
		return Decision{}, err
	}
	for {
		if err := a.charge(); err != nil {
			return Decision{}, err
		}
		denials, again, err := a.hopeless(ctx)
		if err != nil {
			return Decision{}, err
		}
		if again {
			continue
		}
		if err := a.try(ctx); err != nil {
			return Decision{}, err
		}
		d := a.decision(Allowed)
		d.NotNow = a.notNow(denials)
		if len(denials) > 0 {
			d.Verdict, d.Denials = Denied, denials
		}
		return d, nil
	}
}

// notNow returns the enforcing quotas, other than those that deny, that the request does not
// fit now. A ledger that cannot tell says nothing.
func (a *admission) notNow(denials []quota.Denial) []quota.Denial {
	denied := map[string]bool{}
	for _, d := range denials {
		denied[d.Quota] = true
	}
	var out []quota.Denial
	for _, c := range a.covers {
		if !c.enforced() || denied[c.quota.Name] || c.out.result != short {
			continue
		}
		var used corev1.ResourceList
		if c.out.ledger != nil {
			used = c.out.ledger.Status.Used
		}
		out = append(out, quota.Deny(c.quota.Name, c.out.exceeded, c.charge, used, c.quota.Hard, nil, nil))
	}
	return out
}

// trial decides the entry by the newest ledger known and writes nothing. Where there is no
// ledger yet it decides by the caches alone.
func (a *account) trial(ctx context.Context, e *entry) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, a.l.o.StoreTimeout)
	defer cancel()
	base, err := a.l.store.Get(ctx, a.name)
	if errors.Is(err, ErrNotFound) {
		base, err = a.l.store.GetLive(ctx, a.name)
	}
	switch {
	case err == nil:
		base = a.newest(base)
	case errors.Is(err, ErrNotFound):
		base = &v1alpha1.DeviceLedger{}
		base.Name = a.name
	default:
		return outcome{}, err
	}
	a.see(base, false)
	return a.newPlan(base, []*entry{e}).outcomes[0], nil
}
