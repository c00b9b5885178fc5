package ledger

import (
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

var flagDeep = flag.Bool("model.deep", false, "explore the larger of the tiny worlds too, which takes minutes")

// The exhaustive test explores all interleavings of a tiny world, by running it again and
// again with other choices. Two executions that have come to the same state are one from there:
//
//   - A replica at rest is what it remembers. One that works is what it remembered when it began
//     and what happened to it since, because what it does next is a function of that: jitter is
//     constant here.
//   - Only how long ago something was matters, not when it was; of a ledger its content, not its
//     resourceVersion.
//   - Replicas are alike: which of them did what does not matter.

// tiny is a world of a few requests for one place.
type tiny struct {
	name       string
	requests   int
	names      int
	deliveries int
	settles    int // background settles of all replicas
	deletes    bool
	ages       int // how often half of an age may pass
}

type explorer struct {
	t       *testing.T
	c       tiny
	visited map[uint64]bool
	// choice and fan of the execution.
	choice, fan []int
	runs        int
}

// exploration is one execution.
type exploration struct {
	*model
	x       *explorer
	pos     int
	history []uint64 // per replica
	settled int
	ages    int
	stopped bool
}

// underRace is how many executions per world there are with the race detector.
const underRace = 400

// explore returns when every interleaving was explored, or one violates an invariant.
func (x *explorer) explore() (violation string, lines []string) {
	for {
		synctest.Test(x.t, func(*testing.T) {
			e := x.begin()
			for !e.stopped && e.err == "" && e.next() {
			}
			e.stopped = e.stopped || e.err == "" && e.known()
			if !e.stopped {
				e.quiesce()
			} else {
				e.quiet()
				for _, r := range e.replicas {
					r.cancel()
				}
				synctest.Wait()
			}
			violation, lines = e.err, e.lines
		})
		x.runs++
		if violation != "" {
			return violation, lines
		}
		i := len(x.choice) - 1
		for i >= 0 && x.choice[i]+1 >= x.fan[i] {
			i--
		}
		if i < 0 || raceDetector && x.runs >= underRace {
			return "", nil
		}
		x.choice, x.fan = x.choice[:i+1], x.fan[:i+1]
		x.choice[i]++
	}
}

func (x *explorer) begin() *exploration {
	c := modelConfig{replicas: 2, quotas: 1, namespaces: 1, hard: 1, persist: 3 * time.Second, age: 4 * time.Second, maxRequests: x.c.requests,
		maxDeliveries: x.c.deliveries}
	e := &exploration{x: x, history: make([]uint64, 2)}
	e.model = newModel(c, nil)
	e.trace = true
	e.oneList = true
	for _, r := range e.replicas {
		r.ledger.rand = rand.New(constant{})
	}
	return e
}

// constant is a source of always the same number, by which everything lasts a third of what it may.
type constant struct{}

func (constant) Uint64() uint64 { return math.MaxUint64 / 3 }

// next lets one of all that can happen happen; false when nothing can.
func (e *exploration) next() bool {
	acts := e.acts()
	if len(acts) == 0 {
		return false
	}
	i := 0
	if len(acts) > 1 {
		if e.pos < len(e.x.choice) {
			i = e.x.choice[e.pos]
		} else {
			if e.stopped = e.known(); e.stopped {
				return false
			}
			e.x.choice = append(e.x.choice, 0)
			e.x.fan = append(e.x.fan, len(acts))
		}
		e.pos++
	}
	acts[i]()
	e.settleDown()
	return true
}

// known returns true if an execution was here before.
func (e *exploration) known() bool {
	sum := e.sum()
	if e.x.visited[sum] {
		return true
	}
	e.x.visited[sum] = true
	return false
}

// acts are all that can happen. Time passes when nothing else can, or by a whole age.
func (e *exploration) acts() []func() {
	var acts []func()
	if len(e.requests) < e.x.c.requests {
		i := len(e.requests)
		for _, r := range e.replicas {
			acts = append(acts, func() { e.starts(r, "request"); e.requestAt(r, fmt.Sprintf("n%d", i%e.x.c.names)) })
		}
	}
	for _, r := range e.requests {
		acts = append(acts, e.requestActs(r)...)
	}
	for _, c := range e.sortedCalls() {
		acts = append(acts, func() { e.happens(c.r, c.what+e.sees(c.what)); e.release(c, vApply) })
	}
	for _, r := range e.replicas {
		if r.c[kClaim].pos < len(e.res[kClaim].log) {
			acts = append(acts, func() { e.happens(r, "event"); r.advance(kClaim, false) })
		}
		if e.settled < e.x.c.settles && e.bg[r.i] == 0 {
			acts = append(acts, func() { e.starts(r, "settle"); e.settled++; e.settleInBackground(r, quotaName(0)) })
		}
	}
	if e.ages < e.x.c.ages && len(e.requests) > 0 {
		acts = append(acts, func() { e.ages++; e.passAll(e.c.age / 2) })
	}
	if len(acts) == 0 && (e.waiting()) {
		acts = append(acts, func() { e.passAll(50 * time.Millisecond) })
	}
	return acts
}

func (e *exploration) requestAt(r *replica, name string) {
	i := len(e.requests)
	x := &modelRequest{i: i, uid: uidOf(i), kind: kClaim, ns: nsName(0), name: name, charge: 1, min: 1,
		start: time.Now(), charged: map[string]bool{}, taint: map[string]bool{}, chargedB: map[string]bool{}}
	e.requests = append(e.requests, x)
	e.deliverTo(x, r)
}

func (e *exploration) requestActs(r *modelRequest) []func() {
	var acts []func()
	if r.state == open && r.deliveries < e.x.c.deliveries {
		for _, to := range e.replicas {
			acts = append(acts, func() { e.starts(to, "again "+string(r.uid)); e.deliverTo(r, to) })
		}
	}
	if r.state == granted {
		acts = append(acts, func() { e.model.persist(r) })
	}
	if r.state == persisted && e.x.c.deletes {
		acts = append(acts, func() { e.model.delete(r) })
	}
	return acts
}

func (e *exploration) waiting() bool {
	for _, d := range e.deliveries {
		if !d.over {
			return true
		}
	}
	return e.bg[0]+e.bg[1] > 0
}

func (e *exploration) passAll(d time.Duration) {
	for _, r := range e.replicas {
		e.happens(r, d.String())
	}
	e.pass(d)
}

func (m *model) sortedCalls() []*call {
	calls := slices.Clone(m.calls)
	slices.SortStableFunc(calls, func(a, b *call) int {
		if a.r != b.r {
			return a.r.i - b.r.i
		}
		return strings.Compare(a.what, b.what)
	})
	return calls
}

// starts notes what a replica begins to work for.
func (e *exploration) starts(r *replica, what string) {
	if e.idle(r) {
		e.history[r.i] = e.memory(r)
	}
	e.happens(r, what)
}

// happens adds to what happened to a replica since it began to work.
func (e *exploration) happens(r *replica, what string) {
	h := fnv.New64a()
	fmt.Fprint(h, e.history[r.i], what)
	e.history[r.i] = h.Sum64()
}

// sees is the part of the world that a call reads.
func (e *exploration) sees(what string) string {
	if strings.Contains(what, "ledger") {
		return e.ledgerText()
	}
	return e.objectsText()
}

// idle returns true if the replica has nothing to do.
func (e *exploration) idle(r *replica) bool {
	return e.bg[r.i] == 0 && !slices.ContainsFunc(e.calls, func(c *call) bool { return c.r == r }) &&
		!slices.ContainsFunc(e.deliveries, func(d *delivery) bool { return d.rep == r && !d.over })
}

// memory identifies what a replica at rest remembers.
func (e *exploration) memory(r *replica) uint64 {
	h := fnv.New64a()
	ago := func(t time.Time) time.Duration {
		if t.IsZero() {
			return -1
		}
		return r.now().Sub(t)
	}
	a, o := r.ledger.account(quotaName(0)), r.ledger.live
	fmt.Fprint(h, e.text(a.known), ago(a.knownAt), a.marked, ago(a.markedAt), a.young, a.quota != nil)
	for _, uid := range slices.Sorted(maps.Keys(a.seen)) {
		fmt.Fprint(h, uid, ago(a.seen[uid]))
	}
	for _, uid := range slices.Sorted(maps.Keys(a.own)) {
		fmt.Fprint(h, uid, a.own[uid].hold, a.own[uid].ledger, ago(a.own[uid].at))
	}
	fmt.Fprint(h, o.last != nil, o.seen, ago(o.seenBegun), min(ago(o.begun), o.interval))
	return h.Sum64()
}

func (e *exploration) ledgerText() string { return e.text(e.ledgers[quotaName(0)]) }

// text is a ledger's content, and whether it is the newest: versions compare only.
func (e *exploration) text(l *v1alpha1.DeviceLedger) string {
	if l == nil {
		return "none"
	}
	newest := e.ledgers[quotaName(0)]
	return fmt.Sprint(l.ResourceVersion == newest.ResourceVersion, l.UID, l.Status.Used, l.Status.Holds, l.Status.Observed)
}

func (e *exploration) objectsText() string {
	var b strings.Builder
	for k := range kinds {
		fmt.Fprint(&b, e.res[k].cur)
		for _, o := range e.res[k].objs {
			fmt.Fprint(&b, o.uid, o.rv)
		}
	}
	return b.String()
}

// sum identifies the state: the world, each replica, and what the invariants are checked by.
func (e *exploration) sum() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, e.ledgerText(), e.objectsText(), e.settled, e.ages, e.observed[quotaName(0)])
	for _, ev := range e.res[kClaim].log {
		fmt.Fprint(h, ev.rv, ev.del, ev.o.uid)
	}
	for _, r := range e.requests {
		fmt.Fprint(h, r.state, r.deliveries, r.charged, r.taint)
		if r.state <= granted {
			fmt.Fprint(h, time.Since(r.start))
		}
	}
	var replicas []string
	for _, r := range e.replicas {
		replicas = append(replicas, e.replicaText(r))
	}
	slices.Sort(replicas)
	fmt.Fprint(h, replicas)
	return h.Sum64()
}

func (e *exploration) replicaText(r *replica) string {
	var b strings.Builder
	is := e.history[r.i]
	if e.idle(r) {
		is = e.memory(r)
	}
	fmt.Fprint(&b, is, r.c[kClaim].pos)
	for _, c := range e.sortedCalls() {
		if c.r == r {
			fmt.Fprint(&b, c.what)
		}
	}
	for _, d := range e.deliveries {
		if d.rep != r || d.over {
			continue
		}
		fmt.Fprint(&b, d.r.uid, d.n == d.r.deliveries)
		for _, x := range e.requests {
			fmt.Fprint(&b, x.deleted != 0 && x.deleted < d.arrived)
		}
	}
	return b.String()
}

// tinyWorlds are what TestExhaustive explores, the deep ones only if asked to.
func tinyWorlds(deep bool) []tiny {
	worlds := []tiny{
		{name: "one create, two deliveries, settles", requests: 1, names: 1, deliveries: 2, settles: 2, deletes: true},
		{name: "one create, an age passes", requests: 1, names: 1, deliveries: 1, settles: 2, ages: 3},
		{name: "two creates", requests: 2, names: 2, deliveries: 1, deletes: true},
		{name: "two creates of one name", requests: 2, names: 1, deliveries: 1, deletes: true},
		{name: "two creates, settles", requests: 2, names: 2, deliveries: 1, settles: 2},
		{name: "two creates, two deliveries each", requests: 2, names: 2, deliveries: 2},
	}
	if deep {
		worlds = append(worlds,
			tiny{name: "one create and delete, an age passes", requests: 1, names: 1, deliveries: 1, settles: 2, deletes: true, ages: 3},
			tiny{name: "one create, an age passes, three settles", requests: 1, names: 1, deliveries: 1, settles: 3, ages: 3},
			tiny{name: "two creates, an age passes", requests: 2, names: 2, deliveries: 1, settles: 1, ages: 2},
			tiny{name: "two creates and deletes, two deliveries each", requests: 2, names: 2, deliveries: 2, deletes: true},
		)
	}
	return worlds
}

func TestExhaustive(t *testing.T) {
	oneThread(t)
	for _, c := range tinyWorlds(*flagDeep) {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			x := &explorer{t: t, c: c, visited: map[uint64]bool{}}
			violation, lines := x.explore()
			t.Logf("%d executions, %d states", x.runs, len(x.visited))
			if violation != "" {
				t.Errorf("%s\n%s", violation, strings.Join(lines, "\n"))
			}
		})
	}
}
