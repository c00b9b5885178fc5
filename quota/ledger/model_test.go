package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// The model test: real Ledgers over the fake API server of world_test.go, in a bubble with
// fake time. A scheduler takes one step at a time (lets one call go, delivers one watch
// event, persists one object, lets time pass, ...) and after each the invariants are checked
// against what is true (invariants_test.go). Which step comes next is drawn from a seed.

type modelConfig struct {
	name                               string
	replicas, quotas, namespaces       int
	names, maxRequests, maxDeliveries  int
	hard, maxCharge                    int64
	steps                              int
	persist, age                       time.Duration
	relabel, hardChange, keyChange     bool
	recreate, ledgerDelete, bump       bool
	shrink, regrow, pods, ext          bool
	crash, split, faults, noise, marks bool
	background                         bool
	// lean: time passes in whole ages only, to meet the edges of age often.
	lean bool
	// late namespaces are created while requests are answered.
	late int
	// stalled is the one watch of the first replica that stands still: 1 + its kind, 1 + kinds
	// for that of ledgers; 0: none does.
	stalled int
}

func baseConfig() modelConfig {
	return modelConfig{replicas: 2, quotas: 1, namespaces: 2, names: 4, maxRequests: 40, maxDeliveries: 2, hard: 3, maxCharge: 2, steps: 500,
		persist: 5 * time.Second, age: 6 * time.Second, pods: true, crash: true, split: true, faults: true, noise: true, marks: true, background: true}
}

func configOf(name string, f func(*modelConfig)) modelConfig {
	c := baseConfig()
	c.name = name
	f(&c)
	return c
}

type reqState int

const (
	open reqState = iota
	granted
	persisted
	dead
)

// modelRequest is one object that somebody wants to create.
type modelRequest struct {
	i           int
	uid         types.UID
	kind        kind
	ns, name    string
	charge, min int64
	start       time.Time
	pod         types.UID
	state       reqState
	deliveries  int
	// quotas that hold or count it; those that it moved out of, or that never knew.
	charged, taint map[string]bool
	// keyB is charged too, by quota.
	chargedB map[string]bool
	deleted  int // seq
}

// delivery is one admission review.
type delivery struct {
	r       *modelRequest
	n       int
	rep     *replica
	inc     int
	arrived int // seq
	nsRV    uint64
	cancel  context.CancelFunc
	over    bool
}

type answer struct {
	d   *delivery
	dec Decision
	err error
}

type limits struct {
	rv   uint64
	hard map[string]int64 // key -> limit
}

// span is how long a version of a quota or namespace was current; end 0: it still is.
type span struct {
	rv             uint64
	end            int
	quota, hasB    bool
	limitA, limitB int64
}

type model struct {
	*world
	c          modelConfig
	rand       *rand.Rand
	requests   []*modelRequest
	deliveries []*delivery
	answers    []answer
	known      map[string]*limits
	spans      map[types.UID][]span
	observed   map[string]quota.Vector
	bg         map[int]int // running background settles by replica
	removing   map[int]bool
	faulted    map[int]bool
	verdicts   map[*delivery]Verdict
	held       map[string]bool // quota and UID of all that was ever held
	err        string
	stats      map[string]int
	namespaces int // that exist
}

func (m *model) n(n int) int {
	if n <= 1 {
		return 0
	}
	return m.rand.IntN(n)
}

func (m *model) fail(format string, args ...any) {
	if m.err == "" {
		m.err = fmt.Sprintf(format, args...)
		m.logf("VIOLATION %s", m.err)
	}
}

func newModel(c modelConfig, r *rand.Rand) *model {
	m := &model{c: c, rand: r, namespaces: c.namespaces, known: map[string]*limits{}, spans: map[types.UID][]span{}, observed: map[string]quota.Vector{},
		bg: map[int]int{}, removing: map[int]bool{}, verdicts: map[*delivery]Verdict{}, held: map[string]bool{}, faulted: map[int]bool{}, stats: map[string]int{}}
	o := Options{HoldAge: c.age}
	m.world = newWorld(o, c.namespaces, c.quotas, c.replicas, c.hard)
	m.world.split = c.split
	m.world.onPut = m.put
	for _, k := range []kind{kNS, kCRQ} {
		for _, o := range m.res[k].objs {
			m.begins(o)
		}
	}
	m.sleep(100 * c.age) // far from every start: ledgers that are missing are marked
	for q := range c.quotas {
		m.firstLedger(q)
	}
	return m
}

// firstLedger stores what the ledger of an old quota without use is.
func (m *model) firstLedger(q int) {
	o := m.quota(q)
	l := &v1alpha1.DeviceLedger{}
	l.Name, l.UID = o.name, types.UID("ledger-of-"+o.name)
	finalize(l)
	var v quota.Vector
	v[quota.Namespaces], v[quota.Quotas] = newestVersion(m.res[kNS].objs), newestVersion(m.res[kCRQ].objs)
	l.Status = quota.Adopt(v1alpha1.DeviceLedgerStatus{Observed: v.Versions()}, o.q)
	m.store(m.replicas[0], [kinds]watchCache{}, nil, l)
	for _, r := range m.replicas {
		for r.ledgerPos < len(m.ledgerL) {
			r.advanceLedger()
		}
	}
}

// begins notes that a version of a namespace or quota is current now.
func (m *model) begins(o object) {
	m.ends(o.uid)
	s := span{rv: o.rv}
	if o.q != nil {
		s.quota = true
		a, b := o.q.Hard[keyA], o.q.Hard[keyB]
		_, s.hasB = o.q.Hard[keyB]
		s.limitA, s.limitB = a.Value(), b.Value()
	}
	m.spans[o.uid] = append(m.spans[o.uid], s)
}

func (m *model) ends(uid types.UID) {
	if s := m.spans[uid]; len(s) > 0 && s[len(s)-1].end == 0 {
		m.seq++
		s[len(s)-1].end = m.seq
	}
}

// action is one thing that may happen next.
type action struct {
	weight int
	do     func()
}

// step lets one thing happen and checks what must always be true.
func (m *model) step() bool {
	acts := m.enabled()
	if len(acts) == 0 {
		return false
	}
	m.pick(acts).do()
	m.settleDown()
	m.stats["steps"]++
	return m.err == ""
}

func (m *model) pick(acts []action) action {
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	x := m.rand.IntN(total)
	for _, a := range acts {
		if x -= a.weight; x < 0 {
			return a
		}
	}
	return acts[0]
}

// settleDown waits until every goroutine waits for something, takes the answers, and checks.
func (m *model) settleDown() {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.SortFunc(m.answers, func(a, b answer) int { return a.d.arrived - b.d.arrived })
	for _, a := range m.answers {
		m.answered(a)
	}
	m.answers = nil
	m.expire()
	m.checkLost()
}

// expire: the API server gives up creates after persist.
func (m *model) expire() {
	for _, r := range m.requests {
		if r.state <= granted && time.Since(r.start) >= m.c.persist {
			r.state = dead
		}
	}
}

func (m *model) enabled() []action {
	var acts []action
	add := func(weight int, do func()) { acts = append(acts, action{weight, do}) }
	m.timeActions(add)
	m.callActions(add)
	m.requestActions(add)
	m.clusterActions(add)
	m.cacheActions(add)
	return acts
}

func (m *model) timeActions(add func(int, func())) {
	if m.c.lean {
		add(20, func() { m.pass(m.c.persist - 400*time.Millisecond) })
		add(20, func() { m.pass(200 * time.Millisecond) })
		add(5, func() { m.pass(time.Duration(1+m.n(60)) * time.Millisecond) })
		return
	}
	add(8, func() { m.pass(time.Duration(1+m.n(60)) * time.Millisecond) })
	add(5, func() { m.pass(time.Duration(1+m.n(300)) * time.Millisecond) })
	add(3, func() { m.pass(m.c.persist / 5) })
	if m.n(3) == 0 {
		add(3, func() { m.pass(m.c.age - m.c.persist) })
	}
}

func (m *model) pass(d time.Duration) {
	m.logf("%v pass", d)
	m.sleep(d)
}

// sleep lets time pass. What the scheduler did until then happened before what timers do then.
func (m *model) sleep(d time.Duration) {
	m.mu.Lock()
	m.mu.Unlock() //nolint:staticcheck // the critical section is empty on purpose
	time.Sleep(d)
}

// callActions let parked calls go, in a fixed order.
func (m *model) callActions(add func(int, func())) {
	for _, c := range m.sortedCalls() {
		add(14, func() { m.release(c, vApply) })
		if m.c.faults {
			for _, v := range []verdict{vLose, vFail, vThrottle} {
				if v == vFail || strings.Contains(c.what, "ledger") {
					add(1, func() { m.release(c, v) })
				}
			}
		}
	}
}

func (m *model) release(c *call, v verdict) {
	m.mu.Lock()
	m.calls = slices.DeleteFunc(m.calls, func(x *call) bool { return x == c })
	if v != vApply {
		m.faulted[c.r.i] = true
	}
	m.logf("r%d %s (%v)", c.r.i, c.what, [...]string{"ok", "answer lost", "fails", "throttled"}[v])
	m.mu.Unlock()
	c.ch <- v
}

func (m *model) requestActions(add func(int, func())) {
	live := 0
	for _, r := range m.requests {
		switch r.state {
		case open:
			live++
			if r.deliveries < m.c.maxDeliveries {
				add(3, func() { m.deliver(r) })
			}
			add(1, func() { m.logf("%s gives up", r.uid); r.state = dead })
		case granted:
			live++
			add(10, func() { m.persist(r) })
			add(1, func() { m.logf("%s is never persisted", r.uid); r.state = dead })
		case persisted:
			add(3, func() { m.delete(r) })
			if m.c.shrink && r.kind == kClaim && r.pod == "" {
				add(2, func() { m.recharge(r) })
			}
			if m.c.ext && r.kind == kPod {
				m.podActions(add, r)
			}
		}
	}
	if len(m.requests) < m.c.maxRequests && live < 5 {
		add(12, m.newRequest)
	}
}

func (m *model) newRequest() {
	k := kClaim
	if m.c.pods && m.n(3) == 0 {
		k = kPod
	}
	charge := int64(1 + m.n(int(m.c.maxCharge)))
	m.request(k, nsName(m.n(m.namespaces)), fmt.Sprintf("n%d", m.n(m.c.names)), charge, "")
}

func (m *model) request(k kind, ns, name string, charge int64, pod types.UID) *modelRequest {
	i := len(m.requests)
	r := &modelRequest{i: i, uid: uidOf(i), kind: k, ns: ns, name: name, charge: charge, min: charge, pod: pod,
		start: time.Now(), charged: map[string]bool{}, taint: map[string]bool{}, chargedB: map[string]bool{}}
	m.requests = append(m.requests, r)
	m.deliver(r)
	return r
}

func uidOf(i int) types.UID { return types.UID(fmt.Sprintf("u%02d", i)) }

func (m *model) deliver(r *modelRequest) { m.deliverTo(r, m.replicas[m.n(len(m.replicas))]) }

func (m *model) deliverTo(r *modelRequest, rep *replica) *delivery {
	m.sleep(time.Microsecond) // no two arrive at the same time
	r.deliveries++
	m.seq++
	d := &delivery{r: r, n: r.deliveries, rep: rep, inc: rep.inc, arrived: m.seq}
	if ns := named(rep.c[kNS].objs, "", r.ns); ns != nil {
		d.nsRV = ns.rv
	} else if ns := named(m.res[kNS].objs, "", r.ns); ns != nil {
		d.nsRV = ns.rv // it will be read live
	}
	m.deliveries = append(m.deliveries, d)
	m.logf("%s delivered to r%d (%d): %s/%s kind %d charge %d pod %q", r.uid, rep.i, d.n, r.ns, r.name, r.kind, r.charge, r.pod)
	ctx, cancel := context.WithTimeout(rep.ctx, 10*time.Second)
	d.cancel = cancel
	q := Request{UID: r.uid, Kind: v1alpha1.HoldClaim, Namespace: r.ns, Name: r.name, Arrived: rep.now(), Created: r.start, PodUID: r.pod,
		Charge: func(q *quota.Quota) (quota.Charge, error) { return quota.Charge{Amounts: amounts(q, r.charge)}, nil }}
	if r.kind == kPod {
		q.Kind = v1alpha1.HoldPod
	}
	l := rep.ledger
	go func() {
		dec, err := l.Admit(ctx, q)
		cancel()
		m.mu.Lock()
		m.answers = append(m.answers, answer{d, dec, err})
		m.mu.Unlock()
	}()
	return d
}

func (m *model) persist(r *modelRequest) {
	if named(m.res[r.kind].objs, r.ns, r.name) != nil {
		r.state = dead
		m.logf("%s: name exists", r.uid)
		return
	}
	r.state = persisted
	o := m.write(r.kind, object{uid: r.uid, ns: r.ns, name: r.name, idx: r.i, charge: r.charge, full: r.charge, pod: r.pod, owned: m.c.regrow || r.i%2 == 0})
	m.logf("%s persisted at %d", r.uid, o.rv)
}

func (m *model) delete(r *modelRequest) {
	r.state = dead
	m.seq++
	r.deleted = m.seq
	m.remove(r.kind, r.uid)
	m.logf("%s deleted", r.uid)
}

// recharge: an allocation shrinks the charge, a new one lets it grow again.
func (m *model) recharge(r *modelRequest) {
	o := *find(m.res[r.kind].objs, r.uid)
	switch {
	case !o.owned:
		return
	case o.charge > 1:
		o.charge = 1
	case m.c.regrow:
		o.charge = o.full
	}
	r.min = min(r.min, o.charge)
	m.write(r.kind, o)
	m.logf("%s charge %d", r.uid, o.charge)
}

// podActions: the scheduler makes a claim for a pod, and later its status names it.
func (m *model) podActions(add func(int, func()), r *modelRequest) {
	var claim *modelRequest
	for _, x := range m.requests {
		if x.pod == r.uid {
			claim = x
		}
	}
	if claim == nil {
		if len(m.requests) < m.c.maxRequests {
			add(6, func() { m.request(kClaim, r.ns, "of-"+string(r.uid), r.charge, r.uid) })
		}
		return
	}
	if o := find(m.res[kPod].objs, r.uid); o.names == "" && claim.state == persisted {
		add(4, func() {
			n := *o
			n.names = claim.name
			m.write(kPod, n)
			m.logf("status of %s names %s", r.uid, claim.uid)
		})
	}
}

func (m *model) clusterActions(add func(int, func())) {
	if m.c.relabel {
		for i := range m.namespaces {
			add(1, func() { m.relabel(i) })
		}
	}
	if m.namespaces < m.c.namespaces+m.c.late {
		add(2, m.newNamespace)
	}
	for q := range m.c.quotas {
		m.quotaActions(add, q)
	}
	if m.c.noise {
		add(3, func() { m.res[m.n(int(kinds))].cur += uint64(1 + m.n(3)) })
	}
}

func (m *model) quotaActions(add func(int, func()), q int) {
	o := m.quota(q)
	if o == nil {
		if m.c.recreate {
			add(8, func() { m.changeQuota(q, int64(1+m.n(int(m.c.hard)+1))) })
		}
	} else {
		if m.c.hardChange {
			add(1, func() { m.changeQuota(q, int64(1+m.n(int(m.c.hard)+1))) })
		}
		if m.c.bump {
			hard := o.q.Hard[keyA]
			b := o.q.Hard[keyB]
			add(2, func() { m.begins(m.writeQuota(q, hard.Value(), b.Value())); m.logf("quota %d status written", q) })
		}
		if m.c.recreate {
			add(1, func() { m.ends(o.uid); m.remove(kCRQ, o.uid); m.logf("quota %d deleted", q) })
		}
	}
	if l := m.ledgers[quotaName(q)]; l != nil && len(l.OwnerReferences) > 0 && (o == nil || l.OwnerReferences[0].UID != o.uid) {
		add(6, func() {
			m.logf("ledger %d is garbage", q)
			m.removeLedger(quotaName(q))
			delete(m.observed, quotaName(q))
		})
	}
	if m.c.ledgerDelete && m.ledgers[quotaName(q)] != nil {
		add(1, func() { m.deleteLedger(q) })
	}
}

func (m *model) changeQuota(q int, hard int64) {
	var b int64
	if m.c.keyChange && m.n(2) == 0 {
		b = int64(1 + m.n(int(m.c.hard)+1))
	}
	if old := m.quota(q); old != nil {
		m.ends(old.uid)
	}
	o := m.writeQuota(q, hard, b)
	m.begins(o)
	m.logf("quota %d is %s hard %d (second key %d) at %d", q, o.uid, hard, b, o.rv)
}

// deleteLedger by hand. Within a quota's first age the loss is not noticed (documented): what
// is on its way then counts as moved.
func (m *model) deleteLedger(q int) {
	name := quotaName(q)
	m.removeLedger(name)
	delete(m.observed, name)
	m.logf("ledger %d deleted by hand", q)
	if o := m.quota(q); o == nil || time.Since(o.q.Created) < m.c.age+time.Second {
		for _, r := range m.requests {
			if r.state <= granted {
				r.taint[name] = true
			}
		}
	}
}

// newNamespace creates one that the first quota covers.
func (m *model) newNamespace() {
	i := m.namespaces
	m.namespaces++
	o := m.write(kNS, object{uid: types.UID(fmt.Sprintf("ns-%d", i)), name: nsName(i), labels: map[string]string{quotaName(0): "yes"}})
	m.begins(o)
	m.logf("%s created at %d", o.name, o.rv)
}

func (m *model) relabel(i int) {
	labels := map[string]string{}
	for q := range m.c.quotas {
		if m.n(2) == 0 {
			labels[quotaName(q)] = "yes"
		}
	}
	m.setLabels(i, labels)
}

// label lets the first quota cover the namespace, or not.
func (m *model) label(i int, covered bool) {
	labels := map[string]string{}
	if covered {
		labels[quotaName(0)] = "yes"
	}
	m.setLabels(i, labels)
}

func (m *model) setLabels(i int, labels map[string]string) {
	o := *find(m.res[kNS].objs, types.UID(fmt.Sprintf("ns-%d", i)))
	for _, r := range m.requests {
		for q := range m.c.quotas {
			if r.ns == o.name && o.labels[quotaName(q)] != "" && labels[quotaName(q)] == "" {
				r.taint[quotaName(q)] = true
			}
		}
	}
	o.labels = labels
	o = m.write(kNS, o)
	m.begins(o)
	m.logf("%s labels %v at %d", o.name, labels, o.rv)
}

func (m *model) cacheActions(add func(int, func())) {
	for _, r := range m.replicas {
		for k := range kinds {
			switch {
			case r.i == 0 && m.c.stalled == 1+int(k):
			case r.c[k].pos < len(m.res[k].log):
				add(5, func() { m.logf("r%d sees next %v", r.i, components[k]); r.advance(k, m.c.noise && m.n(4) == 0) })
				if m.c.crash {
					add(1, func() { r.seek(k, len(m.res[k].log)); r.c[k].rv, r.c[k].shown = m.res[k].cur, m.res[k].cur })
				}
			case m.c.marks && r.c[k].shown < m.res[k].cur:
				add(1, func() { r.c[k].rv, r.c[k].shown = m.res[k].cur, m.res[k].cur })
			}
		}
		if r.ledgerPos < len(m.ledgerL) && !(r.i == 0 && m.c.stalled == 1+int(kinds)) {
			add(5, r.advanceLedger)
		}
		if m.c.crash {
			add(1, func() { m.crash(r) })
		}
		if m.c.background && m.bg[r.i] == 0 {
			add(4, func() { m.settleInBackground(r, quotaName(m.n(m.c.quotas))) })
		}
		m.removeActions(add, r)
	}
}

func (m *model) settleInBackground(r *replica, name string) {
	m.bg[r.i]++
	l, ctx, inc := r.ledger, r.ctx, r.inc
	m.logf("r%d settles %s", r.i, name)
	go func() {
		_, err := l.Settle(ctx, name, nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		if inc == r.inc {
			m.bg[r.i] = 0
			m.checkError("settle", r, inc, err)
		}
	}()
}

// checkError: without faults there are no errors but the one that is no outage.
func (m *model) checkError(what string, r *replica, inc int, err error) {
	if err == nil || inc != r.inc || m.faulted[r.i] || errors.Is(err, errOvertaken) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	m.fail("error: %s at r%d: %v", what, r.i, err)
}

func (m *model) removeActions(add func(int, func()), r *replica) {
	if !m.c.recreate || m.removing[r.i] {
		return
	}
	for q := range m.c.quotas {
		if m.quota(q) != nil || m.ledgers[quotaName(q)] == nil {
			continue
		}
		add(3, func() {
			m.removing[r.i] = true
			l, ctx, inc := r.ledger, r.ctx, r.inc
			go func() {
				_, _, err := l.Remove(ctx, quotaName(q))
				m.mu.Lock()
				defer m.mu.Unlock()
				if inc == r.inc {
					m.removing[r.i] = false
					m.checkError("remove", r, inc, err)
				}
			}()
		})
	}
}

func (m *model) crash(r *replica) {
	m.mu.Lock()
	pos := m.world.ends()
	for k := range pos {
		low := 0
		switch kind(k) {
		case kNS:
			low = m.c.namespaces
		case kCRQ:
			low = m.c.quotas
		}
		pos[k] = max(pos[k]-m.n(4), min(low, pos[k]))
	}
	mine := slices.DeleteFunc(slices.Clone(m.calls), func(c *call) bool { return c.r != r })
	m.calls = slices.DeleteFunc(m.calls, func(c *call) bool { return c.r == r })
	r.start(pos)
	m.bg[r.i], m.removing[r.i] = 0, false
	for _, d := range m.deliveries {
		if d.rep == r {
			d.over = true
		}
	}
	m.logf("r%d restarts", r.i)
	m.mu.Unlock()
	for _, c := range mine {
		c.ch <- vFail
	}
}

// answered takes the answer of a delivery. Only the latest delivery's answer decides.
func (m *model) answered(a answer) {
	d, r := a.d, a.d.r
	if d.over || d.inc != d.rep.inc {
		return
	}
	d.over = true
	latest := d.n == r.deliveries && r.state == open
	m.logf("r%d answers %s/%d: %v %v%s latest=%v", d.rep.i, r.uid, d.n, [...]string{"ALLOW", "DENY", "BUSY"}[a.dec.Verdict], a.err, a.dec.Busy, latest)
	if a.err != nil {
		m.checkError("admit", d.rep, d.inc, a.err)
		if latest {
			r.state = dead
		}
		return
	}
	m.verdicts[d] = a.dec.Verdict
	m.stats[[...]string{"allowed", "denied", "busy"}[a.dec.Verdict]]++
	if a.dec.Verdict == Denied {
		m.checkDenied(d, a.dec)
	}
	if !latest {
		return
	}
	if a.dec.Verdict != Allowed {
		r.state = dead
		return
	}
	m.grant(d, a.dec)
}

func (m *model) grant(d *delivery, dec Decision) {
	r := d.r
	r.state = granted
	ns := named(m.res[kNS].objs, "", r.ns)
	if r.pod != "" {
		if p := m.byUID(r.pod); p != nil {
			for q := range p.taint {
				r.taint[q] = true
			}
		}
	}
	for q := range m.c.quotas {
		name := quotaName(q)
		if c, ok := dec.Charges[name]; ok && len(c.Amounts) > 0 {
			r.charged[name] = true
			_, r.chargedB[name] = dec.Charges[name].Amounts[keyB]
		}
		if ns.rv != d.nsRV || ns.labels[name] == "" {
			r.taint[name] = true // granted under a coverage that is already gone: moved
		}
	}
}

func (m *model) byUID(uid types.UID) *modelRequest {
	for _, r := range m.requests {
		if r.uid == uid {
			return r
		}
	}
	return nil
}

// runTrace runs one seed in a bubble and returns the violation and the trace.
func runTrace(t *testing.T, c modelConfig, seed uint64, trace bool, stats map[string]int) (violation string, lines []string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		m := newModel(c, rand.New(rand.NewPCG(seed, 77)))
		m.trace = trace
		for range c.steps {
			if !m.step() {
				break
			}
		}
		m.quiesce()
		violation, lines = m.err, m.lines
		for k, v := range m.stats {
			stats[k] += v
		}
		stats["puts"] += m.puts
	})
	return violation, lines
}
