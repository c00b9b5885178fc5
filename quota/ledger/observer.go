package ledger

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
)

// sight is a live observation, with the time before which this replica did not begin it.
type sight struct {
	Observation
	begun time.Time
	// versions are those of the observation, for every quota alike.
	versions quota.Vector

	mu sync.Mutex // protects following
	// quota name -> account, for all who ask nothing about single objects.
	accounts map[string]quota.Observed
}

// account observes the quota's account once for all who wait. It is read-only.
func (s *sight) account(name string) quota.Observed {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.accounts[name]
	if !ok {
		if s.accounts == nil {
			s.accounts = map[string]quota.Observed{}
		}
		o = s.Observe(name, nil, nil)
		s.accounts[name] = o
	}
	return o
}

// observer makes live observations: one at a time, at least interval apart, each for all
// that wait. Safe for concurrent use.
type observer struct {
	view     View
	clock    clock.WithTicker
	interval time.Duration
	timeout  time.Duration
	recorder Recorder

	mu sync.Mutex // protects following
	// last is the newest that ended, while somebody still asks for observations: it may be large.
	last *sight
	// seen and seenBegun are the versions of the newest that ended and when it began.
	seen      quota.Vector
	seenBegun time.Time
	// begun is when the newest began.
	begun time.Time
	// next has not begun: whoever comes may join.
	next    *flight
	running bool
}

// flight is one live observation and those who wait for it.
type flight struct {
	ctx    context.Context
	cancel context.CancelFunc
	// waiters is protected by observer.mu. The flight is called off when it falls to 0.
	waiters int

	done  chan struct{} // closed when following are set
	sight *sight
	err   error
}

// after returns a live observation that began at t or later, by making one if need be.
func (o *observer) after(ctx context.Context, t time.Time) (*sight, error) {
	o.mu.Lock()
	if o.last != nil && !o.last.begun.Before(t) {
		defer o.mu.Unlock()
		return o.last, nil
	}
	f := o.joinLocked(ctx)
	o.mu.Unlock()
	select {
	case <-f.done:
		return f.sight, f.err
	case <-ctx.Done():
		o.leave(f)
		return nil, ctx.Err()
	}
}

// newest returns the versions of the newest observation that ended, and when it began; zero
// when none did.
func (o *observer) newest() (quota.Vector, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen, o.seenBegun
}

func (o *observer) joinLocked(ctx context.Context) *flight {
	if o.next == nil {
		f := &flight{done: make(chan struct{})}
		// It serves others too: it outlives the request that asked first.
		f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
		o.next = f
	}
	o.next.waiters++
	if !o.running {
		o.running = true
		go o.run()
	}
	return o.next
}

func (o *observer) leave(f *flight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel()
	if o.next == f {
		o.next = nil
	}
}

// run makes observations until nobody waits.
func (o *observer) run() {
	for {
		f, wait := o.turn()
		switch {
		case f == nil:
			return
		case wait > 0:
			sleep(f.ctx, o.clock, wait)
		default:
			o.fly(f)
		}
	}
}

// turn returns the flight to begin now, or that and how long it has to wait; nil ends run.
func (o *observer) turn() (*flight, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.next
	if f == nil {
		o.running = false
		o.last = nil
		return nil, 0
	}
	now := o.clock.Now()
	if !o.begun.IsZero() {
		if wait := o.begun.Add(o.interval).Sub(now); wait > 0 {
			return f, wait
		}
	}
	o.next = nil
	o.begun = now
	return f, 0
}

// fly makes the observation. Nobody joins anymore, so that it begins after all who wait came.
func (o *observer) fly(f *flight) {
	begun := o.clock.Now()
	ctx, cancel := context.WithTimeout(f.ctx, o.timeout)
	defer cancel()
	defer f.cancel()
	seen, err := o.view.Live(ctx)
	o.recorder.Observed(o.clock.Since(begun), err)
	if err != nil {
		f.err = err
		close(f.done)
		return
	}
	f.sight = &sight{Observation: seen, begun: begun, versions: seen.Observe("", nil, nil).Version}
	o.mu.Lock()
	o.last, o.seen, o.seenBegun = f.sight, f.sight.versions, begun
	o.mu.Unlock()
	close(f.done)
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, c clock.WithTicker, d time.Duration) {
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-ctx.Done():
	}
}
