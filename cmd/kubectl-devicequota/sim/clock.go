package sim

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// virtual is a clock on which nobody waits: a timer has fired when it is made, and the time
// is then what it was set to. Safe for concurrent use.
type virtual struct {
	mu  sync.Mutex // protects following
	now time.Time
}

var _ clock.WithTicker = (*virtual)(nil)

// Now implements clock.Clock.
func (v *virtual) Now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

// Since implements clock.Clock.
func (v *virtual) Since(t time.Time) time.Duration { return v.Now().Sub(t) }

// advance moves the time on and returns it.
func (v *virtual) advance(d time.Duration) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = v.now.Add(max(d, 0))
	return v.now
}

// Sleep implements clock.Clock.
func (v *virtual) Sleep(d time.Duration) { v.advance(d) }

// After implements clock.Clock.
func (v *virtual) After(d time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- v.advance(d)
	return c
}

// Tick implements clock.Clock; it ticks once.
func (v *virtual) Tick(d time.Duration) <-chan time.Time { return v.After(d) }

// NewTimer implements clock.Clock.
func (v *virtual) NewTimer(d time.Duration) clock.Timer { return &fired{v: v, c: v.After(d)} }

// NewTicker implements clock.WithTicker; it ticks once.
func (v *virtual) NewTicker(d time.Duration) clock.Ticker { return ticked{v.After(d)} }

// fired is a timer that has fired.
type fired struct {
	v *virtual
	c <-chan time.Time
}

// C implements clock.Timer.
func (f *fired) C() <-chan time.Time { return f.c }

// Stop implements clock.Timer.
func (f *fired) Stop() bool { return false }

// Reset implements clock.Timer.
func (f *fired) Reset(d time.Duration) bool {
	f.c = f.v.After(d)
	return false
}

// ticked is a ticker that ticked once.
type ticked struct{ c <-chan time.Time }

// C implements clock.Ticker.
func (t ticked) C() <-chan time.Time { return t.c }

// Stop implements clock.Ticker.
func (ticked) Stop() {}
