package webhooks

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts admissions for Prometheus. Its labels come from closed sets: webhook,
// decision and reason. What alerts count is 0 from the start: the rate of a counter that
// begins at 1 does not tell its first event. Safe for concurrent use.
type Metrics struct {
	admissions *prometheus.CounterVec
	reasons    *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	inFlight   *prometheus.GaugeVec
	panics     *prometheus.CounterVec
}

var _ Recorder = (*Metrics)(nil)

// DurationBuckets are those of the admission latency, in seconds: the API server's interest
// begins at a millisecond and ends at the webhooks' timeout.
func DurationBuckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
}

// NewMetrics returns metrics that are registered with r. The error is that of the registration.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devicequota_admission_requests_total",
			Help: "Admission requests by webhook and decision (allowed, warned, audited, mutated, unchecked, denied, invalid, busy, error).",
		}, []string{"webhook", "decision"}),
		reasons: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devicequota_admission_reasons_total",
			Help: "Reasons given in refusals and warnings, by decision.",
		}, []string{"webhook", "decision", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "devicequota_admission_duration_seconds",
			Help: "Time to answer an admission request.", Buckets: DurationBuckets(),
		}, []string{"webhook"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "devicequota_admission_in_flight",
			Help: "Admission requests that are being answered.",
		}, []string{"webhook"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devicequota_admission_panics_total",
			Help: "Panics that were turned into a 500 answer. Each one is a bug.",
		}, []string{"webhook"}),
	}
	for _, c := range []prometheus.Collector{m.admissions, m.reasons, m.duration, m.inFlight, m.panics} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	for _, path := range paths() {
		m.panics.WithLabelValues(path[1:])
		m.inFlight.WithLabelValues(path[1:])
		for _, decision := range decisions() {
			m.admissions.WithLabelValues(path[1:], decision)
		}
	}
	return m, nil
}

// Admission implements Recorder.
func (m *Metrics) Admission(webhook, decision string, reasons []Reason, elapsed time.Duration) {
	m.admissions.WithLabelValues(webhook, decision).Inc()
	m.duration.WithLabelValues(webhook).Observe(elapsed.Seconds())
	for _, r := range reasons {
		m.reasons.WithLabelValues(webhook, decision, string(r)).Inc()
	}
}

// InFlight implements Recorder.
func (m *Metrics) InFlight(webhook string, delta int) {
	m.inFlight.WithLabelValues(webhook).Add(float64(delta))
}

// Panic implements Recorder.
func (m *Metrics) Panic(webhook string) { m.panics.WithLabelValues(webhook).Inc() }
