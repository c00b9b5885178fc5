package ledger

import (
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Defaults of Options.
const (
	// DefaultHoldAge exceeds the 34 s for which the API server works on one create.
	DefaultHoldAge      = 40 * time.Second
	DefaultWait         = time.Second
	DefaultLiveInterval = 250 * time.Millisecond
	DefaultMaxBatch     = 128
	DefaultMaxHolds     = 1000
	DefaultStoreTimeout = 10 * time.Second
)

// Options of a Ledger. The zero value means the defaults.
type Options struct {
	// Clock defaults to the real one. Its differences must be monotonic.
	Clock clock.WithTicker
	// HoldAge is the age at which a hold may end unobserved. Defaults to DefaultHoldAge.
	HoldAge time.Duration
	// Wait is how long a request waits for holds that stand in its way. Defaults to DefaultWait.
	Wait time.Duration
	// LiveInterval is the least time between the begins of two live observations. Defaults to DefaultLiveInterval.
	LiveInterval time.Duration
	// MaxBatch bounds the requests that one write admits. Defaults to DefaultMaxBatch.
	MaxBatch int
	// MaxHolds bounds the holds in one ledger; beyond it requests are Busy. Advisory holds
	// take at most half of it. Defaults to DefaultMaxHolds.
	MaxHolds int
	// StoreTimeout bounds each call of the Store and the View. Defaults to DefaultStoreTimeout.
	StoreTimeout time.Duration
	// PlatformKeys leaves Kubernetes' own keys to the platform, as quota.ParseOptions do; it
	// matters while a ClusterResourceQuota is gone and its ledger alone tells what it was.
	PlatformKeys bool
	// Recorder defaults to one that does nothing.
	Recorder Recorder
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
}

// Conditions computes a ledger's conditions from what it was settled by. Transition times
// need not be set: a condition whose status did not change keeps its own.
type Conditions func(o quota.Observed, l v1alpha1.DeviceLedgerStatus) []v1alpha1.LedgerCondition

// Settled is the result of a Settle.
type Settled struct {
	// Observed is what the ledger was recounted from: the one source for totals and projects.
	Observed quota.Observed
	// Source of Observed.
	Source Source
	// Ledger as stored; nil when there is neither a quota nor a ledger of that name.
	Ledger *v1alpha1.DeviceLedger
	// Written tells whether something had changed.
	Written bool
	// Again is when the ledger wants to be settled again without any event, because holds or
	// the rebuilding mark grow old; 0 when it does not.
	Again time.Duration
}
