package ledger

import (
	"fmt"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// The invariants over what is true, which no Ledger can see.

// put is told of every write: 1 (never over) for the holds that it adds, 5 (coverage).
func (m *model) put(r *replica, knew [kinds]watchCache, old, stored *v1alpha1.DeviceLedger) {
	name := stored.Name
	m.learnLimits(stored)
	v := m.contained(stored)
	m.observed[name] = m.observed[name].Max(v)
	var was []v1alpha1.Hold
	if old != nil {
		was = old.Status.Holds
	}
	added, counts := false, false
	for _, h := range stored.Status.Holds {
		if indexOf(was, h.UID) < 0 {
			added = true
			counts = counts || len(quota.Positive(h.Charge)) > 0
			m.checkKeys(stored, h)
		}
	}
	used := stored.Status.Used[keyA]
	m.logf("r%d stored %s@%s: used %s holds %d hard %v rebuilding %v observed %v", r.i, name, stored.ResourceVersion, used.String(),
		len(stored.Status.Holds), quota.Format(stored.Status.Hard), stored.Status.Rebuilding, v[:4])
	if counts && old != nil { // the claim of a pod that pays for it adds nothing, though a limit was lowered meanwhile
		m.checkOver(stored)
	}
	if added && old != nil {
		m.checkCoverage(knew, stored)
	}
}

// contained is a vector up to which the ledger's settle contained everything. What it has
// recorded is more when it was a list of several parts, of which the first was older.
func (m *model) contained(l *v1alpha1.DeviceLedger) quota.Vector {
	v, _ := quota.StoredVersions(&l.Status)
	for _, r := range m.replicas {
		for _, o := range r.live {
			for _, k := range []kind{kClaim, kPod} {
				if newestVersion(o.objs[k]) == v[components[k]] {
					v[components[k]] = min(v[components[k]], o.version[k])
				}
			}
		}
	}
	return v
}

// checkKeys (1): the first time that an object is held it is held for every key that the
// ledger limits. What was held before a key came counts as moved for it.
func (m *model) checkKeys(l *v1alpha1.DeviceLedger, h v1alpha1.Hold) {
	x := m.byUID(h.UID)
	if x == nil {
		return
	}
	_, x.chargedB[l.Name] = h.Charge[keyB]
	if _, limited := l.Status.Hard[keyB]; limited && h.PodUID == "" && !x.chargedB[l.Name] && !m.held[l.Name+string(h.UID)] {
		m.fail("1 over: %s is not held for %s, which %s limits", h.UID, keyB, l.Name)
	}
	m.held[l.Name+string(h.UID)] = true
}

func (m *model) learnLimits(l *v1alpha1.DeviceLedger) {
	rv := termsVersion(&l.Status)
	if k := m.known[l.Name]; k != nil && k.rv >= rv {
		return
	}
	hard := map[string]int64{}
	for k, q := range l.Status.Hard {
		hard[string(k)] = q.Value()
	}
	m.known[l.Name] = &limits{rv, hard}
}

// checkOver (1): when a hold that counts is added, everything charged to the quota that exists or may
// still come to exist fits the newest limits the ledger has known. Of one kind, namespace and
// name the largest counts. Not counted: what moved, and charge above the smallest since the grant.
func (m *model) checkOver(l *v1alpha1.DeviceLedger) {
	if named(m.res[kCRQ].objs, "", l.Name) == nil {
		return
	}
	for key, limit := range m.known[l.Name].hard {
		largest := map[string]int64{}
		for _, r := range m.requests {
			c, counts := m.trueCharge(l, r)
			if !counts || r.taint[l.Name] || key == string(keyB) && !r.chargedB[l.Name] {
				continue
			}
			id := fmt.Sprint(r.kind, r.ns, r.name)
			largest[id] = max(largest[id], c)
		}
		var sum int64
		for _, c := range largest {
			sum += c
		}
		if sum > limit {
			m.fail("1 over: %s of %s: true %d > hard %d (ledger used %v, %d holds)", key, l.Name, sum, limit, quota.Format(l.Status.Used), len(l.Status.Holds))
		}
	}
}

// trueCharge is what a request costs at least, and whether it counts for the ledger's quota.
func (m *model) trueCharge(l *v1alpha1.DeviceLedger, r *modelRequest) (int64, bool) {
	c := r.min
	if r.pod != "" {
		if p := m.byUID(r.pod); p != nil && p.state == persisted {
			c = 0
		}
	}
	switch r.state {
	case granted, persisted:
		return c, r.charged[l.Name]
	case open:
		ns := named(m.res[kNS].objs, "", r.ns)
		return c, indexOf(l.Status.Holds, r.uid) >= 0 && ns.labels[l.Name] != ""
	default:
		return 0, false
	}
}

// checkCoverage (5): a replica that knows a coverage counts what its own caches show there.
func (m *model) checkCoverage(knew [kinds]watchCache, l *v1alpha1.DeviceLedger) {
	v := m.contained(l)
	q := named(knew[kCRQ].objs, "", l.Name)
	if newestVersion(knew[kNS].objs) < v[quota.Namespaces] || q == nil || q.uid != l.Status.CRQUID {
		return
	}
	for _, k := range []kind{kClaim, kPod} {
		for _, o := range knew[k].objs {
			ns := named(knew[kNS].objs, "", o.ns)
			if ns == nil || ns.labels[l.Name] == "" || find(m.res[k].objs, o.uid) == nil || o.crv > v[components[k]] {
				continue
			}
			if !has(l, m.byUID(o.uid)) {
				m.fail("5 coverage: %s is known to be covered with %s in it, ledger %s counts it neither way", o.ns, o.uid, l.Name)
			}
		}
	}
}

// has tells whether the ledger counts the request's object, in used or in holds.
func has(l *v1alpha1.DeviceLedger, r *modelRequest) bool {
	if indexOf(l.Status.Holds, r.uid) >= 0 {
		return true
	}
	ghost := l.Status.Used[keyGhost]
	return ghost.Value()&(1<<r.i) != 0
}

// checkLost (2, 2'), after every step.
func (m *model) checkLost() {
	for q := range m.c.quotas {
		name := quotaName(q)
		l, o := m.ledgers[name], m.quota(q)
		if l == nil || o == nil || l.Status.Rebuilding || o.uid != l.Status.CRQUID {
			continue
		}
		for _, r := range m.requests {
			if r.state != granted && r.state != persisted || !r.charged[name] || r.taint[name] {
				continue
			}
			if p := m.byUID(r.pod); p != nil && (p.state == persisted || has(l, p)) {
				continue
			}
			if !has(l, r) {
				m.fail("2 lost: %s (state %d) is neither in used nor in holds of %s@%s", r.uid, r.state, name, l.ResourceVersion)
			}
		}
		m.checkForgotten(l)
	}
}

// checkForgotten (2'): what was inside an earlier settle, in a namespace whose labels were too.
func (m *model) checkForgotten(l *v1alpha1.DeviceLedger) {
	v := m.observed[l.Name]
	for _, k := range []kind{kClaim, kPod} {
		for _, o := range m.res[k].objs {
			ns := named(m.res[kNS].objs, "", o.ns)
			if o.crv > v[components[k]] || ns.rv > v[quota.Namespaces] || ns.labels[l.Name] == "" {
				continue
			}
			if r := m.byUID(o.uid); !has(l, r) {
				m.fail("2' forgotten: %s was inside an earlier settle of %s (observed %v), now it is neither used nor held", o.uid, l.Name, v[:4])
			}
		}
	}
}

// checkDenied (4): there is a live observation begun after the request arrived by which it
// does not fit, and all that it counted existed at some moment after the request arrived; or
// the charge alone exceeds limits that were true after it arrived.
func (m *model) checkDenied(d *delivery, dec Decision) {
	m.stats["403 checked"]++
	for _, denial := range dec.Denials {
		if !m.justified(d, denial) {
			m.fail("4 false denial: %s/%d by %s: used %s requested %s limited %s", d.r.uid, d.n, denial.Quota,
				quota.Format(denial.Used), quota.Format(denial.Requested), quota.Format(denial.Limited))
		}
	}
}

func (m *model) justified(d *delivery, denial quota.Denial) bool {
	if !m.limitAfter(d, denial) {
		return false
	}
	if len(quota.Exceeding(denial.Requested, denial.Limited)) > 0 {
		return true
	}
	for k, q := range quota.Add(denial.Used, denial.Requested) {
		if limit := denial.Limited[k]; q.Cmp(limit) <= 0 {
			return false
		}
	}
	for _, o := range d.rep.live {
		if o.begun < d.arrived {
			continue
		}
		seen := o.Observe(denial.Quota, nil, nil)
		if quota.Equal(quota.Only(seen.Used, quota.SortedKeys(denial.Used)), denial.Used) && m.existedAfter(d, o, denial.Quota) {
			return true
		}
	}
	return false
}

// limitAfter (4c): the quota had these limits at some moment after the request arrived.
func (m *model) limitAfter(d *delivery, denial quota.Denial) bool {
	for _, spans := range m.spans {
		for _, s := range spans {
			if !s.quota || s.end != 0 && s.end < d.arrived {
				continue
			}
			hard := map[corev1.ResourceName]int64{keyA: s.limitA}
			if s.hasB {
				hard[keyB] = s.limitB
			}
			same := true
			for k, v := range denial.Limited {
				x, ok := hard[k]
				same = same && ok && x == v.Value()
			}
			if same {
				return true
			}
		}
	}
	return false
}

// existedAfter (4, 4d): objects and namespace versions that the observation counted.
func (m *model) existedAfter(d *delivery, o *liveView, name string) bool {
	for _, k := range []kind{kClaim, kPod} {
		for _, x := range o.objs[k] {
			ns := named(o.objs[kNS], "", x.ns)
			if ns == nil || ns.labels[name] == "" {
				continue
			}
			if r := m.byUID(x.uid); r.deleted != 0 && r.deleted < d.arrived {
				return false
			}
			if !m.currentAfter(ns, d.arrived) {
				return false
			}
		}
	}
	return true
}

func (m *model) currentAfter(o *object, seq int) bool {
	for _, s := range m.spans[o.uid] {
		if s.rv == o.rv {
			return s.end == 0 || s.end >= seq
		}
	}
	return false
}

// quiesce (3): nothing new, all watch events but no bookmarks. Then each cache may settle
// (3a), and after the age one replica's settles leave no holds, the true use, the quota's limits.
func (m *model) quiesce() {
	m.quiet()
	for q := range m.c.quotas {
		name, o := quotaName(q), m.quota(q)
		if o == nil || m.err != "" {
			continue
		}
		l := m.replicas[0].ledger
		for range 4 {
			synctest.Wait()
			m.mu.Lock()
			for _, r := range m.replicas {
				for r.ledgerPos < len(m.ledgerL) {
					r.advanceLedger()
				}
			}
			m.mu.Unlock()
			if _, err := l.Settle(m.replicas[0].ctx, name, nil); err != nil {
				m.fail("3 stuck: quiet, but %s cannot be settled: %v", name, err)
			}
			synctest.Wait()
			m.checkCaches(name)
			m.sleep(m.c.age)
		}
		synctest.Wait()
		stored := m.ledgers[name]
		want := m.snapshot().Observe(name, nil, nil).Used
		if stored == nil {
			m.fail("3 stuck: no ledger %s", name)
			continue
		}
		if !quota.Equal(stored.Status.Hard, o.q.Hard) || stored.Status.CRQUID != o.uid {
			m.fail("3h stuck: ledger %s has hard %s, the quota %s", name, quota.Format(stored.Status.Hard), quota.Format(o.q.Hard))
		}
		if len(stored.Status.Holds) > 0 || !quota.Equal(stored.Status.Used, want) || stored.Status.Rebuilding {
			m.fail("3 stuck: ledger %s used %s, recount %s, holds %v, rebuilding %v", name, quota.Format(stored.Status.Used),
				quota.Format(want), stored.Status.Holds, stored.Status.Rebuilding)
		}
	}
	for _, r := range m.replicas {
		r.cancel()
	}
	// Whatever still waits ends now, or the bubble tells what leaks.
	synctest.Wait()
}

// checkCaches (3a): no cache that has everything is kept from settling.
func (m *model) checkCaches(name string) {
	l := m.ledgers[name]
	for _, r := range m.replicas {
		o := (cacheView{&viewOf{r, r.inc}}).snapshot().Observe(name, nil, nil)
		if l != nil && !maySettle(&l.Status, &o) {
			m.fail("3a stuck: quiet and caught up, but the cache of r%d %v may not settle %s, observed %v", r.i, o.Version, name, l.Status.Observed)
		}
	}
}

// quiet ends all that is on its way.
func (m *model) quiet() {
	synctest.Wait()
	m.mu.Lock()
	for _, r := range m.requests {
		if r.state <= granted {
			r.state = dead
		}
	}
	m.free = true
	calls := m.calls
	m.calls = nil
	for _, d := range m.deliveries {
		d.over = true
	}
	m.mu.Unlock()
	for _, c := range calls {
		c.ch <- vApply
	}
	for _, d := range m.deliveries {
		d.cancel()
	}
	synctest.Wait()
	m.mu.Lock()
	m.answers = nil
	m.mu.Unlock()
	for _, r := range m.replicas {
		for k := range kinds {
			for r.c[k].pos < len(m.res[k].log) {
				r.advance(k, false)
			}
			r.c[k].shown = r.c[k].rv
		}
	}
}
