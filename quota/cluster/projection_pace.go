package cluster

import (
	"context"
	"time"
)

// After each write a worker rests, to leave the API server to admission: the longer the write took,
// the busier it is. A write of the usual time is followed by a rest as long, one that took twice as
// long by a rest four times as long, up to maxRest. What is late does not wait for that: a rest is at
// most half as long as the write when the first of the projects in which something changed has waited
// for longer than late, or the first of those that only see another total for longer than restLate.
const (
	usual    = 5 * time.Millisecond
	maxRest  = 200 * time.Millisecond
	late     = time.Second
	restLate = patience + within/2
)

// rest waits after a write that took so long.
func (p *Projection) rest(ctx context.Context, took time.Duration) {
	d := p.restAfter(took)
	if d <= 0 {
		return
	}
	timer := p.o.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (p *Projection) restAfter(took time.Duration) time.Duration {
	took = min(took, maxRest)
	p.mu.Lock()
	defer p.mu.Unlock()
	d := min(maxRest, took*took/usual)
	if p.lateLocked(true, late) || p.lateLocked(false, restLate) {
		d = min(d, took/2)
	}
	return d
}

// lateLocked tells whether the first of what is urgent, or of the rest, has waited for longer than that.
func (p *Projection) lateLocked(urgent bool, than time.Duration) bool {
	since, waits := p.queue.first(urgent)
	return waits && p.o.Clock.Since(since) > than
}

// pacer says what may be written when. Projects in which something changed, and statuses, do
// not wait for those that only see another total; those are paced by the budget, but have
// their turn when both wait and their patience is over.
type pacer struct {
	urgent, rest tokens
	turn         int
	// urgentAt is when something urgent was written last.
	urgentAt time.Time
	// most is how much waited since nothing of the rest did.
	most int
}

func newPacer(now time.Time) *pacer {
	return &pacer{urgent: tokens{last: now}, rest: tokens{last: now}}
}

// urgentFactor is how much more than the budget may be written of what is urgent. That is bounded by
// itself: each change is written once per quota and second in its own project.
const urgentFactor = 10

// Of so many writes one is of the rest, when both wait; more often when the rest is late.
const (
	restTurn = 10
	lateTurn = 3
)

// quiet is how long nothing urgent was written when there is no load.
const quiet = time.Second

// busy notes that something urgent was written.
func (p *Projection) busy(pace *pacer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pace.urgentAt = p.o.Clock.Now()
}

// idle is how long to wait when nothing is queued: what waits for a time does not wake.
const idle = 100 * time.Millisecond

// next takes out what is to be written next and the tokens that it was paid with; nil when it
// is too early for all that waits, with the time to wait.
func (p *Projection) next(pace *pacer) (projectionKey, *tokens, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.o.Clock.Now()
	p.queue.promote()
	wait := idle
	pace.turn++
	turn := restTurn
	if p.lateLocked(false, restLate) {
		turn = lateTurn
	}
	for _, urgent := range []bool{pace.turn%turn != 0, pace.turn%turn == 0} {
		lane, rate := &pace.urgent, p.o.Budget*urgentFactor
		if !urgent {
			lane, rate = &pace.rest, p.rateLocked(pace)
		}
		since, waits := p.queue.first(urgent)
		if !waits || !urgent && now.Sub(pace.urgentAt) < quiet && now.Sub(since) < patience {
			continue
		}
		early := lane.take(now, rate)
		if early > 0 {
			wait = min(wait, early)
			continue
		}
		return p.queue.take(urgent), lane, 0
	}
	return projectionKey{}, nil, wait
}

// tokens is a bucket of one second's budget.
type tokens struct {
	count float64
	last  time.Time
}

// take takes a token at the given rate per second, or returns how long it is until there is one.
func (t *tokens) take(now time.Time, rate float64) time.Duration {
	t.count = min(rate, t.count+rate*now.Sub(t.last).Seconds())
	t.last = now
	if t.count < 1 {
		return max(time.Millisecond, time.Duration((1-t.count)/rate*float64(time.Second)))
	}
	t.count--
	return 0
}

func (p *Projection) giveBack(t *tokens) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.count++
}

// rateLocked is the budget in writes per second, raised so that all that waits is written in time.
// It does not fall while anything waits: the last one has waited for all before it.
func (p *Projection) rateLocked(pace *pacer) float64 {
	if !p.queue.waits(false) {
		pace.most = 0
	}
	pace.most = max(pace.most, p.queue.len())
	return max(p.o.Budget, float64(pace.most)/within.Seconds())
}

// perProject is what each project adds to the least time between two writes of a quota's
// status, which grows with them: over 1000 projects it is some 200 kB, at most every 30 s.
const perProject = 30 * time.Millisecond

// statusInterval is the least time between two writes of the quota's status: all statuses
// together take no more than an eighth of the budget, so long as that shows each of them in time.
func (p *Projection) statusInterval(now *projected) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := time.Duration(float64(len(p.quotas)) / (p.o.Budget / 8) * float64(time.Second))
	return max(p.o.Interval, min(within, max(time.Duration(len(now.status.Namespaces))*perProject, all)))
}
