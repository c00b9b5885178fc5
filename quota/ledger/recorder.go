package ledger

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// PutResult is what became of one write of a ledger.
type PutResult string

// The results of a write.
const (
	PutStored   PutResult = "stored"
	PutConflict PutResult = "conflict"
	// PutThrottled: the API server asked to come back later.
	PutThrottled PutResult = "throttled"
	// PutUnknown: an error, after which the ledger may be stored or not.
	PutUnknown PutResult = "unknown"
)

// Source is where an observation came from.
type Source string

// The sources of observations.
const (
	SourceCache Source = "cache"
	SourceLive  Source = "live"
)

// Recorder is told what the ledger does, for metrics. All methods are called often, must
// return at once and are safe for concurrent use.
type Recorder interface {
	// Batch: one write admitted that many requests; 0 for a settle alone.
	Batch(size int)
	// Put: one write ended after elapsed.
	Put(result PutResult, elapsed time.Duration)
	// Settled: a stored settle came from source. lag is the longest time that a hold which
	// it ended by observation had waited, by this replica's clock; 0 when there was none.
	Settled(source Source, lag time.Duration)
	// Aged: that many holds ended by age.
	Aged(holds int)
	// Observed: a live observation ended after elapsed.
	Observed(elapsed time.Duration, err error)
}

// AccountState is a ledger in numbers.
type AccountState struct {
	Hard, Used corev1.ResourceList
	// Held is the sum of the holds that count against claims.
	Held corev1.ResourceList
	// Holds is the number of holds, Advisory of them are advisory.
	Holds, Advisory int
	// OldestHold is how long ago this replica first saw the oldest hold.
	OldestHold time.Duration
	Rebuilding bool
}

// nobody is the Recorder of a Ledger without one.
type nobody struct{}

func (nobody) Batch(int)                     {}
func (nobody) Put(PutResult, time.Duration)  {}
func (nobody) Settled(Source, time.Duration) {}
func (nobody) Aged(int)                      {}
func (nobody) Observed(time.Duration, error) {}
