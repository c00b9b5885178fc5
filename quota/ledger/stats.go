package ledger

import (
	"time"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// State returns a ledger in numbers, whoever wrote it; l is as a Store gave it. OldestHold
// tells of the holds that this replica met while it decided: 0 when it met none of them.
func (l *Ledger) State(stored *v1alpha1.DeviceLedger) AccountState {
	s := AccountState{
		Hard: stored.Status.Hard, Used: stored.Status.Used, Held: quota.HoldSum(stored.Status.Holds, "", nil, false),
		Holds: len(stored.Status.Holds), Rebuilding: stored.Status.Rebuilding,
	}
	for i := range stored.Status.Holds {
		if stored.Status.Holds[i].Advisory {
			s.Advisory++
		}
	}
	l.mu.Lock()
	a := l.accounts[stored.Name]
	l.mu.Unlock()
	if a != nil {
		s.OldestHold = a.oldest(stored)
	}
	return s
}

// oldest returns how long ago this replica first saw the oldest hold of the ledger.
func (a *account) oldest(stored *v1alpha1.DeviceLedger) time.Duration {
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	var oldest time.Duration
	for i := range stored.Status.Holds {
		if at, ok := a.seen[stored.Status.Holds[i].UID]; ok {
			oldest = max(oldest, now.Sub(at))
		}
	}
	return oldest
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
