package cluster

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// QuotaMetrics configure what is exported of quotas.
type QuotaMetrics struct {
	View  *View
	Store *Store
	// State tells a ledger in numbers. Source: ledger.Ledger.
	State func(*v1alpha1.DeviceLedger) ledger.AccountState
	// ProjectSeries bounds the series of use by project, over all quotas; 0 exports none.
	ProjectSeries int
	// Clock is the real one when nil.
	Clock clock.PassiveClock
}

// quotaCollector exports limits and use. Every replica tells the same, since all of them
// follow all ledgers: what a replica wrote last may be long out of date.
type quotaCollector struct {
	o QuotaMetrics

	quota, project, leftOut, holds, oldest, rebuilding *prometheus.Desc

	mu sync.Mutex // protects following
	// seen is when a scrape first met each hold, for replicas that do not decide.
	seen map[types.UID]time.Time
}

// NewQuotaCollector exports limits, use and holds of every quota, in the form of
// kube_resourcequota, and its use by project.
func NewQuotaCollector(o QuotaMetrics) prometheus.Collector {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("devicequota_"+name, help, labels, nil)
	}
	const name = "clusterresourcequota"
	return &quotaCollector{
		o: o,
		quota: desc("clusterresourcequota", "Limit, use and held charges of a quota by resource and type: hard, used, held.",
			name, "resource", "type"),
		project: desc("clusterresourcequota_project", "Use of a quota by one of its projects, and the limit that it shares, by resource and type: hard, used.",
			name, "project", "resource", "type"),
		leftOut:    desc("clusterresourcequota_project_left_out", "Series of use by project that are left out because there would be too many."),
		holds:      desc("ledger_holds", "Holds in the quota's ledger by kind: charged, advisory.", name, "kind"),
		oldest:     desc("ledger_oldest_hold_age_seconds", "Age of the oldest hold since this replica first saw it.", name),
		rebuilding: desc("ledger_rebuilding", "1 while nothing is admitted because the ledger was lost.", name),
	}
}

// Describe implements prometheus.Collector.
func (c *quotaCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.quota, c.project, c.leftOut, c.holds, c.oldest, c.rebuilding} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *quotaCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[types.UID]time.Time{}
	for _, name := range c.o.Store.Names() {
		l, err := c.o.Store.Get(context.Background(), name)
		if err != nil {
			continue // it has just gone
		}
		c.collectLedger(out, l, seen)
	}
	c.seen = seen
	if c.o.ProjectSeries > 0 && c.o.View.Synced() { // before, nothing is charged
		c.collectProjects(out)
	}
}

func sendGauge(out chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func amount(l corev1.ResourceList, key corev1.ResourceName) float64 {
	q := l[key]
	return q.AsApproximateFloat64()
}

func (c *quotaCollector) collectLedger(out chan<- prometheus.Metric, l *v1alpha1.DeviceLedger, seen map[types.UID]time.Time) {
	s := c.o.State(l)
	now := c.o.Clock.Now()
	oldest := s.OldestHold
	for i := range l.Status.Holds {
		uid := l.Status.Holds[i].UID
		at, ok := c.seen[uid]
		if !ok {
			at = now
		}
		seen[uid] = at
		oldest = max(oldest, now.Sub(at))
	}
	for _, key := range quota.SortedKeys(s.Hard) {
		sendGauge(out, c.quota, amount(s.Hard, key), l.Name, string(key), "hard")
		sendGauge(out, c.quota, amount(s.Used, key), l.Name, string(key), "used")
		sendGauge(out, c.quota, amount(s.Held, key), l.Name, string(key), "held")
	}
	sendGauge(out, c.holds, float64(s.Holds-s.Advisory), l.Name, "charged")
	sendGauge(out, c.holds, float64(s.Advisory), l.Name, "advisory")
	sendGauge(out, c.oldest, oldest.Seconds(), l.Name)
	sendGauge(out, c.rebuilding, number(s.Rebuilding), l.Name)
}

// collectProjects exports the projects that use anything first: they matter most when there
// are too many.
func (c *quotaCollector) collectProjects(out chan<- prometheus.Metric) {
	type entry struct {
		quota     *quota.Quota
		namespace string
		used      corev1.ResourceList
	}
	var using, idle []entry
	for _, name := range c.o.View.QuotaNames() {
		o := c.o.View.Cached().Observe(name, nil, nil)
		if o.Quota == nil {
			continue // it has just gone
		}
		for _, namespace := range slices.Sorted(maps.Keys(o.ByNamespace)) {
			e := entry{o.Quota, namespace, o.ByNamespace[namespace]}
			if len(quota.Positive(e.used)) > 0 {
				using = append(using, e)
			} else {
				idle = append(idle, e)
			}
		}
	}
	left, leftOut := c.o.ProjectSeries, 0
	for _, e := range append(using, idle...) {
		series := 2 * len(e.quota.Keys)
		if series > left {
			leftOut += series
			continue
		}
		left -= series
		for i := range e.quota.Keys {
			key := e.quota.Keys[i].Name
			sendGauge(out, c.project, amount(e.quota.Hard, key), e.quota.Name, e.namespace, string(key), "hard")
			sendGauge(out, c.project, amount(e.used, key), e.quota.Name, e.namespace, string(key), "used")
		}
	}
	sendGauge(out, c.leftOut, float64(leftOut))
}
