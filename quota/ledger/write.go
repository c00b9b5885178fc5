package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
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
			return p.changed()
		}
	}
	return false
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
