package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/webhooks"
)

// ledgerMetrics counts what the ledger does for Prometheus. Safe for concurrent use.
type ledgerMetrics struct {
	batch     prometheus.Histogram
	puts      *prometheus.CounterVec
	put       *prometheus.HistogramVec
	settles   *prometheus.CounterVec
	settleLag prometheus.Histogram
	aged      prometheus.Counter
	live      *prometheus.HistogramVec
}

var _ ledger.Recorder = (*ledgerMetrics)(nil)

func newLedgerMetrics(r prometheus.Registerer) (*ledgerMetrics, error) {
	const ns = "devicequota_ledger_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: ns + name, Help: help}, labels)
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: ns + name, Help: help, Buckets: webhooks.DurationBuckets()}, labels)
	}
	m := &ledgerMetrics{
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: ns + "batch_requests",
			Help: "Requests that one write admitted; 0 for a settle alone.", Buckets: []float64{0, 1, 2, 4, 8, 16, 32, 64, 128}}),
		puts:    counter("writes_total", "Writes of ledgers by result: stored, conflict, throttled, unknown.", "result"),
		put:     seconds("write_duration_seconds", "Time of a write of a ledger.", "result"),
		settles: counter("settles_total", "Stored settles by what they were counted from: cache, live.", "source"),
		settleLag: prometheus.NewHistogram(prometheus.HistogramOpts{Name: ns + "settle_lag_seconds",
			Help: "How long the oldest hold that a settle ended had waited to be observed.", Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60}}),
		aged: prometheus.NewCounter(prometheus.CounterOpts{Name: ns + "holds_aged_total",
			Help: "Holds that ended by age: their objects were never observed."}),
		live: seconds("live_observation_duration_seconds", "Time of a live observation by result: ok, error.", "result"),
	}
	for _, c := range []prometheus.Collector{m.batch, m.puts, m.put, m.settles, m.settleLag, m.aged, m.live} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	// Alerts ask for rates: what they count has to be 0 before it first happens.
	for _, result := range []ledger.PutResult{ledger.PutStored, ledger.PutConflict, ledger.PutThrottled, ledger.PutUnknown} {
		m.puts.WithLabelValues(string(result))
	}
	for _, source := range []ledger.Source{ledger.SourceCache, ledger.SourceLive} {
		m.settles.WithLabelValues(string(source))
	}
	return m, nil
}

// Batch implements ledger.Recorder.
func (m *ledgerMetrics) Batch(size int) { m.batch.Observe(float64(size)) }

// Put implements ledger.Recorder.
func (m *ledgerMetrics) Put(result ledger.PutResult, elapsed time.Duration) {
	m.puts.WithLabelValues(string(result)).Inc()
	m.put.WithLabelValues(string(result)).Observe(elapsed.Seconds())
}

// Settled implements ledger.Recorder.
func (m *ledgerMetrics) Settled(source ledger.Source, lag time.Duration) {
	m.settles.WithLabelValues(string(source)).Inc()
	if lag > 0 {
		m.settleLag.Observe(lag.Seconds())
	}
}

// Aged implements ledger.Recorder.
func (m *ledgerMetrics) Aged(holds int) { m.aged.Add(float64(holds)) }

// Observed implements ledger.Recorder.
func (m *ledgerMetrics) Observed(elapsed time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.live.WithLabelValues(result).Observe(elapsed.Seconds())
}
