//go:build soak

// Package soak runs the suite for long, over many quotas and over many projects, on a real API
// server with managers as real processes: what must not grow does not, and what grows is
// measured. Run it by make soak and make bench-ledger.
package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	key   = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/devices")
	label = "soak.devicequota.io/covered-by"
)

// world is a cluster with managers.
type world struct {
	t        *testing.T
	cp       *harness.ControlPlane
	managers []*manager

	// ledgerWrites and projectionWrites count what was stored since the start.
	ledgerWrites, projectionWrites atomic.Int64
	// largest is the size of the largest ledger stored, in bytes of JSON.
	largest atomic.Int64
}

// manager is a process and where it tells of itself.
type manager struct {
	*harness.Manager
	metrics, pprof string
}

func start(t *testing.T, replicas int) *world {
	t.Helper()
	cp, err := harness.Start(harness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{t: t, cp: cp}
	t.Cleanup(func() {
		cancel() // an open watch would keep the API server
		for i, m := range w.managers {
			if t.Failed() {
				fmt.Fprintf(os.Stderr, "\nmanager %d:\n%s\n", i, m.LogTail(30))
			}
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		}
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := cp.Install(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cp.ApplyPath(ctx, harness.Root()+"/examples/cluster"); err != nil {
		t.Fatal(err)
	}
	for range replicas {
		w.managers = append(w.managers, w.manager())
	}
	w.follow(ctx)
	return w
}

func (w *world) manager() *manager {
	w.t.Helper()
	m := &manager{metrics: harness.FreeAddress(w.t), pprof: harness.FreeAddress(w.t)}
	var err error
	m.Manager, err = w.cp.StartManager(w.t.Context(), harness.ManagerOptions{Args: []string{"--shutdown-delay=0s",
		"--metrics-bind-address=" + m.metrics, "--metrics-secure=false", "--pprof-bind-address=" + m.pprof}})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// follow counts writes until ctx ends.
func (w *world) follow(ctx context.Context) {
	w.t.Helper()
	c, err := client.NewWithWatch(w.cp.Config, client.Options{Scheme: w.cp.Client.Scheme()})
	if err != nil {
		w.t.Fatal(err)
	}
	follow := func(list client.ObjectList, f func(obj any)) {
		watch, err := c.Watch(ctx, list)
		if err != nil {
			w.t.Fatal(err)
		}
		go func() {
			for e := range watch.ResultChan() {
				f(e.Object)
			}
			if ctx.Err() == nil {
				w.t.Error("a watch of the test ended: its counts are too low")
			}
		}()
	}
	follow(&v1alpha1.DeviceLedgerList{}, func(obj any) {
		if n := w.ledgerWrites.Add(1); n%20 != 0 {
			return // sizes are sampled
		}
		if b, err := json.Marshal(obj); err == nil {
			w.largest.Store(max(w.largest.Load(), int64(len(b))))
		}
	})
	follow(&quotav1.AppliedClusterResourceQuotaList{}, func(any) { w.projectionWrites.Add(1) })
}

// projects creates n namespaces with a label of the value.
func (w *world) projects(value string, n int) []string {
	w.t.Helper()
	names := make([]string, n)
	errs := make(chan error, n)
	slots := make(chan struct{}, 20)
	var wg sync.WaitGroup
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", value, i)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := w.cp.Client.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: names[i], Labels: map[string]string{label: value}}}); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		w.t.Fatal(err)
	default:
	}
	return names
}

// quota creates a quota over the projects with that label value, and waits for its ledger.
func (w *world) quota(name, value string, limit int64) {
	w.t.Helper()
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}
	q.Spec.Quota.Hard = corev1.ResourceList{key: *resource.NewQuantity(limit, resource.DecimalSI)}
	if err := w.cp.Client.Create(w.t.Context(), q); err != nil {
		w.t.Fatal(err)
	}
}

// inForce waits until the ledgers of the quotas exist and admit.
func (w *world) inForce(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.eventually("ledger of "+name, func(ctx context.Context) error {
			l, err := w.cp.Ledger(ctx, name)
			if err == nil && (l.Status.Rebuilding || len(l.Status.Hard) == 0) {
				err = fmt.Errorf("ledger is not ready: %+v", l.Status)
			}
			return err
		})
	}
}

// counted returns nil when ledger, quota and the sum of its projects say n devices, and no hold is left.
func (w *world) counted(ctx context.Context, name string, n int64) error {
	l, err := w.cp.Ledger(ctx, name)
	if err != nil {
		return err
	}
	q := &quotav1.ClusterResourceQuota{}
	if err := w.cp.Client.Get(ctx, client.ObjectKey{Name: name}, q); err != nil {
		return err
	}
	var sum int64
	for _, ns := range q.Status.Namespaces {
		used := ns.Status.Used[key]
		sum += used.Value()
	}
	used, total := l.Status.Used[key], q.Status.Total.Used[key]
	if used.Value() != n || total.Value() != n || sum != n || len(l.Status.Holds) != 0 {
		return fmt.Errorf("%d exist; ledger of %s used %s, %d holds; total %s, projects %d", n, name, used.String(), len(l.Status.Holds), total.String(), sum)
	}
	return nil
}

// existing counts the claims of all namespaces.
func (w *world) existing(ctx context.Context) (int64, error) {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimList"))
	err := w.cp.Client.List(ctx, l)
	return int64(len(l.Items)), err
}

// eventually polls until f returns nil, at most for two minutes.
func (w *world) eventually(what string, f func(ctx context.Context) error) time.Duration {
	w.t.Helper()
	begun := time.Now()
	var last error
	err := wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		last = f(ctx)
		return last == nil, nil
	})
	if err != nil {
		w.t.Fatalf("%s: %v (%v)", what, last, err)
	}
	return time.Since(begun)
}

func claim(namespace, name string) *resourceapi.ResourceClaim {
	return harness.Claim(namespace, name, "gpu.nvidia.com", 1)
}

// footprint is what a manager takes when it has nothing to do.
type footprint struct {
	// heap is what is reachable, in bytes, and objects how many; rss is resident memory.
	heap, rss           int64
	objects, goroutines int64
}

func (f footprint) String() string {
	return fmt.Sprintf("heap %.1f MiB in %d objects, resident %.0f MiB, %d goroutines", float64(f.heap)/(1<<20), f.objects, float64(f.rss)/(1<<20), f.goroutines)
}

// footprint collects garbage and measures. Source of the format: runtime/pprof with debug=1.
func (m *manager) footprint(t *testing.T) footprint {
	t.Helper()
	var f footprint
	for line := range m.lines(t, "http://"+m.pprof+"/debug/pprof/heap?gc=1&debug=1") {
		for prefix, to := range map[string]*int64{"# HeapAlloc = ": &f.heap, "# HeapObjects = ": &f.objects} {
			if s, ok := strings.CutPrefix(line, prefix); ok {
				*to = number(t, s)
			}
		}
	}
	for line := range m.lines(t, "http://"+m.metrics+"/metrics") {
		name, value, _ := strings.Cut(line, " ")
		switch {
		case name == "go_goroutines":
			f.goroutines = number(t, value)
		case name == "process_resident_memory_bytes":
			f.rss = number(t, value)
		}
	}
	if f.heap == 0 || f.rss == 0 || f.goroutines == 0 {
		t.Fatalf("the manager does not tell what it takes: %+v", f)
	}
	return f
}

// holds is how many holds there are by the manager's metrics.
func (m *manager) holds(t *testing.T) int64 {
	t.Helper()
	n, found := int64(0), false
	for line := range m.lines(t, "http://"+m.metrics+"/metrics") {
		if name, value, _ := strings.Cut(line, " "); strings.HasPrefix(name, "devicequota_ledger_holds{") {
			n, found = n+number(t, value), true
		}
	}
	if !found {
		t.Fatal("the manager does not tell how many holds there are")
	}
	return n
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return int64(f)
}

// lines returns the lines of an answer.
func (m *manager) lines(t *testing.T, url string) func(yield func(string) bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %.200s (%v)", url, resp.Status, body, err)
	}
	return func(yield func(string) bool) {
		for s := bufio.NewScanner(strings.NewReader(string(body))); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}
