package ledger

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// maxFailures is how many calls of the store may fail in one commit before it is an outage.
const maxFailures = 3

// A committer gives way after maxStreak batches in a row, for two to four times as long as the last
// took, of which at most maxTook counts; when nobody else has written the ledger for aloneAfter, more
// rarely, after aloneFor, but two more times as long. A commit shorter than minTook was no call of an
// API server, that others could lose to.
const (
	maxStreak  = 4
	aloneFor   = 100 * time.Millisecond
	aloneAfter = time.Minute
	minTook    = time.Millisecond
	maxTook    = 50 * time.Millisecond
)

// maxBackoff bounds the wait after a conflict: somebody else has made progress then, and gives way.
const maxBackoff = 32 * time.Millisecond

// entry is one request, or one settle, that waits for an account's committer.
type entry struct {
	ctx context.Context
	// arrived orders the queue.
	arrived time.Time
	// sight is the live observation that the caller waited for; nil when it did not.
	sight *sight
	// done receives exactly one outcome, unless ctx ends before the entry is decided.
	done chan outcome

	// request is nil for a settle.
	request *Request
	hold    v1alpha1.Hold
	// quota that the hold's charge was computed for.
	quota *quota.Quota

	// conditions of a settle; may be nil.
	conditions Conditions
}

// enforced returns true if the entry's quota may refuse it.
func (e *entry) enforced() bool {
	return e.quota.Enforcement == quota.Enforce || e.quota.Enforcement == ""
}

// submit queues the entry and waits for its outcome or the end of ctx.
func (a *account) submit(e *entry) (outcome, error) {
	a.enqueue(e)
	return e.wait()
}

// enqueue queues the entry. Somebody has to wait for it.
func (a *account) enqueue(e *entry) {
	e.done = make(chan outcome, 1)
	a.mu.Lock()
	i := len(a.queue)
	for i > 0 && a.queue[i-1].arrived.After(e.arrived) {
		i--
	}
	a.queue = append(a.queue, nil)
	copy(a.queue[i+1:], a.queue[i:])
	a.queue[i] = e
	start := !a.committing
	a.committing = true
	a.mu.Unlock()
	if start {
		go a.run()
	}
}

// wait waits for the entry's outcome or the end of its context.
func (e *entry) wait() (outcome, error) {
	select {
	case out := <-e.done:
		return out, out.err
	case <-e.ctx.Done():
		return outcome{}, e.ctx.Err()
	}
}

// run is the committer: it commits batches until nothing waits.
func (a *account) run() {
	streak, since := 0, a.l.o.Clock.Now()
	for {
		batch := a.take()
		if len(batch) == 0 {
			return
		}
		begun := a.l.o.Clock.Now()
		a.commit(batch)
		streak++
		if times := a.longEnough(streak, since); times > 0 {
			a.giveWay(a.l.o.Clock.Since(begun), times)
			streak, since = 0, a.l.o.Clock.Now()
		}
	}
}

// longEnough returns how many times as long as the last of so many batches in a row since then to
// give way at least, 0 when they are not enough.
func (a *account) longEnough(streak int, since time.Time) (times int) {
	now := a.l.o.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch alone := now.Sub(a.othersAt) >= aloneAfter; {
	case alone && now.Sub(since) >= aloneFor:
		return 4
	case !alone && streak >= maxStreak:
		return 2
	}
	return 0
}

// giveWay lets other replicas write when requests wait here already. The replica that wrote last
// knows the newest ledger, the others have to read it first: without a pause that is long enough
// to read and to write it would win each time, and their requests wait for seconds. What comes
// meanwhile joins the next batch.
func (a *account) giveWay(took time.Duration, times int) {
	a.mu.Lock()
	var first context.Context
	if len(a.queue) > 0 {
		first = a.queue[0].ctx
	}
	a.mu.Unlock()
	if took = min(took, maxTook); first != nil && took >= minTook {
		sleep(first, a.l.o.Clock, time.Duration(times)*took+a.l.jitter(2*took))
	}
}

// take returns the next batch; an empty one ends the committer.
func (a *account) take() []*entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(a.queue), a.l.o.MaxBatch)
	if n == 0 {
		a.committing = false
		a.queue = nil
		return nil
	}
	batch := a.queue[:n:n]
	a.queue = a.queue[n:]
	return batch
}

// waiting returns the entries whose callers still wait.
func waiting(batch []*entry) []*entry {
	out := batch[:0]
	for _, e := range batch {
		if e.ctx.Err() == nil {
			out = append(out, e)
		}
	}
	return out
}

// together returns a context for the whole batch: it ends when all its callers have left.
func together(batch []*entry) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(batch[0].ctx))
	var left atomic.Int64
	left.Store(int64(len(batch)))
	stops := make([]func() bool, len(batch))
	for i, e := range batch {
		stops[i] = context.AfterFunc(e.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// commit commits the batch, and tells the tracer if there is one: without, it costs nothing.
func (a *account) commit(batch []*entry) {
	ctx, stop := together(batch)
	defer stop()
	if t := a.l.o.Tracer; t != nil {
		a.commitTraced(ctx, t, batch)
		return
	}
	a.commitAll(ctx, batch, &Commit{})
}

func (a *account) commitTraced(ctx context.Context, t Tracer, batch []*entry) {
	var c Commit
	ctx, done := t.Commit(ctx, a.name, contexts(batch))
	defer func() { done(c) }()
	a.commitAll(ctx, batch, &c)
}

// commitAll decides the batch and writes the ledger once, again after each conflict, until
// every entry has its outcome or has left. It notes in c what it does.
func (a *account) commitAll(ctx context.Context, batch []*entry, c *Commit) {
	var base *v1alpha1.DeviceLedger
	live := false
	failures := 0
	for try := 0; ; try++ {
		a.backoff(ctx, try)
		if batch = waiting(batch); len(batch) == 0 {
			return
		}
		var err error
		if base == nil {
			base, live, err = a.read(ctx, try > 0)
		}
		if err == nil {
			p := a.newPlan(base, batch)
			if p.worthWriting(batch, live) {
				c.Writes++
				err = a.write(ctx, p)
			}
			if err == nil {
				c.Admitted = len(p.added)
				a.answer(batch, p)
				return
			}
		}
		switch {
		case errors.Is(err, errGone):
			a.fail(batch, outcome{result: gone})
			return
		case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
			c.Conflicts++
			base = nil
		case errors.Is(err, ErrThrottled):
			// Nothing was written: the same base may still be the newest.
		default:
			// A write may have been stored all the same: a live read tells.
			base = nil
			if failures++; failures >= maxFailures {
				c.Err = err
				a.fail(batch, outcome{err: err})
				return
			}
		}
	}
}

// backoff waits before the next try, longer after each, at random.
func (a *account) backoff(ctx context.Context, try int) {
	if try == 0 {
		return
	}
	limit := min(4*time.Millisecond<<min(try, 6), maxBackoff)
	sleep(ctx, a.l.o.Clock, a.l.jitter(limit))
}

// answer gives every entry its outcome: a settle the ledger as it is stored.
func (a *account) answer(batch []*entry, p *plan) {
	for i, e := range batch {
		out := p.outcomes[i]
		out.ledger = p.next
		if e.request == nil && !out.written {
			out.ledger, out.lingers = p.base, p.lingers
		}
		e.done <- out
	}
}

// fail gives every entry the same outcome.
func (a *account) fail(batch []*entry, out outcome) {
	for _, e := range batch {
		e.done <- out
	}
}

// read returns the newest ledger that this replica knows, or the stored one if live, and
// whether it is that. A ledger that is missing is created.
func (a *account) read(ctx context.Context, live bool) (*v1alpha1.DeviceLedger, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.l.o.StoreTimeout)
	defer cancel()
	if !live {
		l, err := a.l.store.Get(ctx, a.name)
		if err == nil {
			l = a.newest(l)
			a.meet(l)
			a.see(l, true)
			return l, false, nil
		}
		if !errors.Is(err, ErrNotFound) {
			return nil, false, err
		}
		// Deleted, or not seen yet: what this replica remembers does not tell.
	}
	l, err := a.l.store.GetLive(ctx, a.name)
	if errors.Is(err, ErrNotFound) {
		a.forget()
		l, err = a.create(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	a.meet(l)
	a.see(l, true)
	return l, true, nil
}

// write stores the plan.
func (a *account) write(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, a.l.o.StoreTimeout)
	defer cancel()
	if p.next.DeletionTimestamp == nil {
		finalize(p.next)
	}
	begun := a.l.o.Clock.Now()
	stored, err := a.l.store.Update(ctx, p.next)
	a.l.o.Recorder.Put(putResult(err), a.l.o.Clock.Since(begun))
	if err != nil {
		return err
	}
	a.record(p, stored)
	p.next = stored
	for i := range p.outcomes {
		p.outcomes[i].written = true
	}
	return nil
}

// record remembers what was written, and tells the recorder.
func (a *account) record(p *plan, stored *v1alpha1.DeviceLedger) {
	r := a.l.o.Recorder
	var seen map[types.UID]bool
	if p.look != nil {
		seen = p.look.Present
		r.Settled(p.look.source, a.lag(p))
	}
	r.Batch(len(p.added))
	if p.aged > 0 {
		r.Aged(p.aged)
	}
	a.remember(stored, append(p.reinserted, p.added...), seen)
	a.wrote(stored)
	a.see(stored, true)
}

func putResult(err error) PutResult {
	switch {
	case err == nil:
		return PutStored
	case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
		return PutConflict
	case errors.Is(err, ErrThrottled):
		return PutThrottled
	default:
		return PutUnknown
	}
}
