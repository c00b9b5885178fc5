package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/allocator/cluster/feed"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// recorder keeps Events.
type recorder struct{ events []string }

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	name := ""
	if o, ok := regarding.(metav1.Object); ok {
		name = o.GetName()
	}
	r.events = append(r.events, fmt.Sprintf("%s %s %s: %s", name, kind, reason, fmt.Sprintf(note, args...)))
}

// newUsage returns a reconciler over a simulation with one quota q over project a, and an
// in-memory ledger.
func newUsage(t *testing.T, devicesLimit int64) (*Usage, *simulation, *recorder) {
	t.Helper()
	s, _ := newServed(t, 7)
	source, err := devices.NewSource(devices.SourceOptions{API: s.view.o.API, Builder: allocator.BuilderOptions{}, Clock: s.clock})
	if err != nil {
		t.Fatal(err)
	}
	s.view.o.Source, s.view.o.StaleAfter = source, DefaultStaleAfter
	s.limit(devicesLimit)
	set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "x"}}})
	set(s, quota.Claims, s.claims, s.claim())
	set(s, quota.Pods, s.pods, s.pod())
	r := &recorder{}
	u := NewUsage(UsageOptions{View: s.view, Ledger: ledger.New(ledger.NewMemoryStore(s.clock), s.view, ledger.Options{Clock: s.clock}), Recorder: r, Clock: s.clock})
	return u, s, r
}

func (s *simulation) limit(devicesLimit int64) {
	crq := s.quota()
	crq.Name, crq.UID, crq.Annotations = "q", "q", nil
	crq.Spec.Selector.LabelSelector.MatchLabels["team"] = "x"
	crq.Spec.Quota.Hard = corev1.ResourceList{devicesKey: *resourceQuantity(devicesLimit)}
	set(s, quota.Quotas, s.quotas, crq)
}

func TestConditionChangesAreToldAsEventsOnTheQuota(t *testing.T) {
	t.Parallel()
	u, s, r := newUsage(t, 1000)
	reconcile := func() []string {
		t.Helper()
		r.events = nil
		if _, err := u.reconcile(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		return r.events
	}
	if events := reconcile(); len(events) != 0 {
		t.Errorf("at first: %q", events)
	}
	claim := s.claim()
	claim.Namespace, claim.Name = "a", "big"
	claim.Spec.Devices.Requests[0].Exactly.DeviceClassName, claim.Spec.Devices.Requests[0].Exactly.Count = "gpu", 3
	claim.Status.Allocation = nil
	set(s, quota.Claims, s.claims, claim)
	s.limit(1)
	events := reconcile()
	if len(events) != 1 || !slices.ContainsFunc(events, func(e string) bool {
		return len(e) > 20 && e[:20] == "q Warning OverLimit:"
	}) {
		t.Errorf("over the limit: %q", events)
	}
	if events := reconcile(); len(events) != 0 {
		t.Errorf("told again: %q", events)
	}
	s.limit(1000)
	want := []string{"q Normal OverLimit: " + devicesKey + ": OverLimit: no longer"}
	if diff := cmp.Diff(want, reconcile()); diff != "" {
		t.Errorf("back below (-want +got):\n%s", diff)
	}
}

func TestAGoneQuotaLosesItsLedger(t *testing.T) {
	t.Parallel()
	u, s, _ := newUsage(t, 10)
	if _, err := u.reconcile(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	drop(s, quota.Quotas, s.quotas, "/q")
	again, err := u.reconcile(t.Context(), "q")
	if err != nil || again != 0 {
		t.Fatalf("again after %v, %v", again, err)
	}
	if _, err := u.o.Ledger.Check(t.Context(), ledger.Request{Namespace: "a", Kind: v1alpha1.HoldClaim}); err != nil {
		t.Errorf("a project without quota: %v", err)
	}
}

func TestAQuotaIsSettledAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	u, s, _ := newUsage(t, 10)
	if got := u.wait("q"); got != settleDelay {
		t.Errorf("never settled: want %v, got %v", settleDelay, got)
	}
	if _, err := u.reconcile(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	s.clock.Step(300 * time.Millisecond)
	if got := u.wait("q"); got != 700*time.Millisecond {
		t.Errorf("300 ms later: want 700ms, got %v", got)
	}
	s.clock.Step(time.Hour)
	if got := u.wait("q"); got != settleDelay {
		t.Errorf("later: want %v, got %v", settleDelay, got)
	}
}

// silentTarget takes everything.
type silentTarget struct{}

func (silentTarget) Set(client.Object, uint64)       {}
func (silentTarget) Delete(client.Object, uint64)    {}
func (silentTarget) Replace([]client.Object, uint64) {}
func (silentTarget) Bookmark(uint64)                 {}

func TestAStalledWatchIsToldAsStale(t *testing.T) {
	t.Parallel()
	u, s, _ := newUsage(t, 10)
	f := feed.New(feed.Config{Name: "claims", Target: silentTarget{}, Clock: s.clock})
	s.view.feeds = []*feed.Feed{f}
	if err := f.Store().Replace(nil, "5"); err != nil {
		t.Fatal(err)
	}
	stale := func() bool {
		o := s.view.Cached().Observe("q", nil, nil)
		return slices.ContainsFunc(u.conditions(o, v1alpha1.DeviceLedgerStatus{}), func(c v1alpha1.LedgerCondition) bool {
			return c.Type == v1alpha1.ConditionStale && c.Status == metav1.ConditionTrue
		})
	}
	s.clock.Step(2 * time.Minute)
	if stale() {
		t.Error("stale after 2 minutes")
	}
	s.clock.Step(2 * time.Minute)
	if !stale() {
		t.Error("not stale after 4 minutes")
	}
	if err := f.Store().Bookmark("6"); err != nil {
		t.Fatal(err)
	}
	if stale() {
		t.Error("stale after a bookmark")
	}
}
