package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// condition sets the ledger's conditions.
func (p *plan) condition(e *entry) {
	if e.conditions == nil || p.look == nil {
		return
	}
	l := &p.next.Status
	now := p.a.l.o.Clock.Now()
	next := e.conditions(p.look.Observed, *l)
	for i := range next {
		c := &next[i]
		c.LastTransitionTime.Time = now.Truncate(time.Second)
		for j := range l.Conditions {
			old := &l.Conditions[j]
			if old.Type == c.Type && old.Key == c.Key && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	l.Conditions = next
}

// worthWriting returns true if the plan has to be stored before its outcomes are true. live
// tells that base was read live in this try: then holds that it has already are stored. A settle
// alone is left to those who ask for one.
func (p *plan) worthWriting(batch []*entry, live bool) bool {
	if len(p.added) > 0 {
		return !live || p.changed()
	}
	if len(p.reinserted) > 0 || p.next.Status.Rebuilding != p.base.Status.Rebuilding {
		return true
	}
	for _, e := range batch {
		if e.request == nil {
			return p.changed() && !p.mayLinger()
		}
	}
	return false
}

// mayLinger returns true if writing next may wait, and notes until when: it would only tell that
// the objects of some claims' holds were observed, and the next admission's write, which may be near,
// does so too.
func (p *plan) mayLinger() bool {
	if p.look == nil || p.look.Quota == nil {
		return false // nobody is admitted any more
	}
	was, is := p.base.Status, p.next.Status
	if before, err := quota.StoredVersions(&was); err != nil {
		return false // it is being put right
	} else if now, err := quota.StoredVersions(&is); err != nil || !now.AtLeast(before) {
		return false
	}
	used, now := quota.Add(was.Used, nil), p.a.l.o.Clock.Now()
	was.Holds = nil
	var first time.Time
	for i := range p.base.Status.Holds {
		h := &p.base.Status.Holds[i]
		if indexOf(is.Holds, h.UID) >= 0 {
			was.Holds = append(was.Holds, *h)
			continue
		}
		until := p.a.lingersUntil(h.UID)
		if h.Kind != v1alpha1.HoldClaim || h.Advisory || h.PodUID != "" || !until.After(now) {
			return false
		}
		quota.AddTo(used, h.Charge)
		if first.IsZero() || until.Before(first) {
			first = until
		}
	}
	for k := range is.Hard {
		if n := used[k]; n.Cmp(is.Used[k]) != 0 {
			return false
		}
	}
	was.Used, was.Observed, was.CRQResourceVersion = is.Used, is.Observed, is.CRQResourceVersion
	if first.IsZero() || !equality.Semantic.DeepEqual(was, is) {
		return false
	}
	p.lingers = first
	return true
}

// changed returns true if writing next would tell anybody anything: more than that the same
// is true at newer versions.
func (p *plan) changed() bool {
	if p.base.ResourceVersion == "" || len(p.next.Finalizers) != len(p.base.Finalizers) {
		return true
	}
	was, is := p.base.Status, p.next.Status
	if len(was.Holds) != len(is.Holds) {
		return true
	}
	was.Observed, was.CRQResourceVersion = is.Observed, is.CRQResourceVersion
	return !equality.Semantic.DeepEqual(was, is)
}
