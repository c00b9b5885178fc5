package cluster

import (
	"context"
	"time"
)

// maxRest bounds how long a worker rests after a write, so that a slow API server still gets
// some ten of them per second.
const maxRest = 200 * time.Millisecond

// rest waits twice as long as the last write took.
func (p *Projection) rest(ctx context.Context, took time.Duration) {
	if took <= 0 {
		return
	}
	timer := p.o.Clock.NewTimer(min(2*took, maxRest))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// pacer says what may be written when. Projects in which something changed, and statuses, do
// not wait for those that only see another total; those are paced by the budget, but have
// their turn when both wait.
type pacer struct {
	urgent, rest tokens
	turn         int
	// most is how much waited since nothing of the rest did.
	most int
}

func newPacer(now time.Time) *pacer {
	return &pacer{urgent: tokens{last: now}, rest: tokens{last: now}}
}

// urgentFactor is how much more than the budget may be written of what is urgent. That is bounded by
// itself: each change is written once per quota and second in its own project.
const urgentFactor = 10

// restTurn: of so many writes one is of the rest, when both wait.
const restTurn = 10

// idle is how long to wait when nothing is queued: what waits for a time does not wake.
const idle = 100 * time.Millisecond

// next takes out what is to be written next and the tokens that it was paid with; nil when it
// is too early for all that waits, with the time to wait.
func (p *Projection) next(pace *pacer) (projectionKey, *tokens, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.o.Clock.Now()
	p.queue.promote(now)
	wait := idle
	pace.turn++
	for _, urgent := range []bool{pace.turn%restTurn != 0, pace.turn%restTurn == 0} {
		lane, rate := &pace.urgent, p.o.Budget*urgentFactor
		if !urgent {
			lane, rate = &pace.rest, p.rateLocked(pace)
		}
		if !p.queue.waits(urgent) {
			continue
		}
		early := lane.take(now, rate)
		if early == 0 {
			return p.queue.take(urgent), lane, 0
		}
		wait = min(wait, early)
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
// status, which grows with them: over 1000 projects it is some 200 kB, every 5 s at most.
const perProject = 5 * time.Millisecond

// statusInterval is the least time between two writes of the quota's status: all statuses
// together take no more than the budget, however many quotas there are.
func (p *Projection) statusInterval(now *projected) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := time.Duration(float64(len(p.quotas)) / p.o.Budget * float64(time.Second))
	return max(p.o.Interval, time.Duration(len(now.status.Namespaces))*perProject, all)
}
