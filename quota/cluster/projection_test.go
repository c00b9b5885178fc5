package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// stage is a projection with a quota over projects p0, p1, ... that is driven by hand.
type stage struct {
	*Projection
	t     *testing.T
	sim   *simulation
	clock *testclock.FakeClock
	used  map[string]corev1.ResourceList
	crq   *quotav1.ClusterResourceQuota
}

func newStage(t *testing.T, projects int) *stage {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{quotav1.Install, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &stage{t: t, sim: newSimulation(t, 1), used: map[string]corev1.ResourceList{}}
	s.clock = s.sim.clock
	s.crq = &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "q"}}
	s.crq.Spec.Quota.Hard = corev1.ResourceList{objectsKey: resource.MustParse("100")}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(s.crq).WithObjects(s.crq).Build()
	if err := c.Get(t.Context(), client.ObjectKey{Name: "q"}, s.crq); err != nil {
		t.Fatal(err)
	}
	s.sim.target(quota.Quotas).Set(s.crq.DeepCopy(), 1)
	for i := range projects {
		s.used[fmt.Sprintf("p%d", i)] = corev1.ResourceList{}
	}
	s.Projection = NewProjection(ProjectionOptions{Client: c, View: s.sim.view, Platform: Kubernetes, Clock: s.clock})
	return s
}

// offer makes a recount in which the project uses so many claims.
func (s *stage) offer(project string, claims int64) {
	s.used[project] = corev1.ResourceList{objectsKey: *resource.NewQuantity(claims, resource.DecimalSI)}
	q, _ := quota.Parse(s.crq, quota.ParseOptions{})
	o := newObserved(quota.Vector{}, quota.Vector{})
	o.Quota = q
	for name, used := range s.used {
		o.ByNamespace[name] = used
		quota.AddTo(o.Used, used)
	}
	s.Offer("q", o)
}

// take takes out what is queued, whatever the budget: urgent first.
func (s *stage) take() (projectionKey, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return takeAny(&s.queue)
}

func takeAny(q *projectionQueue) (projectionKey, bool) {
	q.promote()
	for _, urgent := range []bool{true, false} {
		if q.waits(urgent) {
			return q.take(urgent), true
		}
	}
	return projectionKey{}, false
}

// drain writes what is queued and returns the keys in order.
func (s *stage) drain() []projectionKey {
	s.t.Helper()
	var keys []projectionKey
	for {
		key, ok := s.take()
		if !ok {
			return keys
		}
		wrote, err := s.project(s.t.Context(), key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.finish(key, nil)
		if wrote {
			keys = append(keys, key)
		}
		if key.namespace != "" {
			continue
		}
		// As the watch has it.
		crq := &quotav1.ClusterResourceQuota{}
		if err := s.o.Client.Get(s.t.Context(), client.ObjectKey{Name: "q"}, crq); err != nil {
			s.t.Fatal(err)
		}
		s.sim.target(quota.Quotas).Set(crq, 1)
	}
}

func (s *stage) shown(project string) int64 {
	s.t.Helper()
	a := &quotav1.AppliedClusterResourceQuota{}
	if err := s.o.Client.Get(s.t.Context(), client.ObjectKey{Namespace: project, Name: "q"}, a); err != nil {
		s.t.Fatal(err)
	}
	q := a.Status.Total.Used[objectsKey]
	return q.Value()
}

func TestTheProjectInWhichSomethingChangedIsWrittenFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t, 20)
	s.offer("p3", 1)
	if n := len(s.drain()); n != 21 {
		t.Fatalf("want the status and 20 projects, got %d writes", n)
	}
	s.clock.Step(time.Second)
	s.offer("p13", 5)
	keys := s.drain()
	want := []projectionKey{{"q", ""}, {"q", "p13"}}
	if diff := cmp.Diff(want, keys[:2], cmp.AllowUnexported(projectionKey{})); diff != "" {
		t.Errorf("first writes (-want +got):\n%s", diff)
	}
	if len(keys) != 21 || s.shown("p7") != 6 {
		t.Errorf("%d writes; p7 is shown %d", len(keys), s.shown("p7"))
	}
}

func TestWhatIsShownAlreadyIsNotWritten(t *testing.T) {
	t.Parallel()
	s := newStage(t, 3)
	s.offer("p0", 1)
	s.drain()
	s.clock.Step(time.Hour)
	s.offer("p0", 1)
	if keys := s.drain(); len(keys) != 0 {
		t.Errorf("written: %v", keys)
	}
}

func TestStoredProjectionsStayUntilTheirQuotaIsRecounted(t *testing.T) {
	t.Parallel()
	s := newStage(t, 2)
	s.offer("p0", 1)
	s.drain()
	// Another leader, which knows what is stored and has recounted nothing yet.
	next := &stage{Projection: NewProjection(s.o), t: t, sim: s.sim, clock: s.clock, used: s.used, crq: s.crq}
	stored := &quotav1.AppliedClusterResourceQuotaList{}
	if err := s.o.Client.List(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	var objs []client.Object
	for i := range stored.Items {
		objs = append(objs, &stored.Items[i])
	}
	appliedTarget{next.Projection}.Replace(objs, 1000)
	next.sweep()
	if keys := next.drain(); len(keys) != 0 {
		t.Errorf("written: %v", keys)
	}
	if got := next.shown("p0"); got != 1 {
		t.Errorf("want 1, got %d", got)
	}
	next.offer("p0", 1)
	if keys := next.drain(); len(keys) != 0 {
		t.Errorf("written though it was as it shall be: %v", keys)
	}
}

func TestAProjectThatLeftLosesItsProjection(t *testing.T) {
	t.Parallel()
	s := newStage(t, 2)
	s.offer("p0", 1)
	s.drain()
	delete(s.used, "p1")
	s.offer("p0", 1)
	s.drain()
	list := &quotav1.AppliedClusterResourceQuotaList{}
	if err := s.o.Client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Namespace != "p0" {
		t.Errorf("left: %v", list.Items)
	}
}

func TestAQuotasStatusIsWrittenAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	s.offer("p0", 1)
	s.drain()
	s.clock.Step(300 * time.Millisecond)
	s.offer("p0", 2)
	for _, key := range s.drain() {
		if key.namespace == "" {
			t.Error("written after 300 ms")
		}
	}
	s.clock.Step(700 * time.Millisecond)
	if diff := cmp.Diff([]projectionKey{{"q", ""}}, s.drain(), cmp.AllowUnexported(projectionKey{})); diff != "" {
		t.Errorf("after a second (-want +got):\n%s", diff)
	}
}

// busyClock lets something happen while it is asked what time has passed.
type busyClock struct {
	*testclock.FakeClock
	meanwhile func()
}

func (c *busyClock) Since(t time.Time) time.Duration {
	if call := c.meanwhile; call != nil {
		c.meanwhile = nil
		call()
	}
	return c.FakeClock.Since(t)
}

func TestARecountDuringAWriteOfTheStatusDoesNotMakeTheNextOneEarlier(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	s.o.Clock = &busyClock{s.clock, func() { s.offer("p0", 2) }}
	s.offer("p0", 1)
	statuses := 0
	for _, key := range s.drain() {
		if key.namespace == "" {
			statuses++
		}
	}
	if statuses != 1 {
		t.Errorf("want one write at once, got %d", statuses)
	}
}

func TestAStatusThatCouldNotBeWrittenIsNotPostponed(t *testing.T) {
	t.Parallel()
	s := newStage(t, 133)
	s.offer("p0", 1)
	s.drain()
	s.clock.Step(time.Minute)
	s.offer("p0", 2)
	good := s.o.Client
	s.o.Client = interceptor.NewClient(good, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		return apierrors.NewConflict(schema.GroupResource{}, "q", nil)
	}})
	if _, err := s.project(t.Context(), projectionKey{quota: "q"}); !apierrors.IsConflict(err) {
		t.Fatalf("want a conflict, got %v", err)
	}
	s.o.Client = good
	s.clock.Step(retryAfter)
	if wrote, err := s.project(t.Context(), projectionKey{quota: "q"}); !wrote || err != nil {
		t.Errorf("want it written at the next try, got %v, %v", wrote, err)
	}
}

func TestAStatusIsWrittenMoreRarelyWhereThereIsMoreToWrite(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name             string
		projects, others int
		least            time.Duration
	}{
		{"133 projects", 133, 0, 4 * time.Second},
		{"10 quotas", 1, 9, 4 * time.Second},
		{"1200 projects", 1200, 0, within},
		{"200 quotas", 1, 199, within},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, tc.projects)
			for i := range tc.others {
				s.quotas[fmt.Sprint(i)] = &projected{}
			}
			s.offer("p0", 1)
			s.drain()
			for _, c := range []struct {
				step time.Duration
				want bool
			}{{tc.least - 100*time.Millisecond, false}, {100 * time.Millisecond, true}} {
				s.clock.Step(c.step)
				s.offer("p0", s.shown("p0")+1)
				written := false
				for _, key := range s.drain() {
					written = written || key.namespace == ""
				}
				if written != c.want {
					t.Errorf("after another %v: want written %v, got %v", c.step, c.want, written)
				}
			}
		})
	}
}

func TestTheBudgetGrowsSoThatEverythingIsWrittenWithinAMinute(t *testing.T) {
	t.Parallel()
	for _, projects := range []int{100, 1000, 3000, 30000} {
		t.Run(fmt.Sprint(projects), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 0)
			pace := newPacer(s.clock.Now())
			for i := range projects {
				s.queue.add(projectionKey{"q", fmt.Sprint(i)}, false)
			}
			begun := s.clock.Now()
			for s.queue.waits(false) {
				key, paid, wait := s.next(pace)
				if paid == nil {
					s.clock.Step(wait)
					continue
				}
				s.finish(key, nil)
			}
			took := s.clock.Since(begun)
			if took > time.Minute {
				t.Errorf("the last project waited %v", took)
			}
			least := float64(projects) / max(DefaultBudget, float64(projects)/within.Seconds())
			if took.Seconds() < least-1 {
				t.Errorf("all was written in %v, want it to take %v s", took, least)
			}
		})
	}
}

func TestTheBudgetIsAtMostOneSecondsWorthAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	b := tokens{last: now}
	now = now.Add(time.Hour)
	waited := 0
	for range 60 {
		if b.take(now, 50) > 0 {
			waited++
		}
	}
	if waited != 10 {
		t.Errorf("want 10 of 60 to wait, got %d", waited)
	}
	if wait := b.take(now, 50); wait != 20*time.Millisecond {
		t.Errorf("want 20ms until the next, got %v", wait)
	}
}

// Two quotas over 1000 projects and 50 changes a second, each in another project, so that all
// the time more has to be written at once than the budget, and everything else too.
func TestUnderLoadTheOwnProjectIsWrittenSoonAndAllWithinAMinute(t *testing.T) {
	t.Parallel()
	const changes, seconds, projects = 50, 150, 1000
	s := newStage(t, 0)
	pace := newPacer(s.clock.Now())
	since := map[bool]map[projectionKey]time.Time{true: {}, false: {}} // urgent -> key -> when it was queued
	add := func(project int, urgent bool) {
		for _, quota := range []string{"a", "b"} {
			key := projectionKey{quota, fmt.Sprint(project % projects)}
			if _, waits := since[urgent][key]; !waits {
				since[urgent][key] = s.clock.Now()
			}
			s.queue.add(key, urgent)
		}
	}
	worst := map[bool]time.Duration{}
	writes := 0
	for step := range changes * seconds {
		add(step*7, true)
		if step%changes == 0 { // a recount, which changes the total
			for i := range projects {
				add(i, false)
			}
		}
		for range 6 { // 300 writes a second can be made
			key, paid, _ := s.next(pace)
			if paid == nil {
				break
			}
			writes++
			if paid == &pace.urgent {
				s.busy(pace)
			}
			for urgent, at := range since {
				if queued, ok := at[key]; ok {
					worst[urgent] = max(worst[urgent], s.clock.Now().Sub(queued))
					delete(at, key)
				}
			}
			s.finish(key, nil)
		}
		s.clock.Step(time.Second / changes)
	}
	if worst[true] > time.Second || worst[false] > time.Minute {
		t.Errorf("a project in which something changed waited %v, another one %v", worst[true], worst[false])
	}
	if perChange := float64(writes) / (changes * seconds); perChange > 2.1 {
		t.Errorf("%.2f writes per change, want two at once: everything else is written with them", perChange)
	}
}

func TestAWriterRestsTheLongerTheBusierTheAPIServerIs(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name       string
		took, wait time.Duration // of the write, of the first project in which something changed
		want       time.Duration
	}{
		{"a fast write", 2 * ms, 0, 800 * time.Microsecond},
		{"the usual one", 5 * ms, 0, 5 * ms},
		{"a slow one", 20 * ms, 0, 80 * ms},
		{"a very slow one", time.Minute, 0, 200 * ms},
		{"not yet late", 20 * ms, time.Second, 80 * ms},
		{"late", 30 * ms, time.Second + ms, 15 * ms},
		{"late and very slow", time.Minute, time.Minute, 100 * ms},
		{"late and fast", 2 * ms, time.Minute, 800 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 0)
			if got := s.restAfter(c.took); c.wait == 0 && got != c.want {
				t.Errorf("nothing waits: want %v, got %v", c.want, got)
			}
			s.queue.add(projectionKey{"q", "p"}, true)
			s.clock.Step(c.wait)
			if got := s.restAfter(c.took); got != c.want {
				t.Errorf("want %v, got %v", c.want, got)
			}
			rest := newStage(t, 0)
			rest.queue.add(projectionKey{"q", "p"}, false)
			if c.wait > 0 {
				rest.clock.Step(c.wait - late + restLate)
			}
			if got := rest.restAfter(c.took); got != c.want {
				t.Errorf("another total: want %v, got %v", c.want, got)
			}
		})
	}
}

// What is urgent never ends here, and there is more of it than can be written.
func TestWhatOnlySeesAnotherTotalHasItsTurn(t *testing.T) {
	t.Parallel()
	s := newStage(t, 0)
	pace := newPacer(s.clock.Now())
	for i := range 100 {
		s.queue.add(projectionKey{"rest", fmt.Sprint(i)}, false)
	}
	for _, c := range []struct {
		name string
		wait time.Duration
		want int // of 30 writes
	}{
		{"before its patience is over", time.Second, 0},
		{"then", patience, 3},
		{"when it is late", restLate + time.Second - patience, 10},
	} {
		s.clock.Step(c.wait)
		s.busy(pace)
		got := 0
		for i := range 30 {
			s.queue.add(projectionKey{"urgent", fmt.Sprint(i)}, true)
			s.queue.add(projectionKey{"urgent", fmt.Sprint(i, "again")}, true)
			key, paid, _ := s.next(pace)
			if paid == nil {
				t.Fatalf("%s: nothing to write", c.name)
			}
			if key.quota == "rest" {
				got++
			}
			s.finish(key, nil)
			s.clock.Step(20 * time.Millisecond)
		}
		if got != c.want {
			t.Errorf("%s: want %d of 30 writes, got %d", c.name, c.want, got)
		}
	}
}

func TestWhatOnlySeesAnotherTotalWaitsForWhatIsUrgent(t *testing.T) {
	t.Parallel()
	s := newStage(t, 0)
	s.clock.Step(time.Hour)
	pace := newPacer(s.clock.Now().Add(-time.Minute))
	rest, own := projectionKey{"q", "rest"}, projectionKey{"q", "own"}
	turns := func(seconds int, load, written bool) (taken []projectionKey) {
		if written {
			s.busy(pace)
		}
		for range seconds {
			if load {
				s.queue.add(own, true)
			}
			for range 5 {
				if key, paid, _ := s.next(pace); paid != nil {
					s.finish(key, nil)
					if paid == &pace.urgent && written {
						s.busy(pace)
					}
					if key == rest {
						taken = append(taken, key)
					}
				}
			}
			s.clock.Step(time.Second)
		}
		return taken
	}
	for _, c := range []struct {
		name          string
		seconds       int
		load, written bool
		want          int
	}{
		{"at once when there is no load", 1, false, false, 1},
		{"at once when nothing urgent can be written", 1, true, false, 1},
		{"not while there is load", int(patience.Seconds()), true, true, 0},
		{"when it has waited long enough", 1, true, true, 1},
	} {
		s.queue.add(rest, false)
		if got := len(turns(c.seconds, c.load, c.written)); got != c.want {
			t.Errorf("%s: want it taken %d times in %d s, got %d", c.name, c.want, c.seconds, got)
		}
	}
	// Written as it became urgent, it waits anew.
	s.queue.add(rest, false)
	turns(int(patience.Seconds())-1, true, true)
	s.queue.add(rest, true)
	if got := len(turns(1, true, true)); got != 1 {
		t.Errorf("became urgent: want it taken once, got %d", got)
	}
	s.queue.add(rest, false)
	if got := len(turns(5, true, true)); got != 0 {
		t.Errorf("queued again: want it to wait, got it taken %d times", got)
	}
}

func TestQueueTakesEachKeyOnceAndUrgentOnesFirst(t *testing.T) {
	t.Parallel()
	var q projectionQueue
	now := testclock.NewFakeClock(time.Unix(1, 0))
	q.init(now)
	a, b, c := projectionKey{"q", "a"}, projectionKey{"q", "b"}, projectionKey{"q", "c"}
	q.add(a, false)
	q.add(b, false)
	q.add(b, true)
	q.add(a, false)
	q.later(c, now.Now().Add(time.Second))
	var got []projectionKey
	take := func() {
		for {
			key, ok := takeAny(&q)
			if !ok {
				return
			}
			got = append(got, key)
		}
	}
	take()
	q.add(b, false) // changed while it is being written
	take()
	q.done(b)
	take()
	now.Step(time.Second)
	take()
	if diff := cmp.Diff([]projectionKey{b, a, b, c}, got, cmp.AllowUnexported(projectionKey{})); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for _, key := range []projectionKey{a, b, c} {
		q.done(key)
	}
	if q.len() != 0 {
		t.Errorf("%d left", q.len())
	}
}

func TestContentIsTheSameAfterTheAPIServerHasDecodedIt(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	s.offer("p0", 3)
	s.drain()
	stored := &quotav1.AppliedClusterResourceQuota{}
	if err := s.o.Client.Get(t.Context(), client.ObjectKey{Namespace: "p0", Name: "q"}, stored); err != nil {
		t.Fatal(err)
	}
	got, err := contentOf(stored)
	if want := s.applied[types.NamespacedName{Namespace: "p0", Name: "q"}].content; err != nil || got != want {
		t.Errorf("want %x, got %x, %v", want, got, err)
	}
}
