package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// UsageOptions configure a Usage.
type UsageOptions struct {
	View   *View
	Store  *Store
	Ledger *ledger.Ledger
	// Projection gets every recount; nil projects nothing.
	Projection *Projection
	// Recorder gets Events on quotas whose conditions change; nil: none.
	Recorder events.EventRecorder
	// Interval is the least time between two settles of one quota. Zero means DefaultInterval.
	Interval time.Duration
	// Resync is how often each quota is settled without any event. Zero means DefaultResync.
	Resync time.Duration
	// Workers is how many quotas are settled at the same time. Zero means 8: they mostly wait,
	// and those that need a live observation share it.
	Workers int
	// Clock is the real one when nil.
	Clock clock.WithTicker
	Log   logr.Logger
}

// Defaults of UsageOptions.
const (
	DefaultInterval = time.Second
	DefaultResync   = 5 * time.Minute

	// settleDelay lets a burst of changes become one settle.
	settleDelay = 20 * time.Millisecond
)

// Usage settles every quota's ledger when something changed, and removes the ledgers of
// quotas that are gone. One replica, the leader, runs it; admission does not depend on it.
type Usage struct {
	o    UsageOptions
	news *ledgerNews

	mu   sync.Mutex // protects the following
	last map[string]time.Time
	told map[string]map[conditionKey]string // quota -> condition -> what was said of it
}

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// NewUsage returns a reconciler that does nothing until it is started.
func NewUsage(o UsageOptions) *Usage {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Resync == 0 {
		o.Resync = DefaultResync
	}
	if o.Workers == 0 {
		o.Workers = 8
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Usage{o: o, last: map[string]time.Time{}, told: map[string]map[conditionKey]string{}, news: newLedgerNews()}
}

// NeedLeaderElection is true: one replica settles what nobody admits to.
func (u *Usage) NeedLeaderElection() bool { return true }

// Start settles until ctx ends. It returns when all its goroutines ended.
func (u *Usage) Start(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 30*time.Second),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "usage", Clock: u.o.Clock})
	if err := waitFor(ctx, u.o.Clock, func() bool { return u.o.View.Ready(nil) == nil }); err != nil {
		queue.ShutDown()
		return nil // stopped before there was anything to do
	}
	stop := u.o.View.Subscribe(func(c Change) {
		if !c.StatusOnly {
			queue.AddAfter(c.Quota, u.wait(c.Quota))
		}
	})
	defer stop()
	// A hold whose object never comes makes no event but the ledger's own: whoever wrote it,
	// somebody has to look when it is old. The same for a ledger that was edited or deleted.
	stopLedgers := u.o.Store.Subscribe(func(name string, l *v1alpha1.DeviceLedger) {
		u.news.heard(name, l)
		queue.AddAfter(name, u.wait(name))
	})
	defer stopLedgers()
	for _, name := range u.o.View.QuotaNames() { // those of ledgers are queued
		queue.AddAfter(name, u.wait(name))
	}
	var wg sync.WaitGroup
	for range u.o.Workers {
		wg.Go(func() { u.work(ctx, queue) })
	}
	wg.Go(func() { u.followStaleness(ctx, queue) })
	<-ctx.Done()
	queue.ShutDown()
	wg.Wait()
	return nil
}

// staleInterval is how often the watches are looked at: one that stands still makes no event.
const staleInterval = 15 * time.Second

// followStaleness settles every quota when a watch stands still or moves again.
func (u *Usage) followStaleness(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	tick := u.o.Clock.NewTicker(staleInterval)
	defer tick.Stop()
	before := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		if now := u.staleNames(); now != before {
			before = now
			for _, name := range u.names() {
				queue.AddAfter(name, u.wait(name))
			}
		}
	}
}

// names are all quotas, and all ledgers that may have lost theirs.
func (u *Usage) names() []string {
	return append(u.o.View.QuotaNames(), u.o.Store.Names()...)
}

// wait returns how long a change of the quota waits to be settled.
func (u *Usage) wait(name string) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return max(settleDelay, u.o.Interval-u.o.Clock.Since(u.last[name]))
}

func (u *Usage) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return
		}
		again, err := u.reconcile(ctx, name)
		switch {
		case err != nil && ctx.Err() == nil:
			u.o.Log.V(1).Info("quota not settled, trying again", "quota", name, "err", err)
			queue.AddRateLimited(name)
		case err == nil:
			queue.Forget(name)
			if again > 0 {
				queue.AddAfter(name, max(again, u.o.Interval))
			}
		}
		queue.Done(name)
	}
}

// reconcile settles one quota and returns when to do so again without any event, 0 for never.
func (u *Usage) reconcile(ctx context.Context, name string) (time.Duration, error) {
	u.mu.Lock()
	u.last[name] = u.o.Clock.Now()
	u.mu.Unlock()
	if u.o.View.ClusterResourceQuota(name) == nil {
		return u.remove(ctx, name)
	}
	settled, err := u.o.Ledger.Settle(ctx, name, u.conditions)
	if err != nil {
		return 0, fmt.Errorf("settle of %q: %w", name, err)
	}
	if u.o.Projection != nil {
		u.o.Projection.Offer(name, settled.Observed)
	}
	if settled.Ledger != nil {
		u.tell(name, settled.Ledger.Status.Conditions)
	}
	u.tellNews(name)
	again := u.o.Resync
	if settled.Again > 0 {
		again = min(again, settled.Again)
	}
	return again, nil
}

// remove ends the account of a quota that is gone.
func (u *Usage) remove(ctx context.Context, name string) (time.Duration, error) {
	if u.o.Projection != nil {
		u.o.Projection.Remove(name)
	}
	done, again, err := u.o.Ledger.Remove(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("removal of the ledger %q: %w", name, err)
	}
	if done {
		u.news.take(name) // nobody is there to be told
		u.mu.Lock()
		delete(u.last, name)
		delete(u.told, name)
		u.mu.Unlock()
		return 0, nil
	}
	return again, nil
}

// waitFor returns nil once the condition holds, or the error of ctx.
func waitFor(ctx context.Context, c clock.WithTicker, condition func() bool) error {
	tick := c.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
	}
	return ctx.Err()
}
