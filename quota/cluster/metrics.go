package cluster

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devicequota/devicequota/quota"
)

// collector exports what a replica knows of itself.
type collector struct {
	view       *View
	projection *Projection

	synced, contact, stale, objects, recount, waiting, writes *prometheus.Desc
}

// NewCollector exports the health of the watches and the size of the index, and, unless
// projection is nil, how far the projections are behind.
func NewCollector(v *View, projection *Projection) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("devicequota_"+name, help, labels, nil)
	}
	return &collector{
		view: v, projection: projection,
		synced:  desc("watch_synced", "1 once a watched resource was received completely.", "resource"),
		contact: desc("watch_contact_age_seconds", "How long ago the API server was last heard of a watched resource.", "resource"),
		stale:   desc("watch_stale", "1 while nothing was heard of a watched resource for too long.", "resource"),
		objects: desc("index_objects", "Objects that are counted, by resource.", "resource"),
		recount: desc("index_recount_duration_seconds", "How long the last full recount took."),
		waiting: desc("projection_waiting", "Projections of quotas into projects, and statuses of quotas, that wait to be written."),
		writes:  desc("projection_writes_total", "Writes of projections and quota statuses."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.synced, c.contact, c.stale, c.objects, c.recount, c.waiting, c.writes} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	stale := map[string]bool{}
	for _, s := range c.view.Stale() {
		stale[s.Resource] = true
	}
	now := c.view.o.Clock.Now()
	for _, f := range c.view.allFeeds() {
		h := f.Health()
		gauge(c.synced, number(h.Synced), f.Name())
		gauge(c.stale, number(stale[f.Name()]), f.Name())
		if !h.Contact.IsZero() {
			gauge(c.contact, now.Sub(h.Contact).Seconds(), f.Name())
		}
	}
	claims, pods, took := c.view.index.size()
	gauge(c.objects, float64(claims), quota.Claims.String())
	gauge(c.objects, float64(pods), quota.Pods.String())
	gauge(c.recount, took.Seconds())
	if c.projection != nil {
		waiting, writes := c.projection.Backlog()
		gauge(c.waiting, float64(waiting))
		out <- prometheus.MustNewConstMetric(c.writes, prometheus.CounterValue, float64(writes))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
