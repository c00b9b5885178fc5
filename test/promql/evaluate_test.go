package promql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/annotations"
)

// metricName is the label that holds the name of a series.
const metricName = "__name__"

// step is the time between two scrapes, and between two evaluations of an alert.
const step = 30 * time.Second

// history is a time series database in memory: series by their labels as text.
type history map[string]*promql.Series

// add appends a sample.
func (h history) add(l labels.Labels, at time.Time, value float64) {
	key := l.String()
	if h[key] == nil {
		h[key] = &promql.Series{Metric: l}
	}
	h[key].Floats = append(h[key].Floats, promql.FPoint{T: at.UnixMilli(), F: value})
}

// Querier implements storage.Queryable.
func (h history) Querier(int64, int64) (storage.Querier, error) {
	return querier{storage.NoopQuerier(), h}, nil
}

type querier struct {
	storage.Querier
	h history
}

// Select implements storage.Querier.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, s := range q.h {
		matches := true
		for _, m := range matchers {
			matches = matches && m.Matches(s.Metric.Get(m.Name))
		}
		if matches {
			set.series = append(set.series, promql.NewStorageSeries(*s))
		}
	}
	return set
}

type seriesSet struct {
	series []*promql.StorageSeries
	at     int
}

func (s *seriesSet) Next() bool {
	s.at++
	return s.at < len(s.series)
}
func (s *seriesSet) At() storage.Series                { return s.series[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// engine evaluates as Prometheus does.
func engine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		Parser: parser.NewParser(parser.Options{})})
}

// during evaluates a query every step of the time.
func during(t *testing.T, h history, query string, from, to time.Time) promql.Matrix {
	t.Helper()
	q, err := engine().NewRangeQuery(t.Context(), h, nil, query, from, to, step)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer q.Close()
	m, err := q.Exec(t.Context()).Matrix()
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	out := make(promql.Matrix, len(m)) // the query's own memory is used again
	for i, s := range m {
		out[i] = promql.Series{Metric: s.Metric.Copy(), Floats: append([]promql.FPoint(nil), s.Floats...)}
	}
	return out
}

// exposition reads what a replica exported, as Prometheus scrapes it.
func exposition(t *testing.T, name string, target map[string]string) map[string]promql.Sample {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	p, err := textparse.New(data, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]promql.Sample{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		_, _, value := p.Series()
		b := labels.NewBuilder(l)
		for k, v := range target {
			if l.Has(k) { // which Prometheus then calls exported_...
				t.Errorf("%s: the target has a label %s too", l, k)
			}
			b.Set(k, v)
		}
		s := promql.Sample{Metric: b.Labels(), F: value}
		out[s.Metric.String()] = s
	}
}

// scraped is what Prometheus has of the two running managers of test/install: a scrape of each
// before some requests, then one after them again and again. It returns the time of the first.
func scraped(t *testing.T, length time.Duration) (history, time.Time) {
	t.Helper()
	h, begin := history{}, time.Time{}
	for i := range 2 {
		target := map[string]string{"job": "devicequota", "namespace": "devicequota-system", "pod": fmt.Sprint("devicequota-", i),
			"service": "devicequota", "endpoint": "metrics", "container": "manager", "instance": fmt.Sprintf("10.0.0.%d:8443", i)}
		before := exposition(t, fmt.Sprintf("replica-%d-before.prom", i), target)
		after := exposition(t, fmt.Sprintf("replica-%d-after.prom", i), target)
		for _, s := range before {
			if s.Metric.Get(metricName) == "process_start_time_seconds" && begin.IsZero() {
				begin = time.Unix(int64(s.F), 0).Add(time.Minute)
			}
		}
		if begin.IsZero() || len(after) < 100 {
			t.Fatalf("replica %d: no start time, or only %d series", i, len(after))
		}
		for _, s := range before {
			h.add(s.Metric, begin, s.F)
		}
		for at := begin.Add(step); !at.After(begin.Add(length)); at = at.Add(step) {
			for _, s := range after {
				h.add(s.Metric, at, s.F)
			}
		}
		// What Prometheus itself adds for a target.
		up := labels.NewBuilder(labels.FromMap(target)).Set(metricName, "up").Labels()
		for at := begin; !at.After(begin.Add(length)); at = at.Add(step) {
			h.add(up, at, 1)
		}
	}
	return h, begin
}

func TestEveryPanelShowsSomethingOfARunningManager(t *testing.T) {
	t.Parallel()
	h, begin := scraped(t, 5*time.Minute)
	at := begin.Add(2 * time.Minute)
	for chosen, all := range map[string]map[string]string{
		"all": panels(t, ".*", ".*", ".*"),
		"one": panels(t, "load", "load", "gpu.deviceclass.devicequota.io/devices"),
	} {
		for where, query := range all {
			numbers, points := 0, 0
			for _, s := range during(t, h, query, at, at) {
				for _, f := range s.Floats {
					points++
					if !math.IsNaN(f.F) {
						numbers++
					}
				}
			}
			if numbers == 0 {
				t.Errorf("%s, %s chosen: %s gives %d points, none of them a number", where, chosen, query, points)
			}
		}
	}
}

func TestEveryVariableHasTheValuesOfARunningManager(t *testing.T) {
	t.Parallel()
	h, begin := scraped(t, 5*time.Minute)
	at := begin.Add(2 * time.Minute)
	want := map[string][]string{"job": {"devicequota"}, "quota": {"a", "load"}, "project": {"a1", "a2", "load"}, "key": {"gpu.deviceclass.devicequota.io/devices"}}
	for _, v := range board(t).Templating.List {
		if v.Type != "query" {
			continue
		}
		found := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Query)
		if found == nil {
			t.Errorf("%s: %s", v.Name, v.Query)
			continue
		}
		values := map[string]bool{}
		for _, s := range during(t, h, strings.NewReplacer("$job", "devicequota", "$quota", ".*").Replace(found[1]), at, at) {
			values[s.Metric.Get(found[2])] = true
		}
		if got := slices.Sorted(maps.Keys(values)); !slices.Equal(got, want[v.Name]) {
			t.Errorf("%s has values %q, want %q", v.Name, got, want[v.Name])
		}
		delete(want, v.Name)
	}
	if len(want) > 0 {
		t.Errorf("the dashboard lacks variables: %v", want)
	}
}

func TestPanelsOfQuotasAddUp(t *testing.T) {
	t.Parallel()
	h, begin := scraped(t, 5*time.Minute)
	at := begin.Add(2 * time.Minute)
	for query, want := range map[string]string{
		// Both replicas tell the same, so that max adds nothing up.
		`count by (clusterresourcequota, resource, type) (count_values by (clusterresourcequota, resource, type) ("v", devicequota_clusterresourcequota)) != 1`: "[]",
		// What projects use is what the quota says.
		`sum by (clusterresourcequota, resource) (max by (clusterresourcequota, project, resource) (devicequota_clusterresourcequota_project{type="used"}))
		 != max by (clusterresourcequota, resource) (devicequota_clusterresourcequota{type="used"})`: "[]",
		`max(devicequota_clusterresourcequota_project{project="load",type="used"})`: "[{} 5]",
	} {
		var got []string
		for _, s := range during(t, h, query, at, at) {
			got = append(got, fmt.Sprintf("%s %v", s.Metric, s.Floats[0].F))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, want %s", query, got, want)
		}
	}
}

// rule is an alert of the chart.
type rule struct{ Alert, Expr, For, Severity, Summary, Description string }

// pending returns for how long the alert's expression must hold before it fires.
func (r rule) pending(t *testing.T) time.Duration {
	t.Helper()
	if r.For == "" {
		return 0
	}
	d, err := model.ParseDuration(r.For)
	if err != nil {
		t.Fatalf("%s: %v", r.Alert, err)
	}
	return time.Duration(d)
}

// fires returns the first sample with which the alert fires, and whether it ever does.
func (r rule) fires(t *testing.T, h history, from, to time.Time) (promql.Sample, bool) {
	t.Helper()
	pending := r.pending(t)
	for _, s := range during(t, h, strings.ReplaceAll(r.Expr, "JOB", "devicequota"), from, to) {
		var since, last int64
		for _, f := range s.Floats {
			if last == 0 || f.T-last > step.Milliseconds() {
				since = f.T
			}
			if last = f.T; f.T-since >= pending.Milliseconds() {
				return promql.Sample{Metric: s.Metric, T: f.T, F: f.F}, true
			}
		}
	}
	return promql.Sample{}, false
}

// expand returns an annotation as the receiver of the alert reads it.
func (r rule) expand(text string, s promql.Sample) (string, error) {
	values := s.Metric.Map()
	delete(values, metricName)
	const defs = "{{$labels := .Labels}}{{$value := .Value}}"
	return template.NewTemplateExpander(context.Background(), defs+text, r.Alert, template.AlertTemplateData(values, nil, "", s),
		model.Time(s.T), nil, nil, []string{"missingkey=error"}).Expand()
}

func TestAHealthyInstallationRaisesNoAlert(t *testing.T) {
	t.Parallel()
	h, begin := scraped(t, 3*time.Hour)
	for _, r := range rules(t) {
		if s, fires := r.fires(t, h, begin, begin.Add(3*time.Hour)); fires {
			t.Errorf("%s fires for %s: %v", r.Alert, s.Metric, s.F)
		}
	}
}

// situation is what Prometheus has: series to their value at minute m.
type situation map[string]func(m float64) float64

func always(v float64) func(float64) float64  { return func(float64) float64 { return v } }
func growing(v float64) func(float64) float64 { return func(m float64) float64 { return v * m } }
func from(m, v float64) func(float64) float64 {
	return func(at float64) float64 {
		if at < m {
			return 0
		}
		return v
	}
}

const (
	used      = `devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpus",type="used"}`
	hard      = `devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpus",type="hard"}`
	decisions = `devicequota_admission_requests_total{webhook="validate-resourceclaim",decision=`
	reasons   = `devicequota_admission_reasons_total{webhook="validate-resourceclaim",reason="QuotaExceeded",decision=`
	seconds   = `devicequota_admission_duration_seconds_bucket{webhook="validate-resourceclaim",le=`
	writes    = `devicequota_ledger_writes_total{result=`
	expiry    = `devicequota_certificate_expiry_timestamp_seconds{kind="serving"}`
)

// situations are those in which each alert fires, with a part of its text, and those just not
// bad enough, in which it must not.
func situations(begin time.Time) map[string]struct {
	fires, silent []situation
	text          string
} {
	day := 24 * time.Hour.Seconds()
	at := func(days float64) func(float64) float64 { return always(float64(begin.Unix()) + days*day) }
	return map[string]struct {
		fires, silent []situation
		text          string
	}{
		"DeviceQuotaAlmostFull": {[]situation{{used: always(91), hard: always(100)}},
			[]situation{{used: always(90), hard: always(100)}, {used: always(0), hard: always(0)}, {used: from(100, 100), hard: always(100)}},
			"91% of gpus in ClusterResourceQuota q is used"},
		"DeviceQuotaExceeded": {[]situation{{used: always(5), hard: always(4)}, {used: always(5), hard: always(0)}},
			[]situation{{used: always(4), hard: always(4)}}, "5 of gpus is used in ClusterResourceQuota q"},
		"DeviceQuotaManyDenials": {[]situation{{reasons + `"denied"}`: growing(120)}, {reasons + `"invalid"}`: growing(120)}},
			[]situation{{reasons + `"denied"}`: growing(50)}, {reasons + `"warned"}`: growing(120)}},
			"validate-resourceclaim refuses 2 requests a second for the reason QuotaExceeded"},
		"DeviceQuotaAdmissionErrors": {[]situation{{decisions + `"error"}`: growing(1)}},
			[]situation{{decisions + `"error"}`: always(7)}, {decisions + `"denied"}`: growing(60)}}, "requests of validate-resourceclaim a second get no decision"},
		"DeviceQuotaAdmissionBusy": {[]situation{{decisions + `"busy"}`: growing(20), decisions + `"allowed"}`: growing(80)}},
			[]situation{{decisions + `"busy"}`: growing(5), decisions + `"allowed"}`: growing(95)}, {decisions + `"busy"}`: always(0), decisions + `"allowed"}`: always(0)}},
			"20% of the requests of validate-resourceclaim are answered 429"},
		"DeviceQuotaAdmissionSlow": {[]situation{{seconds + `"1"}`: growing(90), seconds + `"2.5"}`: growing(100), seconds + `"+Inf"}`: growing(100)}},
			[]situation{{seconds + `"0.5"}`: growing(100), seconds + `"1"}`: growing(100), seconds + `"+Inf"}`: growing(100)}},
			"takes longer than 2.35s"},
		"DeviceQuotaPanics": {[]situation{{`devicequota_admission_panics_total{webhook="w"}`: from(60, 1)}},
			[]situation{{`devicequota_admission_panics_total{webhook="w"}`: always(3)}}, "w panicked"},
		"DeviceQuotaOldHolds": {[]situation{{`devicequota_ledger_oldest_hold_age_seconds{clusterresourcequota="q"}`: growing(60)}},
			[]situation{{`devicequota_ledger_oldest_hold_age_seconds{clusterresourcequota="q"}`: always(60)}}, "ClusterResourceQuota q is"},
		"DeviceQuotaLedgerConflicts": {[]situation{{writes + `"conflict"}`: growing(60), writes + `"stored"}`: growing(40)}},
			[]situation{{writes + `"conflict"}`: growing(40), writes + `"stored"}`: growing(60)}, {writes + `"conflict"}`: always(9), writes + `"stored"}`: always(1)}},
			"60% of the writes of DeviceLedgers are conflicts"},
		"DeviceQuotaLedgerWritesThrottled": {[]situation{{writes + `"throttled"}`: growing(1)}}, []situation{{writes + `"throttled"}`: always(1)}}, "FlowSchema"},
		"DeviceQuotaLedgerRebuilding": {[]situation{{`devicequota_ledger_rebuilding{clusterresourcequota="q"}`: always(1)}},
			[]situation{{`devicequota_ledger_rebuilding{clusterresourcequota="q"}`: always(0)}}, "ClusterResourceQuota q until"},
		"DeviceQuotaUsageStale": {[]situation{{`devicequota_watch_stale{resource="claims"}`: always(1)}},
			[]situation{{`devicequota_watch_stale{resource="claims"}`: always(0)}}, "not heard of claims"},
		"DeviceQuotaCertificateExpires": {[]situation{{expiry: at(6.9)}}, []situation{{expiry: at(8)}}, "The certificate (serving) ends in 6d"},
		"DeviceQuotaWebhookDown": {[]situation{{}, {`up{pod="a"}`: always(0), `up{pod="b"}`: always(0)}},
			[]situation{{`up{pod="a"}`: always(1), `up{pod="b"}`: always(0)}}, "Claims are refused"},
	}
}

// remember scrapes the situation for the time.
func (s situation) remember(t *testing.T, begin time.Time, length time.Duration) history {
	t.Helper()
	h := history{}
	for text, value := range s {
		l, err := parser.NewParser(parser.Options{}).ParseMetric(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		l = labels.NewBuilder(l).Set("job", "devicequota").Labels()
		for at := begin; !at.After(begin.Add(length)); at = at.Add(step) {
			h.add(l, at, value(at.Sub(begin).Minutes()))
		}
	}
	return h
}

func TestEveryAlertFiresWhenItShouldAndOnlyThen(t *testing.T) {
	t.Parallel()
	begin, length := time.Unix(1_800_000_000, 0), 110*time.Minute
	all := situations(begin)
	for _, r := range rules(t) {
		s, ok := all[r.Alert]
		if !ok || len(s.fires) == 0 || len(s.silent) == 0 {
			t.Errorf("%s: no situation in which it fires, or none in which it does not", r.Alert)
		}
		delete(all, r.Alert)
		for i, bad := range s.fires {
			sample, fires := r.fires(t, bad.remember(t, begin, length), begin, begin.Add(length))
			if !fires {
				t.Errorf("%s: does not fire in situation %d", r.Alert, i)
				continue
			}
			summary, err := r.expand(r.Summary, sample)
			text, err2 := r.expand(r.Description, sample)
			if err := errors.Join(err, err2); err != nil || summary == "" || i == 0 && !strings.Contains(text, s.text) {
				t.Errorf("%s: %v: %q does not say %q", r.Alert, err, text, s.text)
			}
		}
		for i, good := range s.silent {
			if sample, fires := r.fires(t, good.remember(t, begin, length), begin, begin.Add(length)); fires {
				t.Errorf("%s: fires in situation %d: %s %v", r.Alert, i, sample.Metric, sample.F)
			}
		}
	}
	for name := range all {
		t.Errorf("there is no alert %s", name)
	}
}
