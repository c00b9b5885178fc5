package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Conditions computes a ledger's conditions from what it was settled by. Transition times
// need not be set: a condition whose status did not change keeps its own. It must return at once.
type Conditions func(o quota.Observed, l v1alpha1.DeviceLedgerStatus) []v1alpha1.LedgerCondition

// Settled is the result of a Settle.
type Settled struct {
	// Observed is what the ledger was recounted from: the one source for totals and projects.
	Observed quota.Observed
	// Source of Observed.
	Source Source
	// Ledger as stored, or as it was found when nothing had changed; nil when there is neither
	// a quota nor a ledger of that name.
	Ledger *v1alpha1.DeviceLedger
	// Written tells whether something had changed.
	Written bool
	// Again is when the ledger wants to be settled again without any event, because holds linger
	// or grow old, or the rebuilding mark does; 0 when it does not.
	Again time.Duration
}

// Settle recounts the quota's ledger, creating it if it is missing, and writes it if anything
// changed: from the caches, or live when something is old or the caches may not settle.
// conditions may be nil: the ledger keeps its own. The error is an outage or contention; try again.
func (l *Ledger) Settle(ctx context.Context, name string, conditions Conditions) (Settled, error) {
	a := l.account(name)
	out, err := a.submit(&entry{ctx: ctx, arrived: l.o.Clock.Now(), conditions: conditions})
	if err != nil || out.result == gone {
		return Settled{}, err
	}
	if now := l.o.Clock.Now(); out.look == nil || a.isDue(out.ledger, now) {
		s, err := l.live.after(ctx, now)
		if err != nil {
			return Settled{}, err
		}
		out, err = a.submit(&entry{ctx: ctx, arrived: now, sight: s, conditions: conditions})
		if err != nil || out.result == gone {
			return Settled{}, err
		}
	}
	if out.look == nil {
		return Settled{}, errOvertaken
	}
	r := Settled{Observed: out.look.Observed, Source: out.look.source, Ledger: out.ledger, Written: out.written}
	due := a.due(out.ledger)
	if !out.lingers.IsZero() && (due.IsZero() || out.lingers.Before(due)) {
		due = out.lingers
	}
	if !due.IsZero() {
		r.Again = max(due.Sub(l.o.Clock.Now()), l.o.LiveInterval)
	}
	return r, nil
}

// errOvertaken: another replica settled by what this one has not seen yet.
var errOvertaken = errors.New("ledger was settled by a newer observation")

// isDue returns true if something in the ledger is old: a live observation begun now ends it.
func (a *account) isDue(l *v1alpha1.DeviceLedger, now time.Time) bool {
	due := a.due(l)
	return !due.IsZero() && !now.Before(due)
}

// Remove deletes the ledger of a quota that is gone, once its holds have ended. done is true
// when there is no such ledger anymore; false when holds remain or the quota is back: then
// again is when to ask again, 0 for never (the quota is back).
func (l *Ledger) Remove(ctx context.Context, name string) (done bool, again time.Duration, err error) {
	q, err := l.view.Quota(ctx, name)
	if err != nil || q != nil {
		return false, 0, err
	}
	stored, err := l.store.GetLive(ctx, name)
	if errors.Is(err, ErrNotFound) {
		l.Forget(name)
		return true, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	if len(stored.Status.Holds) > 0 {
		s, err := l.Settle(ctx, name, nil)
		if err != nil {
			return false, 0, err
		}
		if s.Ledger == nil {
			return true, 0, nil
		}
		if stored = s.Ledger; len(stored.Status.Holds) > 0 {
			return false, s.Again, nil
		}
	}
	err = l.store.Delete(ctx, stored)
	if err == nil || errors.Is(err, ErrNotFound) {
		l.Forget(name)
		return true, 0, nil
	}
	if errors.Is(err, ErrConflict) {
		return false, l.o.LiveInterval, nil // somebody adopted it, or settled it: look again
	}
	return false, 0, err
}

// Forget drops what this replica remembers of a ledger that is gone, unless somebody waits for
// it. Without it every quota that ever was takes a little memory.
func (l *Ledger) Forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[name]
	if a == nil {
		return
	}
	a.mu.Lock()
	idle := !a.committing
	a.mu.Unlock()
	if idle {
		delete(l.accounts, name)
	}
}
