package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// result is what an account says to one entry.
type result int

const (
	// held: the hold is written, or the settle done.
	held result = iota
	// short: it does not fit what the ledger counts.
	short
	// behind: this replica knows newer quotas or namespaces than the ledger, and its caches
	// may not settle it; a live observation can.
	behind
	// outdated: the ledger was made by a newer quota than the charge.
	outdated
	// rebuilding: the ledger was lost and nothing can be admitted yet.
	rebuilding
	// full: the ledger has as many holds as it may.
	full
	// gone: there is no quota of that name.
	gone
)

// outcome is the answer to one entry.
type outcome struct {
	result result
	// exceeded are the keys that do not fit, of a short entry or of one whose quota does not enforce.
	exceeded []corev1.ResourceName
	// ledger that the answer is about, as planned or stored; nil when gone.
	ledger *v1alpha1.DeviceLedger
	// look is what the ledger was settled by; nil when it was not.
	look *look
	// written tells whether there was something to write.
	written bool
	// lingers is until when something may wait to be written, zero when nothing does.
	lingers time.Time
	err     error
}

// look is an observation of one account.
type look struct {
	quota.Observed
	source Source
	// begun is when the observation began, zero when this replica cannot tell: then it ages nothing.
	begun time.Time
}

// plan is what one write to a ledger would be.
type plan struct {
	a    *account
	base *v1alpha1.DeviceLedger
	// next is base as it would be written.
	next *v1alpha1.DeviceLedger
	// look is what next was settled by, nil when it was not.
	look *look
	// behind: next must not admit anything.
	behind bool
	// reinserted are the holds of this replica that base had lost.
	reinserted []v1alpha1.Hold
	// added are the holds of this batch.
	added    []v1alpha1.Hold
	outcomes []outcome
	// tally of next, nil when it has to be made anew.
	tally *tally
	// ordered remembers how the quotas that were charged for compare with next's terms.
	ordered map[*quota.Quota]int
	// aged is how many holds the settle ended that were not observed.
	aged int
	// lingers is until when writing the plan may wait, zero when it may not.
	lingers time.Time
}

// newPlan settles the ledger by the best observation it may be settled by, and decides the
// batch in order.
func (a *account) newPlan(base *v1alpha1.DeviceLedger, batch []*entry) *plan {
	p := &plan{a: a, base: base, next: base.DeepCopy()}
	lost := a.lost(base)
	uids := wanted(base.Status.Holds, lost, batch)
	cached := a.look(base, a.l.view.Cached(), uids)
	cached.source = SourceCache
	a.learn(cached.Quota)
	var live *look
	if s := newestSight(batch); s != nil {
		live = a.look(base, s, uids)
		live.source, live.begun = SourceLive, s.begun
	}
	p.settle(cached, live)
	p.reinsert(lost)
	p.clearMark()
	p.outcomes = make([]outcome, len(batch))
	for i, e := range batch {
		p.outcomes[i] = p.decide(e)
	}
	return p
}

// wanted are the objects of which a settle has to know whether they were observed. Advisory
// holds wait for their pod's claims, not for the pod: they are reduced by them, or end by age.
func wanted(holds, lost []v1alpha1.Hold, batch []*entry) []types.UID {
	uids := make([]types.UID, 0, len(holds)+len(lost)+len(batch))
	for _, list := range [][]v1alpha1.Hold{holds, lost} {
		for i := range list {
			if h := &list[i]; !h.Advisory {
				uids = append(uids, h.UID)
				if h.PodUID != "" {
					uids = append(uids, h.PodUID)
				}
			}
		}
	}
	for _, e := range batch {
		if e.hold.PodUID != "" {
			uids = append(uids, e.hold.PodUID)
		}
	}
	return uids
}

// look observes the account. A quota that is gone is counted by what it last was.
func (a *account) look(base *v1alpha1.DeviceLedger, o Observation, uids []types.UID) *look {
	seen := o.Observe(a.name, nil, uids)
	if seen.Quota == nil && base.Status.CRQUID != "" {
		seen = o.Observe(a.name, a.lastQuota(base), uids)
	}
	return &look{Observed: seen}
}

// lastQuota is the quota that the ledger accounts for, as far as this replica knows.
func (a *account) lastQuota(base *v1alpha1.DeviceLedger) *quota.Quota {
	a.mu.Lock()
	q := a.quota
	a.mu.Unlock()
	if q != nil && sameTerms(q, &base.Status) {
		return q
	}
	return quotaOf(base, a.l.o.PlatformKeys)
}

// newestSight returns the newest live observation that an entry waited for.
func newestSight(batch []*entry) *sight {
	var s *sight
	for _, e := range batch {
		if e.sight != nil && (s == nil || e.sight.begun.After(s.begun)) {
			s = e.sight
		}
	}
	return s
}

// settle picks the observation and settles next by it.
func (p *plan) settle(cached, live *look) {
	l := &p.next.Status
	p.mend(cached, live)
	observed, _ := quota.StoredVersions(l)
	must := cached.Recorded[quota.Namespaces] > observed[quota.Namespaces] ||
		cached.Quota != nil && ordered(cached.Quota, l) > 0
	switch {
	case live != nil && maySettle(l, &live.Observed) && asNewAs(live, cached):
		p.look = live
	case maySettle(l, &cached.Observed):
		p.look = cached
		p.a.date(cached)
	default:
		p.behind = must
		return
	}
	*l = quota.Settle(*l, p.look.Observed, p.a.aged(p.look.begun))
	for i := range p.base.Status.Holds {
		h := &p.base.Status.Holds[i]
		if !p.look.Present[h.UID] && indexOf(l.Holds, h.UID) < 0 {
			p.aged++
		}
	}
}

// mend undoes what only somebody else than a Ledger can have written: terms that the quota of
// that version does not have, and versions that are ahead of a live observation which began
// after this replica knew the ledger. Any observation is better than such a ledger. Where the
// live observation has what a cache had, another replica's cache may be ahead, for a while.
func (p *plan) mend(cached, live *look) {
	l := &p.next.Status
	if cached.Quota != nil && cached.Quota.ResourceVersion == termsVersion(l) && ordered(cached.Quota, l) > 0 {
		l.CRQResourceVersion = ""
	}
	if live == nil || maySettle(l, &live.Observed) || !p.a.knewBefore(p.base, live.begun) {
		return
	}
	stored, _ := quota.StoredVersions(l)
	read := live.Observed
	for c, fromCache := range read.FromCache {
		if fromCache {
			read.Version[c] = max(read.Version[c], stored[c])
		}
	}
	if maySettle(l, &read) && !p.a.aheadLong(stored) {
		return
	}
	l.Observed, l.CRQResourceVersion = v1alpha1.ObservedVersions{}, ""
}

// asNewAs returns true if the live observation is as new as the replica's own cache in quotas
// and namespaces: then settling by it loses no coverage that the replica knows.
func asNewAs(live, cached *look) bool {
	return live.Version[quota.Namespaces] >= cached.Recorded[quota.Namespaces] &&
		(cached.Quota == nil || live.Version[quota.Quotas] >= cached.Quota.ResourceVersion)
}

// date finds when the cached observation is known to have begun: at or above the versions of
// a live one it contains all that the live one did.
func (a *account) date(cached *look) {
	if versions, begun := a.l.live.newest(); !begun.IsZero() && cached.Version.AtLeast(versions) {
		cached.begun = begun
	}
}

// reinsert puts back what this replica wrote to a ledger that is not there anymore.
func (p *plan) reinsert(lost []v1alpha1.Hold) {
	for _, h := range lost {
		if p.look != nil && p.look.Present[h.UID] && !h.Advisory {
			continue
		}
		p.next.Status.Holds = append(p.next.Status.Holds, h)
		p.reinserted = append(p.reinserted, h)
	}
}

// clearMark ends the rebuilding when a live observation that began late enough is carried, or
// when the ledger is the first of a quota.
func (p *plan) clearMark() {
	if !p.next.Status.Rebuilding {
		return
	}
	p.a.mu.Lock()
	young := p.a.young == versionOf(p.base)
	p.a.mu.Unlock()
	late := p.look != nil && p.look.source == SourceLive && p.a.unmarked(p.base.UID, p.look.begun)
	if young || late {
		p.next.Status.Rebuilding = false
	}
}

// decide says whether the entry's hold may be added, and adds it.
func (p *plan) decide(e *entry) outcome {
	out := outcome{ledger: p.next, look: p.look}
	if e.conditions != nil || e.request == nil {
		p.condition(e)
		return out
	}
	if e.enforced() {
		if r := p.obstacle(e); r != held {
			out.result = r
			return out
		}
	}
	h, own := p.counted(e)
	out.exceeded = p.fits(&h)
	switch {
	case e.enforced() && len(out.exceeded) > 0:
		out.result = short
	case own < 0 && p.full(e):
		if e.enforced() {
			out.result = full
		}
	default:
		p.add(e, h, own)
	}
	return out
}

// counted returns the entry's hold as it counts beside what the ledger counts now, and the
// index of its UID's hold, -1 when there is none.
func (p *plan) counted(e *entry) (v1alpha1.Hold, int) {
	holds := p.next.Status.Holds
	h, own := *e.hold.DeepCopy(), indexOf(holds, e.hold.UID)
	if p.look != nil {
		before := holds
		if own >= 0 {
			before = holds[:own]
		}
		h = quota.Counted(h, before, holds, p.look.Observed)
	}
	return h, own
}

// obstacle returns why the ledger cannot decide the entry, held when it can.
func (p *plan) obstacle(e *entry) result {
	l := &p.next.Status
	if l.Rebuilding {
		return rebuilding
	}
	if p.behind || e.hold.PodUID != "" && p.look == nil {
		return behind
	}
	if p.ordered == nil {
		p.ordered = map[*quota.Quota]int{}
	}
	order, ok := p.ordered[e.quota]
	if !ok {
		order = ordered(e.quota, l)
		p.ordered[e.quota] = order
	}
	switch order {
	case 1:
		return behind
	case -1:
		return outdated
	default:
		return held
	}
}

// full returns true if there is no place for another hold, or the entry's project or name has
// its share: whoever tries in vain in a loop, for a name that exists or against another webhook,
// must not keep the other projects waiting.
func (p *plan) full(e *entry) bool {
	holds, most := p.next.Status.Holds, p.a.l.o.MaxHolds
	if len(holds) >= most {
		return true
	}
	if len(holds) < most/nameShare {
		return false
	}
	advisory, project, name := 0, 0, 0
	for i := range holds {
		h := &holds[i]
		if h.Advisory {
			advisory++
		}
		if h.Namespace != e.hold.Namespace {
			continue
		}
		project++
		if h.Name == e.hold.Name {
			name++
		}
	}
	return e.hold.Advisory && advisory >= most/2 || project >= most-most/4 || name >= max(most/nameShare, 1)
}

// add puts the entry's hold into the ledger. A second delivery of one object shares the hold,
// which then counts the larger charge.
func (p *plan) add(e *entry, h v1alpha1.Hold, own int) {
	l := &p.next.Status
	if own >= 0 {
		old := &l.Holds[own]
		if h.PodUID == "" {
			h.Charge = quota.Max(h.Charge, old.Charge)
		}
		l.Holds[own] = h
		p.tally = nil
	} else {
		p.reduce(e)
		l.Holds = append(l.Holds, h)
		if p.tally.plain(&h) {
			p.tally.add(&h)
		} else {
			p.tally = nil
		}
	}
	p.added = append(p.added, h)
}

// reduce takes a claim's charge off the advisory hold of the pod that it was made for.
func (p *plan) reduce(e *entry) {
	if e.request.OwnerPod == "" || e.hold.Advisory {
		return
	}
	l := &p.next.Status
	i := indexOf(l.Holds, e.request.OwnerPod)
	if i < 0 || !l.Holds[i].Advisory {
		return
	}
	rest := quota.Excess(l.Holds[i].Charge, e.hold.Charge)
	if len(rest) == 0 {
		l.Holds = append(l.Holds[:i:i], l.Holds[i+1:]...)
		return
	}
	l.Holds[i].Charge = rest
}
