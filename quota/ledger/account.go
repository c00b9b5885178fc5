package ledger

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// account is one quota as this replica sees it: what waits to be written to its ledger, and
// what the replica remembers of it.
type account struct {
	l    *Ledger
	name string

	mu sync.Mutex // protects following
	// queue waits for the committer, in arrival order.
	queue []*entry
	// committing is true while the committer runs.
	committing bool
	// known is the newest ledger that this replica read or wrote. It is never changed.
	known *v1alpha1.DeviceLedger
	// knownAt is when this replica first knew that state of it.
	knownAt time.Time
	// seen is when this replica first saw each hold of known, and of the ledger that it read last,
	// by its own monotonic clock.
	// hold UID -> time
	seen map[types.UID]time.Time
	// heldAt is when this replica last saw a new hold, gap how long after the one before.
	heldAt time.Time
	gap    time.Duration
	// written is the state that this replica wrote last, othersAt when it last met one that it
	// had not written.
	written  version
	othersAt time.Time
	// marked is the ledger that is rebuilding, markedAt when this replica first saw that.
	marked   types.UID
	markedAt time.Time
	// ahead are the versions of a ledger that this replica's caches have not reached, aheadAt
	// when it first met them.
	ahead   quota.Vector
	aheadAt time.Time
	// own are the holds this replica wrote, until they are observed or old.
	// hold UID -> hold
	own map[types.UID]ownHold
	// young is a ledger that this replica created for a quota too young to have had one.
	young version
	// quota is the newest that this replica knows.
	quota *quota.Quota
}

// ownHold is a hold this replica wrote, and the ledger it wrote it to.
type ownHold struct {
	hold   v1alpha1.Hold
	ledger types.UID
	at     time.Time
}

// version identifies one state of one ledger.
type version struct {
	uid             types.UID
	resourceVersion string
}

func versionOf(l *v1alpha1.DeviceLedger) version { return version{l.UID, l.ResourceVersion} }

// newer returns true if a is a later state than b. Versions of one resource compare also
// across objects of one name.
func newer(a, b *v1alpha1.DeviceLedger) bool {
	va, errA := quota.ParseVersion(a.ResourceVersion)
	vb, errB := quota.ParseVersion(b.ResourceVersion)
	return errA != nil || errB != nil || va > vb
}

// see remembers that the ledger was read or written now: when its holds and its rebuilding
// mark were first seen. Only the committer replaces known.
func (a *account) see(l *v1alpha1.DeviceLedger, replace bool) {
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	holds := l.Status.Holds
	switch {
	case replace:
		if a.known == nil || versionOf(a.known) != versionOf(l) {
			a.knownAt = now
		}
		a.known = l
	case a.known != nil:
		holds = slices.Concat(holds, a.known.Status.Holds)
	}
	seen := make(map[types.UID]time.Time, len(holds))
	fresh := false
	for i := range holds {
		uid := holds[i].UID
		if at, ok := a.seen[uid]; ok {
			seen[uid] = at
		} else {
			seen[uid] = now
			fresh = true
		}
	}
	a.seen = seen
	if fresh {
		a.gap, a.heldAt = now.Sub(a.heldAt), now
	}
	if l.Status.Rebuilding && a.marked != l.UID {
		a.marked, a.markedAt = l.UID, now
	}
}

// wrote remembers the state that this replica wrote.
func (a *account) wrote(l *v1alpha1.DeviceLedger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written = versionOf(l)
}

// meet remembers whether somebody else has written the ledger that was read.
func (a *account) meet(l *v1alpha1.DeviceLedger) {
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if versionOf(l) != a.written {
		a.othersAt = now
	}
}

// knewBefore returns true if this replica knew that state of the ledger before t.
func (a *account) knewBefore(l *v1alpha1.DeviceLedger, t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known != nil && versionOf(a.known) == versionOf(l) && a.knownAt.Before(t)
}

// cacheLag is longer than any cache is behind: its watch is begun anew every ten minutes.
// Source: MinWatchTimeout in k8s.io/client-go/tools/cache/reflector.go (v0.37).
const cacheLag = 15 * time.Minute

// aheadLong returns true if the ledger was ahead of this replica's caches, at the same versions,
// for so long that no other replica's cache can be the reason.
func (a *account) aheadLong(stored quota.Vector) bool {
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.aheadAt.IsZero() || a.ahead != stored {
		a.ahead, a.aheadAt = stored, now
	}
	return now.Sub(a.aheadAt) >= cacheLag
}

// forget remembers that there is no ledger.
func (a *account) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = nil
	a.seen = nil
}

// newest returns l or the known ledger, whichever is newer; either may be nil.
func (a *account) newest(l *v1alpha1.DeviceLedger) *v1alpha1.DeviceLedger {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l == nil || a.known != nil && !newer(l, a.known) {
		return a.known
	}
	return l
}

// latest returns the newest ledger that this replica read or wrote for a commit; nil when none.
func (a *account) latest() *v1alpha1.DeviceLedger { return a.newest(nil) }

// aged returns the question whether a hold may end unobserved in an observation begun then.
func (a *account) aged(begun time.Time) func(types.UID) bool {
	return func(uid types.UID) bool {
		if begun.IsZero() {
			return false
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		at, ok := a.seen[uid]
		return ok && !begun.Before(at.Add(a.l.o.HoldAge))
	}
}

// lingersUntil returns until when the hold may stay in the ledger after its object was observed;
// zero when no other admission is to be expected so soon, which would end it.
func (a *account) lingersUntil(uid types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.seen[uid]
	if !ok || a.gap > a.l.o.Linger {
		return time.Time{}
	}
	return at.Add(a.l.o.Linger)
}

// unmarked returns true if an observation begun then ends the ledger's rebuilding mark.
func (a *account) unmarked(ledger types.UID, begun time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.marked == ledger && !begun.IsZero() && !begun.Before(a.markedAt.Add(a.l.o.HoldAge))
}

// markDue returns when an observation begun then ends the ledger's rebuilding mark; zero when
// this replica has not seen the mark.
func (a *account) markDue(ledger types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.marked != ledger {
		return time.Time{}
	}
	return a.markedAt.Add(a.l.o.HoldAge)
}

// due returns when the ledger wants a live observation because something is old: the mark or
// the oldest of its holds; zero when nothing will be.
func (a *account) due(l *v1alpha1.DeviceLedger) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var first time.Time
	if l.Status.Rebuilding && a.marked == l.UID {
		first = a.markedAt
	}
	for i := range l.Status.Holds {
		if at, ok := a.seen[l.Status.Holds[i].UID]; ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return first
	}
	return first.Add(a.l.o.HoldAge)
}

// remember keeps the holds that were just written to the ledger, and forgets those that are
// old or in gone, and those that ended in the same ledger, whoever ended them: what was observed
// is found again by the live observation that a lost ledger is rebuilt from.
func (a *account) remember(stored *v1alpha1.DeviceLedger, written []v1alpha1.Hold, gone map[types.UID]bool) {
	now := a.l.o.Clock.Now()
	held := make(map[types.UID]bool, len(stored.Status.Holds))
	for i := range stored.Status.Holds {
		held[stored.Status.Holds[i].UID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, h := range a.own {
		if gone[uid] || h.ledger == stored.UID && !held[uid] || now.Sub(h.at) >= a.l.o.HoldAge {
			delete(a.own, uid)
		}
	}
	if a.own == nil {
		a.own = map[types.UID]ownHold{}
	}
	for _, h := range written {
		at := now
		if old, ok := a.own[h.UID]; ok {
			at = old.at
		}
		a.own[h.UID] = ownHold{hold: h, ledger: stored.UID, at: at}
	}
}

// lost returns the holds that this replica wrote to another ledger than l and that are not
// old: they must be in l. Sorted by UID.
func (a *account) lost(l *v1alpha1.DeviceLedger) []v1alpha1.Hold {
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []v1alpha1.Hold
	for uid, h := range a.own {
		if h.ledger == l.UID || now.Sub(h.at) >= a.l.o.HoldAge || indexOf(l.Status.Holds, uid) >= 0 {
			continue
		}
		out = append(out, *h.hold.DeepCopy())
	}
	slices.SortFunc(out, func(x, y v1alpha1.Hold) int {
		if x.UID < y.UID {
			return -1
		}
		return 1
	})
	return out
}

// learn keeps the newest quota.
func (a *account) learn(q *quota.Quota) {
	if q == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.quota == nil || q.ResourceVersion > a.quota.ResourceVersion {
		a.quota = q
	}
}

// indexOf returns the index of the hold, -1 when there is none.
func indexOf(holds []v1alpha1.Hold, uid types.UID) int {
	return slices.IndexFunc(holds, func(h v1alpha1.Hold) bool { return h.UID == uid })
}
