package ledger

import (
	"flag"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var flagRuns = flag.Int("model.runs", 2000, "executions per configuration of the exhaustive test; 0: until all is explored")

// The exhaustive test explores all interleavings of a tiny world, by running it again and
// again with other choices. What a replica does next is a function of what happened to it, so
// that two executions with the same happenings per replica and the same world are one.

// tiny is a world of a few requests for one place.
type tiny struct {
	name       string
	requests   int
	names      int
	deliveries int
	settles    int // background settles per replica
	deletes    bool
	ages       int // how often a whole age may pass
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
	settled []int
	ages    int
	stopped bool
}

func (x *explorer) explore() (complete bool, violation string, lines []string) {
	for {
		synctest.Test(x.t, func(*testing.T) {
			e := x.begin()
			for !e.stopped && e.err == "" && e.next() {
			}
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
			return true, violation, lines
		}
		i := len(x.choice) - 1
		for i >= 0 && x.choice[i]+1 >= x.fan[i] {
			i--
		}
		if i < 0 {
			return true, "", nil
		}
		x.choice, x.fan = x.choice[:i+1], x.fan[:i+1]
		x.choice[i]++
		if *flagRuns > 0 && x.runs >= *flagRuns {
			return false, "", nil
		}
	}
}

func (x *explorer) begin() *exploration {
	c := modelConfig{replicas: 2, quotas: 1, namespaces: 1, hard: 1, persist: 3 * time.Second, age: 4 * time.Second, maxRequests: x.c.requests,
		maxDeliveries: x.c.deliveries}
	e := &exploration{x: x, history: make([]uint64, 2), settled: make([]int, 2)}
	e.model = newModel(c, nil)
	e.trace = true
	e.oneList = true
	return e
}

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
			sum := e.sum()
			if e.x.visited[sum] {
				e.stopped = true
				return false
			}
			e.x.visited[sum] = true
			e.x.choice = append(e.x.choice, 0)
			e.x.fan = append(e.x.fan, len(acts))
		}
		e.pos++
	}
	acts[i]()
	e.settleDown()
	return true
}

// acts are all that can happen. Time passes when nothing else can, or by a whole age.
func (e *exploration) acts() []func() {
	var acts []func()
	if len(e.requests) < e.x.c.requests {
		i := len(e.requests)
		to := e.replicas
		if i == 0 {
			to = to[:1] // replicas are alike
		}
		for _, r := range to {
			acts = append(acts, func() { e.happens(r, "request"); e.requestAt(r, fmt.Sprintf("n%d", i%e.x.c.names)) })
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
		if e.settled[r.i] < e.x.c.settles && e.bg[r.i] == 0 {
			acts = append(acts, func() { e.happens(r, "settle"); e.settled[r.i]++; e.settleInBackground(r, quotaName(0)) })
		}
	}
	if e.ages < e.x.c.ages && len(e.requests) > 0 {
		acts = append(acts, func() { e.ages++; e.passAll(e.c.age) })
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
			acts = append(acts, func() { e.happens(to, "again "+string(r.uid)); e.deliverTo(r, to) })
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

// happens adds to what happened to a replica.
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

func (e *exploration) ledgerText() string {
	l := e.ledgers[quotaName(0)]
	if l == nil {
		return "none"
	}
	return fmt.Sprint(l.ResourceVersion, l.UID, l.Status.Used, l.Status.Holds, l.Status.Observed)
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

// sum identifies the state: the world, what happened to each replica, and the time.
func (e *exploration) sum() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, time.Now().UnixMilli(), e.ledgerText(), e.objectsText(), e.history, e.settled, e.ages)
	for _, ev := range e.res[kClaim].log {
		fmt.Fprint(h, ev.rv, ev.del, ev.o.uid)
	}
	for _, r := range e.replicas {
		fmt.Fprint(h, r.c[kClaim].pos)
	}
	for _, r := range e.requests {
		fmt.Fprint(h, r.state, r.deliveries)
	}
	for _, c := range e.sortedCalls() {
		fmt.Fprint(h, c.r.i, c.what)
	}
	return h.Sum64()
}

func TestExhaustive(t *testing.T) {
	oneThread(t)
	for _, c := range []tiny{
		{name: "one create, two deliveries, settles", requests: 1, names: 1, deliveries: 2, settles: 1, deletes: true},
		{name: "one create, an age passes", requests: 1, names: 1, deliveries: 1, settles: 2, deletes: true, ages: 2},
		{name: "two creates", requests: 2, names: 2, deliveries: 1, deletes: true},
		{name: "two creates of one name", requests: 2, names: 1, deliveries: 1, deletes: true},
		{name: "two creates, settles", requests: 2, names: 2, deliveries: 1, settles: 1},
		{name: "two creates, two deliveries each", requests: 2, names: 2, deliveries: 2},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			x := &explorer{t: t, c: c, visited: map[uint64]bool{}}
			complete, violation, lines := x.explore()
			t.Logf("%d executions, %d states, complete: %v", x.runs, len(x.visited), complete)
			if violation != "" {
				t.Errorf("%s\n%s", violation, strings.Join(lines, "\n"))
			}
		})
	}
}
