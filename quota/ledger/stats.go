package ledger

import (
	"time"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// state returns the ledger in numbers.
func (a *account) state(l *v1alpha1.DeviceLedger) AccountState {
	s := AccountState{
		Hard: l.Status.Hard, Used: l.Status.Used, Held: quota.HoldSum(l.Status.Holds, "", nil, false),
		Holds: len(l.Status.Holds), Rebuilding: l.Status.Rebuilding,
	}
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range l.Status.Holds {
		h := &l.Status.Holds[i]
		if h.Advisory {
			s.Advisory++
		}
		if at, ok := a.seen[h.UID]; ok {
			s.OldestHold = max(s.OldestHold, now.Sub(at))
		}
	}
	return s
}

// lag returns the longest time that a hold which the plan ends by observation had waited.
func (a *account) lag(p *plan) time.Duration {
	now := a.l.o.Clock.Now()
	var lag time.Duration
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, at := range a.seen {
		if p.look.Present[uid] {
			lag = max(lag, now.Sub(at))
		}
	}
	return lag
}
