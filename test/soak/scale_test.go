//go:build soak

package soak

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

var write = flag.String("write", "", "Markdown file whose sections between the ledger markers are replaced; empty: print only")

// sample is what a number of creates took.
type sample struct {
	perSecond     float64
	p50, p99      time.Duration
	puts          float64       // ledger writes per create
	cpu           time.Duration // of all managers, per create
	admitted      int
	denied, other []error
}

// creates makes n claims by a number of clients, spread over projects.
func (w *world) creates(projects []string, prefix string, clients, n int) sample {
	w.t.Helper()
	cpu, puts, begun := w.cpu(), w.ledgerWrites.Load(), time.Now()
	latencies := make([]time.Duration, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var s sample
	for range clients {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				at := time.Now()
				err := w.cp.Client.Create(w.t.Context(), claim(projects[i%len(projects)], fmt.Sprintf("%s-%d", prefix, i)))
				latencies[i] = time.Since(at)
				mu.Lock()
				switch {
				case err == nil:
					s.admitted++
				case apierrors.IsForbidden(err):
					s.denied = append(s.denied, err)
				default:
					s.other = append(s.other, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	s.perSecond = float64(n) / time.Since(begun).Seconds()
	slices.Sort(latencies)
	s.p50, s.p99 = latencies[n/2], latencies[n*99/100]
	s.puts = float64(w.ledgerWrites.Load()-puts) / float64(n)
	s.cpu = (w.cpu() - cpu) / time.Duration(n)
	return s
}

// cpu is what the managers have used.
func (w *world) cpu() time.Duration {
	w.t.Helper()
	var sum time.Duration
	for _, m := range w.managers {
		d, err := m.CPU()
		if err != nil {
			w.t.Fatal(err)
		}
		sum += d
	}
	return sum
}

// all fails unless everything was admitted.
func (s sample) all(t *testing.T, what string) {
	t.Helper()
	if len(s.denied)+len(s.other) > 0 {
		t.Errorf("%s: %d admitted, denied: %v, other answers: %v", what, s.admitted, s.denied, s.other)
	}
}

const millisecond = 100 * time.Microsecond // of precision

// row is a sample beside the one that it is compared with.
func (s sample) row(to sample) string {
	ratio := func(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
	return fmt.Sprintf("%.0f | %s | %v | %v | %s | %.2f | %v | %s", s.perSecond, ratio(s.perSecond, to.perSecond), s.p50.Round(millisecond),
		s.p99.Round(millisecond), ratio(float64(s.p50), float64(to.p50)), s.puts, s.cpu.Round(10*time.Microsecond), ratio(float64(s.cpu), float64(to.cpu)))
}

const columns = "creates/s | ratio | p50 | p99 | ratio of p50 | ledger PUTs per create | manager CPU per create | ratio |\n"

// TestScaleManyQuotasOverOneProject: every create is charged to each of the quotas. The
// tightest limits, whatever its place among them, and who does not fit leaves a hold nowhere.
func TestScaleManyQuotasOverOneProject(t *testing.T) {
	w := start(t, 2)
	type measured struct {
		quotas    int
		one, many sample
		at        time.Duration
	}
	var rows []measured
	for _, n := range []int{1, 10, 50, 200} {
		value := fmt.Sprintf("quotas-%d", n)
		project := w.projects(value, 1)
		one, many, free := 30, 200, 5
		if n > 50 {
			one, many = 10, 60
		}
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%03d", value, i)
			limit := int64(1_000_000)
			if i == n/2 {
				limit = int64(one + many + free)
			}
			w.quota(names[i], value, limit)
		}
		w.inForce(names...)
		m := measured{quotas: n, one: w.creates(project, "one", 1, one), many: w.creates(project, "many", 20, many)}
		m.one.all(t, value+", one client")
		m.many.all(t, value+", 20 clients")
		last := w.creates(project, "last", 20, 20)
		if last.admitted != free || len(last.other) > 0 {
			t.Errorf("%s: %d admitted of %d places, other answers: %v", value, last.admitted, free, last.other)
		}
		for _, err := range last.denied {
			if !strings.Contains(err.Error(), "exceeded quota: "+names[n/2]) {
				t.Errorf("%s: denied by another than the tightest: %v", value, err)
			}
		}
		m.at = w.eventually(value+" at rest", func(ctx context.Context) error {
			for _, name := range names {
				if err := w.counted(ctx, name, int64(one+many+free)); err != nil {
					return err
				}
			}
			return nil
		})
		t.Logf("%d quotas: one client %+v; 20 clients %+v; at rest after %v", n, m.one, m.many, m.at)
		rows = append(rows, m)
	}
	var b strings.Builder
	b.WriteString(machine() + ", two managers; ratios to one quota.\n\n| quotas over one project | clients | " + columns + "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, m := range rows {
		fmt.Fprintf(&b, "| %d | 1 | %s |\n", m.quotas, m.one.row(rows[0].one))
	}
	for _, m := range rows {
		fmt.Fprintf(&b, "| %d | 20 | %s |\n", m.quotas, m.many.row(rows[0].many))
	}
	publish(t, "ledger-quotas", b.String())
}

// TestScaleOneQuotaOverManyProjects: the ledger does not grow with the projects, and what is
// projected into them is bounded by the write budget.
func TestScaleOneQuotaOverManyProjects(t *testing.T) {
	w := start(t, 2)
	type measured struct {
		projects              int
		one, many             sample
		ledger, status        int           // bytes
		shown, own            time.Duration // one change
		changeCPU             time.Duration
		changeWrites, perSecs float64
	}
	var rows []measured
	const one, many = 50, 1000
	for _, n := range []int{10, 1000} {
		value := fmt.Sprintf("projects-%d", n)
		projects := w.projects(value, n)
		w.quota(value, value, 1_000_000)
		w.inForce(value)
		w.eventually("the views of "+value, func(ctx context.Context) error { return w.views(ctx, value, projects, 0) })
		m := measured{projects: n}
		writes, begun := w.projectionWrites.Load(), time.Now()
		m.one = w.creates(projects, "one", 1, one)
		m.many = w.creates(projects, "many", 20, many)
		m.one.all(t, value+", one client")
		m.many.all(t, value+", 20 clients")
		w.eventually("the views of "+value, func(ctx context.Context) error { return w.views(ctx, value, projects, one+many) })
		m.perSecs = float64(w.projectionWrites.Load()-writes) / time.Since(begun).Seconds()
		if m.perSecs > 60 { // the budget is 50 a second, and a second's worth at once
			t.Errorf("%s: %.1f writes of views a second, the budget is 50", value, m.perSecs)
		}
		w.eventually(value+" at rest", func(ctx context.Context) error { return w.counted(ctx, value, one+many) })
		m.ledger, m.status = w.sizes(value)

		cpu, writes := w.cpu(), w.projectionWrites.Load()
		if err := w.cp.Client.Create(t.Context(), claim(projects[n-1], "another")); err != nil {
			t.Fatal(err)
		}
		m.own = w.eventually("the project's own view", func(ctx context.Context) error { return w.views(ctx, value, projects[n-1:], one+many+1) })
		m.shown = m.own + w.eventually("every view", func(ctx context.Context) error { return w.views(ctx, value, projects, one+many+1) })
		m.changeCPU, m.changeWrites = w.cpu()-cpu, float64(w.projectionWrites.Load()-writes)
		if m.shown > time.Minute {
			t.Errorf("%s: a change was shown everywhere only after %v", value, m.shown)
		}
		t.Logf("%d projects: %+v", n, m)
		rows = append(rows, m)
	}
	var b strings.Builder
	b.WriteString(machine() + ", two managers; ratios to 10 projects.\n\n| projects under one quota | clients | " + columns + "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, m := range rows {
		fmt.Fprintf(&b, "| %d | 1 | %s |\n", m.projects, m.one.row(rows[0].one))
	}
	for _, m := range rows {
		fmt.Fprintf(&b, "| %d | 20 | %s |\n", m.projects, m.many.row(rows[0].many))
	}
	b.WriteString("\n| projects under one quota | ledger, bytes | quota status, bytes | writes of views a second under load | one change: in its own project | in all projects | writes of views | manager CPU |\n|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, m := range rows {
		fmt.Fprintf(&b, "| %d | %d | %d | %.1f | %v | %v | %.0f | %v |\n", m.projects, m.ledger, m.status, m.perSecs, m.own.Round(10*time.Millisecond),
			m.shown.Round(10*time.Millisecond), m.changeWrites, m.changeCPU)
	}
	publish(t, "ledger-projects", b.String())
}

// views returns nil when the quota's view in each of the projects shows n devices in total.
func (w *world) views(ctx context.Context, quota string, projects []string, n int64) error {
	var l quotav1.AppliedClusterResourceQuotaList
	var o []client.ListOption
	if len(projects) == 1 {
		o = append(o, client.InNamespace(projects[0]))
	}
	if err := w.cp.Client.List(ctx, &l, o...); err != nil {
		return err
	}
	shown := map[string]resource.Quantity{}
	for _, a := range l.Items {
		if a.Name == quota {
			shown[a.Namespace] = a.Status.Total.Used[key]
		}
	}
	for _, p := range projects {
		if got, ok := shown[p]; !ok || got.Value() != n {
			return fmt.Errorf("the view in %s shows %s, want %d", p, got.String(), n)
		}
	}
	return nil
}

// sizes returns the bytes of a quota's ledger and of its status, as JSON.
func (w *world) sizes(quota string) (ledger, status int) {
	w.t.Helper()
	l, err := w.cp.Ledger(w.t.Context(), quota)
	if err != nil {
		w.t.Fatal(err)
	}
	l.ManagedFields = nil
	q := &quotav1.ClusterResourceQuota{}
	if err := w.cp.Client.Get(w.t.Context(), client.ObjectKey{Name: quota}, q); err != nil {
		w.t.Fatal(err)
	}
	return size(w.t, l), size(w.t, q.Status)
}

func size(t *testing.T, v any) int {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

// machine says where and when it was measured.
func machine() string {
	return fmt.Sprintf("Measured on %s: %d cores, clients, API server, etcd and managers on the same machine", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU())
}

// publish prints a section, and replaces it in the file to write.
func publish(t *testing.T, section, text string) {
	t.Helper()
	t.Logf("%s\n%s", section, text)
	if *write == "" || t.Failed() {
		return
	}
	if err := harness.ReplaceSection(*write, section, text); err != nil {
		t.Fatal(err)
	}
}
