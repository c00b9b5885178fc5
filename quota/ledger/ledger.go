package ledger

import (
	"cmp"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Defaults of Options.
const (
	// DefaultHoldAge exceeds the 34 s for which the API server works on one create.
	DefaultHoldAge      = 40 * time.Second
	DefaultLinger       = 4 * time.Second
	DefaultWait         = time.Second
	DefaultLiveInterval = 250 * time.Millisecond
	DefaultMaxBatch     = 128
	DefaultMaxHolds     = 1000
	DefaultStoreTimeout = 10 * time.Second
)

// nameShare is the part of MaxHolds that holds of one name may take.
const nameShare = 8

// Options of a Ledger. The zero value means the defaults.
type Options struct {
	// Clock defaults to the real one. Its differences must be monotonic.
	Clock clock.WithTicker
	// HoldAge is the age at which a hold may end unobserved. Defaults to DefaultHoldAge.
	HoldAge time.Duration
	// Linger is how long a Settle leaves the holds of objects that were observed in a ledger of
	// which nothing else changed, so long as admissions come that often: the next one's write ends
	// them too. Admission counts the same either way. Defaults to DefaultLinger; negative: not at all.
	Linger time.Duration
	// Wait is how long a request waits for holds that stand in its way. Defaults to DefaultWait.
	Wait time.Duration
	// LiveInterval is the least time between the begins of two live observations. Defaults to DefaultLiveInterval.
	LiveInterval time.Duration
	// MaxBatch bounds the requests that one write admits. Defaults to DefaultMaxBatch.
	MaxBatch int
	// MaxHolds bounds the holds in one ledger; beyond it requests are Busy. Advisory holds
	// take at most half of it, those of one project three quarters, those of one name an eighth.
	// Defaults to DefaultMaxHolds.
	MaxHolds int
	// StoreTimeout bounds each call of the Store and the View. Defaults to DefaultStoreTimeout.
	StoreTimeout time.Duration
	// PlatformKeys leaves Kubernetes' own keys to the platform, as quota.ParseOptions do; it
	// matters while a ClusterResourceQuota is gone and its ledger alone tells what it was.
	PlatformKeys bool
	// Recorder defaults to one that does nothing.
	Recorder Recorder
	// Tracer may be nil.
	Tracer Tracer
	// Rand is the source of jitter. Defaults to a random one.
	Rand rand.Source
}

// Ledger decides admission requests and keeps the DeviceLedgers of all quotas. Safe for
// concurrent use. It runs goroutines only while a call waits for them.
type Ledger struct {
	store Store
	view  View
	o     Options
	live  *observer

	mu sync.Mutex // protects following
	// quota name -> account
	accounts map[string]*account
	rand     *rand.Rand
}

// New returns a Ledger over a Store and a View.
func New(s Store, v View, o Options) *Ledger {
	o = o.withDefaults()
	return &Ledger{
		store: s, view: v, o: o, accounts: map[string]*account{}, rand: rand.New(o.Rand),
		live: &observer{view: v, clock: o.Clock, interval: o.LiveInterval, timeout: o.StoreTimeout, recorder: o.Recorder},
	}
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Recorder == nil {
		o.Recorder = nobody{}
	}
	if o.Rand == nil {
		o.Rand = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	o.HoldAge = cmp.Or(o.HoldAge, DefaultHoldAge)
	o.Linger = cmp.Or(o.Linger, min(DefaultLinger, o.HoldAge/4))
	o.Wait = cmp.Or(o.Wait, DefaultWait)
	o.LiveInterval = cmp.Or(o.LiveInterval, DefaultLiveInterval)
	o.MaxBatch = cmp.Or(o.MaxBatch, DefaultMaxBatch)
	o.MaxHolds = cmp.Or(o.MaxHolds, DefaultMaxHolds)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, DefaultStoreTimeout)
	return o
}

// account returns the account of a quota, a new one when there is none.
func (l *Ledger) account(name string) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[name]
	if a == nil {
		a = &account{l: l, name: name}
		l.accounts[name] = a
	}
	return a
}

// jitter returns a random duration below limit.
func (l *Ledger) jitter(limit time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.rand.Int64N(int64(limit)))
}
