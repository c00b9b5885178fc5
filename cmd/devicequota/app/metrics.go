package app

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
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
	quota     *prometheus.GaugeVec
	holds     *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	rebuild   *prometheus.GaugeVec

	mu sync.Mutex // protects following
	// quota -> resources that the gauge has
	keys map[string][]corev1.ResourceName
}

var _ ledger.Recorder = (*ledgerMetrics)(nil)

func newLedgerMetrics(r prometheus.Registerer) (*ledgerMetrics, error) {
	const ns = "devicequota_ledger_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: ns + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: ns + name, Help: help}, labels)
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: ns + name, Help: help, Buckets: webhooks.DurationBuckets()}, labels)
	}
	m := &ledgerMetrics{
		keys: map[string][]corev1.ResourceName{},
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: ns + "batch_requests",
			Help: "Requests that one write admitted; 0 for a settle alone.", Buckets: []float64{0, 1, 2, 4, 8, 16, 32, 64, 128}}),
		puts:    counter("writes_total", "Writes of ledgers by result: stored, conflict, throttled, unknown.", "result"),
		put:     seconds("write_duration_seconds", "Time of a write of a ledger.", "result"),
		settles: counter("settles_total", "Stored settles by what they were counted from: cache, live.", "source"),
		settleLag: prometheus.NewHistogram(prometheus.HistogramOpts{Name: ns + "settle_lag_seconds",
			Help: "How long the oldest hold that a settle ended had waited to be observed.", Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60}}),
		aged: prometheus.NewCounter(prometheus.CounterOpts{Name: ns + "holds_aged_total",
			Help: "Holds that ended by age: their objects were never observed."}),
		live:    seconds("live_observation_duration_seconds", "Time of a live observation by result: ok, error.", "result"),
		holds:   gauge("holds", "Holds in the quota's ledger by kind: charged, advisory.", "clusterresourcequota", "kind"),
		oldest:  gauge("oldest_hold_age_seconds", "Age of the oldest hold since this replica first saw it.", "clusterresourcequota"),
		rebuild: gauge("rebuilding", "1 while nothing is admitted because the ledger was lost.", "clusterresourcequota"),
		quota: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "devicequota_clusterresourcequota",
			Help: "Limit, use and held charges of a quota by resource and type: hard, used, held."}, []string{"clusterresourcequota", "resource", "type"}),
	}
	for _, c := range []prometheus.Collector{m.batch, m.puts, m.put, m.settles, m.settleLag, m.aged, m.live, m.holds, m.oldest, m.rebuild, m.quota} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
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

// Account implements ledger.Recorder.
func (m *ledgerMetrics) Account(name string, a ledger.AccountState) {
	m.holds.WithLabelValues(name, "charged").Set(float64(a.Holds - a.Advisory))
	m.holds.WithLabelValues(name, "advisory").Set(float64(a.Advisory))
	m.oldest.WithLabelValues(name).Set(a.OldestHold.Seconds())
	rebuilding := 0.0
	if a.Rebuilding {
		rebuilding = 1
	}
	m.rebuild.WithLabelValues(name).Set(rebuilding)
	keys := quota.SortedKeys(a.Hard)
	for _, key := range keys {
		for kind, l := range map[string]corev1.ResourceList{"hard": a.Hard, "used": a.Used, "held": a.Held} {
			q := l[key]
			m.quota.WithLabelValues(name, string(key), kind).Set(q.AsApproximateFloat64())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.keys[name] {
		if !slices.Contains(keys, key) {
			m.quota.DeletePartialMatch(prometheus.Labels{"clusterresourcequota": name, "resource": string(key)})
		}
	}
	m.keys[name] = keys
}

// Forget implements ledger.Recorder.
func (m *ledgerMetrics) Forget(name string) {
	m.mu.Lock()
	delete(m.keys, name)
	m.mu.Unlock()
	labels := prometheus.Labels{"clusterresourcequota": name}
	for _, g := range []*prometheus.GaugeVec{m.quota, m.holds, m.oldest, m.rebuild} {
		g.DeletePartialMatch(labels)
	}
}
