package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// inWorld runs f over one replica whose caches are current and whose calls return at once.
func inWorld(t *testing.T, o Options, quotas int, hard int64, f func(t *testing.T, w *world, l *Ledger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(o, 2, quotas, 1, hard)
		w.free, w.current = true, true
		time.Sleep(time.Hour) // quotas are old
		for q := range quotas {
			w.seed(q)
		}
		f(t, w, w.replicas[0].ledger)
	})
}

// seed stores an empty ledger.
func (w *world) seed(q int) {
	l := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: quotaName(q), UID: types.UID("ledger-of-" + quotaName(q))}}
	finalize(l)
	l.Status = quota.Adopt(v1alpha1.DeviceLedgerStatus{}, w.quota(q).q)
	w.store(w.replicas[0], [kinds]watchCache{}, nil, l)
}

func admit(t *testing.T, l *Ledger, r Request) Decision {
	t.Helper()
	d, err := l.Admit(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", r.UID, err)
	}
	return d
}

func wantVerdict(t *testing.T, d Decision, want Verdict) {
	t.Helper()
	if d.Verdict != want {
		t.Errorf("want verdict %d, got %d (busy %q, denials %v)", want, d.Verdict, d.Busy, d.Denials)
	}
}

func (w *world) create(r Request, k kind, charge int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write(k, object{uid: r.UID, ns: r.Namespace, name: r.Name, charge: charge})
}

func (w *world) holds(q int) []v1alpha1.Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.ledgers[quotaName(q)]; l != nil {
		return l.Status.Holds
	}
	return nil
}

func TestAnAllowedRequestIsHeldInEachCoveringLedger(t *testing.T) {
	inWorld(t, Options{}, 2, 3, func(t *testing.T, w *world, l *Ledger) {
		d := admit(t, l, w.claim(1, "ns0", "a", 2))
		wantVerdict(t, d, Allowed)
		want := []v1alpha1.Hold{{UID: "u1", Kind: v1alpha1.HoldClaim, Namespace: "ns0", Name: "a",
			Charge: corev1.ResourceList{keyA: *resource.NewQuantity(2, resource.DecimalSI)}}}
		for q := range 2 {
			if diff := cmp.Diff(want, w.holds(q)); diff != "" {
				t.Errorf("holds of quota %d (-want +got):\n%s", q, diff)
			}
			if _, ok := d.Charges[quotaName(q)]; !ok {
				t.Errorf("want the charge of quota %d in the decision", q)
			}
		}
	})
}

func TestZeroChargesAndDryRunsWriteNothing(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		before := w.puts
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 0)), Allowed)
		dry := w.claim(2, "ns0", "b", 1)
		dry.DryRun = true
		wantVerdict(t, admit(t, l, dry), Allowed)
		tooMuch := w.claim(3, "ns0", "c", 2)
		tooMuch.DryRun = true
		wantVerdict(t, admit(t, l, tooMuch), Denied)
		if w.puts != before {
			t.Errorf("want no write, got %d", w.puts-before)
		}
	})
}

func TestADenialTellsWhatExists(t *testing.T) {
	inWorld(t, Options{}, 1, 3, func(t *testing.T, w *world, l *Ledger) {
		for i, ns := range []string{"ns0", "ns1", "ns1"} {
			r := w.claim(i, ns, fmt.Sprint(i), 1)
			wantVerdict(t, admit(t, l, r), Allowed)
			w.create(r, kClaim, 1)
		}
		d := admit(t, l, w.claim(9, "ns0", "no", 2))
		wantVerdict(t, d, Denied)
		n := func(i int64) corev1.ResourceList {
			return corev1.ResourceList{keyA: *resource.NewQuantity(i, resource.DecimalSI)}
		}
		want := []quota.Denial{{Quota: "q0", Requested: n(2), Used: n(3), Limited: n(3), Here: n(1), Elsewhere: n(2)}}
		if diff := cmp.Diff(want, d.Denials); diff != "" {
			t.Errorf("denials (-want +got):\n%s", diff)
		}
	})
}

func TestDeleteThenCreateAtTheLimitWorksAtOnce(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		a := w.claim(1, "ns0", "a", 1)
		wantVerdict(t, admit(t, l, a), Allowed)
		w.create(a, kClaim, 1)
		w.mu.Lock()
		w.remove(kClaim, a.UID)
		w.mu.Unlock()
		begun := time.Now()
		// The hold of an object that came and went between two looks ends by age only; this one was seen.
		b := w.claim(2, "ns0", "a", 1)
		wantVerdict(t, admit(t, l, b), Allowed)
		if took := time.Since(begun); took > 0 {
			t.Errorf("want an answer at once, took %v", took)
		}
	})
}

func TestOnlyHoldsInTheWayIsBusyAfterAWait(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		begun := time.Now()
		d := admit(t, l, w.claim(2, "ns0", "b", 1))
		wantVerdict(t, d, Busy)
		if took := time.Since(begun); took < DefaultWait || took > DefaultWait+time.Second || d.RetryAfter < time.Second {
			t.Errorf("want to wait about %v, waited %v (retry after %v)", DefaultWait, took, d.RetryAfter)
		}
	})
}

func TestAHoldThatEndsWhileARequestWaitsMakesRoom(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		time.Sleep(DefaultHoldAge - 500*time.Millisecond)
		// The object never comes: at 40 s a live observation ends the hold.
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Busy)
		time.Sleep(time.Second)
		wantVerdict(t, admit(t, l, w.claim(3, "ns0", "c", 1)), Allowed)
	})
}

func TestQuotasThatDoNotEnforceNeverBlock(t *testing.T) {
	for _, mode := range []quota.Enforcement{quota.Warn, quota.Audit} {
		t.Run(string(mode), func(t *testing.T) {
			inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
				w.annotations = map[string]string{quota.EnforcementAnnotation: string(mode)}
				w.writeQuota(0, 1, 0)
				for i := range 3 {
					d := admit(t, l, w.claim(i, "ns0", fmt.Sprint(i), int64(i+1)))
					wantVerdict(t, d, Allowed)
					got := len(d.Warned)
					if mode == quota.Audit {
						got = len(d.Audited)
					}
					if want := min(i, 1); got != want {
						t.Errorf("request %d: want %d recorded, got %d", i, want, got)
					}
				}
				if got := len(w.holds(0)); got != 3 {
					t.Errorf("want every request held, got %d", got)
				}
			})
		})
	}
}

func TestAQuotaThatDoesNotEnforceBlocksNothingWhenItsLedgerFails(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		w.annotations = map[string]string{quota.EnforcementAnnotation: string(quota.Warn)}
		w.writeQuota(0, 1, 0)
		w.broken = errors.New("no quorum")
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
	})
}

func TestAdvisoryHoldsCountOnlyAmongThemselves(t *testing.T) {
	inWorld(t, Options{}, 1, 2, func(t *testing.T, w *world, l *Ledger) {
		pod := func(i int, charge int64) Request {
			r := w.claim(i, "ns0", fmt.Sprint("p", i), charge)
			r.Kind, r.Advisory = v1alpha1.HoldPod, true
			return r
		}
		wantVerdict(t, admit(t, l, pod(1, 2)), Allowed)
		wantVerdict(t, admit(t, l, pod(2, 1)), Busy)
		claim := w.claim(3, "ns0", "c3", 1)
		claim.OwnerPod = "u1"
		wantVerdict(t, admit(t, l, claim), Allowed)
		// One of the two that the first pod announced is held now.
		i := indexOf(w.holds(0), "u1")
		if i < 0 || !quota.Equal(w.holds(0)[i].Charge, corev1.ResourceList{keyA: resource.MustParse("1")}) {
			t.Errorf("want the advisory hold reduced to 1, got %v", w.holds(0))
		}
		// A second delivery reduces nothing more.
		wantVerdict(t, admit(t, l, claim), Allowed)
		if i := indexOf(w.holds(0), "u1"); i < 0 {
			t.Error("want the advisory hold left by the second delivery")
		}
		second := w.claim(4, "ns0", "c4", 1)
		second.OwnerPod = "u1"
		wantVerdict(t, admit(t, l, second), Allowed)
		if i := indexOf(w.holds(0), "u1"); i >= 0 {
			t.Errorf("want the advisory hold gone, got %v", w.holds(0)[i])
		}
	})
}

func TestHoldsAreCapped(t *testing.T) {
	inWorld(t, Options{MaxHolds: 4}, 1, 100, func(t *testing.T, w *world, l *Ledger) {
		for i := range 3 {
			r := w.claim(i, "ns0", fmt.Sprint(i), 1)
			r.Kind, r.Advisory = v1alpha1.HoldPod, true
			d := admit(t, l, r)
			wantVerdict(t, d, map[bool]Verdict{true: Allowed, false: Busy}[i < 2])
		}
		for i := 10; i < 14; i++ {
			d := admit(t, l, w.claim(i, nsName(i%2), fmt.Sprint(i), 1))
			wantVerdict(t, d, map[bool]Verdict{true: Allowed, false: Busy}[i < 12])
			if d.Verdict == Busy && d.Busy == "" {
				t.Error("want a reason")
			}
		}
	})
}

// TestALoopInVainLeavesRoomForOthers: for a name that exists already, or in a project where
// another webhook denies what was admitted here, holds end by age only.
func TestALoopInVainLeavesRoomForOthers(t *testing.T) {
	for name, c := range map[string]struct {
		name    func(i int) string
		allowed int
	}{
		"of one name":    {func(int) string { return "same" }, 10},
		"in one project": {func(i int) string { return fmt.Sprint("c", i) }, 60},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{MaxHolds: 80}, 1, 1000, func(t *testing.T, w *world, l *Ledger) {
				got := map[Verdict]int{}
				for i := range c.allowed + 5 {
					d, err := l.Admit(t.Context(), w.claim(i, "ns0", c.name(i), 1))
					if err != nil {
						t.Fatal(err)
					}
					got[d.Verdict]++
				}
				if want := map[Verdict]int{Allowed: c.allowed, Busy: 5}; !maps.Equal(got, want) {
					t.Errorf("want answers %v, got %v", want, got)
				}
				wantVerdict(t, admit(t, l, w.claim(100, "ns1", "other", 1)), Allowed)
				if c.allowed < 60 {
					wantVerdict(t, admit(t, l, w.claim(101, "ns0", "other", 1)), Allowed)
				}
				time.Sleep(DefaultHoldAge)
				wantVerdict(t, admit(t, l, w.claim(102, "ns0", "same", 1)), Allowed)
			})
		})
	}
}

func TestAFullLedgerIsLookedAtLive(t *testing.T) {
	inWorld(t, Options{MaxHolds: 4}, 1, 100, func(t *testing.T, w *world, l *Ledger) {
		w.current = false // the watch has stalled
		w.replicas[0].advanceLedger()
		for i := range 5 {
			r := w.claim(i, "ns0", fmt.Sprint(i), 1)
			wantVerdict(t, admit(t, l, r), Allowed)
			w.create(r, kClaim, 1)
		}
		if n := len(w.replicas[0].liveAt); n != 1 {
			t.Errorf("want one live observation, got %d", n)
		}
	})
}

func TestForgetKeepsNothing(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		synctest.Wait() // the committer ends
		l.Forget("q0")
		if len(l.accounts) > 0 {
			t.Errorf("want no account, got %d", len(l.accounts))
		}
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Busy)
	})
}

func TestAnUnknownFootprintIsDeniedUnlessTheQuotaAllowsIt(t *testing.T) {
	inWorld(t, Options{}, 1, 5, func(t *testing.T, w *world, l *Ledger) {
		r := w.claim(1, "ns0", "a", 1)
		r.Charge = func(q *quota.Quota) (quota.Charge, error) {
			return quota.Charge{Amounts: amounts(q, 1), Unknown: []quota.UnknownCharge{{Key: keyB, Why: "no device publishes it"}}}, nil
		}
		d := admit(t, l, r)
		wantVerdict(t, d, Denied)
		if len(d.Denials) != 1 || len(d.Denials[0].Unknown) != 1 {
			t.Errorf("want one denial that names what is unknown, got %v", d.Denials)
		}
		w.annotations = map[string]string{quota.UnknownFootprintAnnotation: string(quota.AllowUnknown)}
		w.writeQuota(0, 5, 0)
		wantVerdict(t, admit(t, l, r), Allowed)
	})
}

func TestCheckTellsWhatNeverFitsAndWhatDoesNotFitNow(t *testing.T) {
	inWorld(t, Options{}, 1, 2, func(t *testing.T, w *world, l *Ledger) {
		a := w.claim(1, "ns0", "a", 2)
		wantVerdict(t, admit(t, l, a), Allowed)
		before := w.puts
		for charge, want := range map[int64][2]int{0: {0, 0}, 1: {0, 1}, 3: {1, 0}} {
			d, err := l.Check(t.Context(), w.claim(2, "ns0", "b", charge))
			if err != nil {
				t.Fatal(err)
			}
			if got := [2]int{len(d.Denials), len(d.NotNow)}; got != want {
				t.Errorf("charge %d: want denials and not-now %v, got %v", charge, want, got)
			}
			wantVerdict(t, d, map[bool]Verdict{true: Denied, false: Allowed}[want[0] > 0])
		}
		if w.puts != before {
			t.Error("want no write")
		}
	})
}

func TestTheErrorOfAChargeIsReturned(t *testing.T) {
	inWorld(t, Options{}, 1, 2, func(t *testing.T, w *world, l *Ledger) {
		want := errors.New("selector does not compile")
		r := w.claim(1, "ns0", "a", 2)
		r.Charge = func(*quota.Quota) (quota.Charge, error) { return quota.Charge{}, want }
		if _, err := l.Admit(t.Context(), r); !errors.Is(err, want) {
			t.Errorf("want %v, got %v", want, err)
		}
		if got := w.holds(0); len(got) > 0 {
			t.Errorf("want no hold, got %v", got)
		}
	})
}

func TestAnUnknownNamespaceIsReadLive(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		w.current = false
		w.mu.Lock()
		w.write(kNS, object{uid: "ns-new", name: "new", labels: map[string]string{"q0": "yes"}})
		w.mu.Unlock()
		wantVerdict(t, admit(t, l, w.claim(1, "new", "a", 2)), Denied)
		wantVerdict(t, admit(t, l, w.claim(2, "new", "a", 1)), Allowed)
		if got := len(w.holds(0)); got != 1 {
			t.Errorf("want one hold, got %d", got)
		}
	})
}

func TestOutagesAreErrorsAndOverloadIsBusy(t *testing.T) {
	for name, test := range map[string]struct {
		broken  error
		timeout time.Duration
		cancel  bool
		busy    bool
	}{
		"store fails":                 {broken: errors.New("no quorum")},
		"api server throttles":        {broken: ErrThrottled, timeout: 3 * time.Second, busy: true},
		"ledger changes all the time": {broken: ErrConflict, timeout: 3 * time.Second, busy: true},
		"caller is gone":              {broken: ErrThrottled, cancel: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
				w.broken = test.broken
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.timeout > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, test.timeout)
					defer stop()
				}
				if test.cancel {
					time.AfterFunc(time.Second, cancel)
				}
				begun := time.Now()
				d, err := l.Admit(ctx, w.claim(1, "ns0", "a", 1))
				if test.busy != (err == nil) || test.busy != (d.Verdict == Busy) {
					t.Errorf("want busy %v, got verdict %d and error %v", test.busy, d.Verdict, err)
				}
				if took := time.Since(begun); test.timeout > 0 && took >= test.timeout {
					t.Errorf("want an answer before the deadline of %v, took %v", test.timeout, took)
				}
			})
		})
	}
}

func TestRequestsThatWaitShareOneWriteInArrivalOrder(t *testing.T) {
	inWorld(t, Options{MaxBatch: 16}, 1, 30, func(t *testing.T, w *world, l *Ledger) {
		w.slow = 10 * time.Millisecond
		before := w.puts
		var wg sync.WaitGroup
		got := make([]Decision, 40)
		for i := range got {
			time.Sleep(time.Microsecond)
			r := w.claim(i, "ns0", fmt.Sprint(i), 1)
			wg.Go(func() { got[i], _ = l.Admit(t.Context(), r) })
		}
		wg.Wait()
		for i, d := range got {
			wantVerdict(t, d, map[bool]Verdict{true: Allowed, false: Busy}[i < 30])
		}
		// The first alone, then those that came meanwhile, at most 16 in one write.
		if puts := w.puts - before; puts > 4 {
			t.Errorf("want at most 4 writes for 30 admissions, got %d", puts)
		}
		for _, l := range w.ledgerL {
			if l.l != nil && len(l.l.Status.Holds) > 1 {
				uids := make([]types.UID, len(l.l.Status.Holds))
				for i, h := range l.l.Status.Holds {
					uids[i] = h.UID
				}
				if uids[0] != "u0" || uids[len(uids)-1] != types.UID(fmt.Sprintf("u%d", len(uids)-1)) {
					t.Errorf("want holds in arrival order, got %v", uids)
				}
			}
		}
	})
}

func TestACommitterGivesWaySoonerWhereOthersWrite(t *testing.T) {
	inWorld(t, Options{}, 1, 100, func(t *testing.T, w *world, l *Ledger) {
		a := l.account("q0")
		want := func(when string, streak int, since time.Duration, long bool) {
			t.Helper()
			if got := a.longEnough(streak, l.o.Clock.Now().Add(-since)) > 0; got != long {
				t.Errorf("%s: %d writes in %v: want enough %v", when, streak, since, long)
			}
		}
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		want("the ledger was made by somebody else", maxStreak-1, time.Hour, false)
		want("the ledger was made by somebody else", maxStreak, 0, true)
		time.Sleep(aloneAfter)
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Allowed)
		want("alone", 1000, aloneFor-1, false)
		want("alone", 1, aloneFor, true)
		w.mu.Lock()
		w.store(w.replicas[0], [kinds]watchCache{}, nil, w.ledgers["q0"].DeepCopy())
		w.mu.Unlock()
		wantVerdict(t, admit(t, l, w.claim(3, "ns0", "c", 1)), Allowed)
		want("somebody wrote", maxStreak, 0, true)
	})
}

func TestDifferentQuotasDoNotWaitForEachOther(t *testing.T) {
	play(t, configOf("", func(c *modelConfig) { c.quotas, c.namespaces, c.age, c.persist = 2, 3, 40*time.Second, 34*time.Second }), func(s *script) {
		s.setLabels(1, map[string]string{"q0": "yes"})
		s.setLabels(2, map[string]string{"q1": "yes"})
		s.sees(0, kNS)
		stuck := s.asks(0, kClaim, 1, "a", 1)
		other := s.asks(0, kClaim, 2, "b", 1)
		s.lets(0, "put ledger q1")
		s.wantAnswer(other, Allowed)
		s.lets(0, "put ledger q0")
		s.wantAnswer(stuck, Allowed)
	})
}

func TestALostAnswerIsReadBackAndNotWrittenTwice(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		d := s.asks(0, kClaim, 0, "a", 1)
		s.letsGo(0, "put ledger", vLose)
		before := s.puts
		s.flow(0)
		s.wantAnswer(d, Allowed)
		if s.puts != before {
			s.t.Errorf("want no second write, got %d", s.puts-before)
		}
	})
}

func TestLiveObservationsAreSharedOneAtATimeAndApart(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		a := w.claim(99, "ns0", "a", 1)
		wantVerdict(t, admit(t, l, a), Allowed)
		w.create(a, kClaim, 1)
		var wg sync.WaitGroup
		for i := range 50 {
			time.Sleep(10 * time.Millisecond)
			wg.Go(func() {
				d, _ := l.Admit(t.Context(), w.claim(i, "ns0", fmt.Sprint(i), 1))
				wantVerdict(t, d, Denied)
			})
		}
		wg.Wait()
		times := w.replicas[0].liveAt
		if len(times) < 2 || len(times) > 4 {
			t.Errorf("want 2 to 4 live observations for 50 requests in 500 ms, got %d", len(times))
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < DefaultLiveInterval {
				t.Errorf("want them %v apart, got %v", DefaultLiveInterval, d)
			}
		}
	})
}

func TestSettleWritesOnlyWhatChanged(t *testing.T) {
	inWorld(t, Options{}, 1, 5, func(t *testing.T, w *world, l *Ledger) {
		conditions := func(reason string, status metav1.ConditionStatus) Conditions {
			return func(quota.Observed, v1alpha1.DeviceLedgerStatus) []v1alpha1.LedgerCondition {
				return []v1alpha1.LedgerCondition{{Type: v1alpha1.ConditionEnforced, Key: string(keyA), Status: status, Reason: reason}}
			}
		}
		settle := func(c Conditions, want bool) Settled {
			t.Helper()
			s, err := l.Settle(t.Context(), "q0", c)
			if err != nil {
				t.Fatal(err)
			}
			if s.Written != want {
				t.Errorf("want written %v, got %v", want, s.Written)
			}
			return s
		}
		first := settle(conditions("Enforced", metav1.ConditionTrue), true)
		time.Sleep(time.Minute)
		settle(conditions("Enforced", metav1.ConditionTrue), false)
		w.mu.Lock()
		w.write(kNS, object{uid: "other", name: "other"})
		w.mu.Unlock()
		settle(nil, false)
		again := settle(conditions("Because", metav1.ConditionTrue), true)
		at := first.Ledger.Status.Conditions[0].LastTransitionTime
		if got := again.Ledger.Status.Conditions[0].LastTransitionTime; !got.Equal(&at) {
			t.Errorf("want the transition time kept at %v, got %v", at, got)
		}
		off := settle(conditions("Because", metav1.ConditionFalse), true)
		if got := off.Ledger.Status.Conditions[0].LastTransitionTime; got.Equal(&at) {
			t.Error("want a new transition time")
		}
		w.create(w.claim(1, "ns0", "a", 2), kClaim, 2)
		s := settle(nil, true)
		if got := s.Ledger.Status.Used[keyA]; got.Value() != 2 || !quota.Equal(s.Observed.Used, s.Ledger.Status.Used) {
			t.Errorf("want used 2 as observed, got %v", s.Ledger.Status.Used)
		}
	})
}

func TestSettleTellsWhenHoldsWantToAge(t *testing.T) {
	inWorld(t, Options{}, 1, 5, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		time.Sleep(10 * time.Second)
		s, err := l.Settle(t.Context(), "q0", nil)
		if err != nil || s.Again != 30*time.Second || s.Source != SourceCache {
			t.Errorf("want again in 30 s, got %v from %s, error %v", s.Again, s.Source, err)
		}
		time.Sleep(s.Again)
		s, err = l.Settle(t.Context(), "q0", nil)
		if err != nil || s.Again != 0 || s.Source != SourceLive || len(s.Ledger.Status.Holds) > 0 {
			t.Errorf("want the hold aged by a live observation, got %v from %s, error %v", s.Ledger.Status.Holds, s.Source, err)
		}
	})
}

func TestSettleCreatesTheLedgerOfANewQuotaAndOfNone(t *testing.T) {
	inWorld(t, Options{}, 1, 5, func(t *testing.T, w *world, l *Ledger) {
		w.removeLedger("q0")
		w.mu.Lock()
		w.writeQuota(1, 2, 0)
		w.mu.Unlock()
		for name, rebuilding := range map[string]bool{"q0": true, "q1": false} {
			s, err := l.Settle(t.Context(), name, nil)
			if err != nil {
				t.Fatal(err)
			}
			if s.Ledger.Status.Rebuilding != rebuilding || !slices.Contains(s.Ledger.Finalizers, v1alpha1.LedgerFinalizer) {
				t.Errorf("%s: want rebuilding %v and the finalizer, got %v %v", name, rebuilding, s.Ledger.Status.Rebuilding, s.Ledger.Finalizers)
			}
		}
		s, err := l.Settle(t.Context(), "none", nil)
		if err != nil || s.Ledger != nil {
			t.Errorf("want nothing for a quota that never was, got %v %v", s.Ledger, err)
		}
	})
}

// TestTheFirstLedgerOfAQuotaIsWaitedFor: another replica created it a moment ago, and its next
// write ends the mark.
func TestTheFirstLedgerOfAQuotaIsWaitedFor(t *testing.T) {
	inWorld(t, Options{}, 1, 5, func(t *testing.T, w *world, l *Ledger) {
		w.mu.Lock()
		w.removeLedger("q0")
		w.remove(kCRQ, w.quota(0).uid)
		w.writeQuota(0, 5, 0)
		w.mu.Unlock()
		first := func(rebuilding bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			n := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "q0", UID: "first", CreationTimestamp: metav1.NewTime(w.quota(0).q.Created)}}
			finalize(n)
			n.Status = quota.Adopt(v1alpha1.DeviceLedgerStatus{}, w.quota(0).q)
			n.Status.Rebuilding = rebuilding
			w.store(w.replicas[0], [kinds]watchCache{}, nil, n)
		}
		first(true)
		d := admit(t, l, w.claim(1, "ns0", "a", 1))
		wantVerdict(t, d, Busy)
		if d.RetryAfter != retrySoon {
			t.Errorf("the creator seems to be gone: want to be asked again in %v, got %v", retrySoon, d.RetryAfter)
		}
		time.AfterFunc(300*time.Millisecond, func() { first(false) })
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Allowed)
	})
}

func TestALostLedgerIsRebuiltBeforeAnythingIsAdmitted(t *testing.T) {
	inWorld(t, Options{}, 1, 2, func(t *testing.T, w *world, l *Ledger) {
		a := w.claim(1, "ns0", "a", 1)
		wantVerdict(t, admit(t, l, a), Allowed)
		w.mu.Lock()
		w.removeLedger("q0")
		w.mu.Unlock()
		d := admit(t, l, w.claim(2, "ns0", "b", 1))
		wantVerdict(t, d, Busy)
		if i := indexOf(w.holds(0), "u1"); i < 0 {
			t.Errorf("want the own hold put back, got %v", w.holds(0))
		}
		time.Sleep(DefaultHoldAge)
		wantVerdict(t, admit(t, l, w.claim(3, "ns0", "c", 1)), Allowed)
	})
}

func TestALedgerEditedByHandIsPutRight(t *testing.T) {
	for name, edit := range map[string]func(*v1alpha1.DeviceLedgerStatus){
		"use":      func(l *v1alpha1.DeviceLedgerStatus) { l.Used = corev1.ResourceList{keyA: resource.MustParse("0")} },
		"limits":   func(l *v1alpha1.DeviceLedgerStatus) { l.Hard = corev1.ResourceList{keyA: resource.MustParse("9")} },
		"versions": func(l *v1alpha1.DeviceLedgerStatus) { l.Observed.Claims, l.CRQResourceVersion = "a", "b" },
		"versions ahead": func(l *v1alpha1.DeviceLedgerStatus) {
			l.Observed.Claims, l.CRQResourceVersion, l.Used = "999999", "999999", corev1.ResourceList{}
		},
		"limits ahead": func(l *v1alpha1.DeviceLedgerStatus) {
			l.CRQResourceVersion, l.Hard = "999999", corev1.ResourceList{keyA: resource.MustParse("9")}
		},
		"selector": func(l *v1alpha1.DeviceLedgerStatus) { l.Selector = v1alpha1.LedgerSelector{} },
		"all":      func(l *v1alpha1.DeviceLedgerStatus) { *l = v1alpha1.DeviceLedgerStatus{} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
				a := w.claim(1, "ns0", "a", 1)
				wantVerdict(t, admit(t, l, a), Allowed)
				w.create(a, kClaim, 1)
				w.mu.Lock()
				edited := w.ledgers["q0"].DeepCopy()
				edit(&edited.Status)
				w.store(w.replicas[0], [kinds]watchCache{}, nil, edited)
				w.mu.Unlock()
				wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Denied)
				s, err := l.Settle(t.Context(), "q0", nil)
				if err != nil {
					t.Fatal(err)
				}
				if got := s.Ledger.Status; !quota.Equal(got.Hard, w.quota(0).q.Hard) || got.CRQUID != w.quota(0).uid || got.Selector.Labels == nil {
					t.Errorf("want the ledger put right, got %+v", got)
				}
			})
		})
	}
}

// TestQuestionsLeaveNothingOfHoldsThatHaveEnded: a replica may be asked for long about a quota to
// which only others admit.
func TestQuestionsLeaveNothingOfHoldsThatHaveEnded(t *testing.T) {
	inWorld(t, Options{}, 1, 10, func(t *testing.T, w *world, l *Ledger) {
		for i := range 100 {
			w.mu.Lock()
			other := w.ledgers["q0"].DeepCopy()
			other.Status.Holds = []v1alpha1.Hold{{UID: types.UID(fmt.Sprint("other-", i)), Kind: v1alpha1.HoldClaim, Namespace: "ns0", Name: "other"}}
			w.store(w.replicas[0], [kinds]watchCache{}, nil, other)
			w.mu.Unlock()
			if _, err := l.Check(t.Context(), w.claim(i, "ns0", "a", 1)); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(l.account("q0").seen); got != 1 {
			t.Errorf("want the one hold remembered that there is, got %d", got)
		}
	})
}

// TestALedgerAheadOfThisReplicasCachesIsLeftToTheOthers: devices are never read live. Another
// replica's cache has more of them, until this one has caught up; a ledger that stays ahead was
// edited.
func TestALedgerAheadOfThisReplicasCachesIsLeftToTheOthers(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		w.fromCache[quota.Slices] = true
		w.mu.Lock()
		other := w.ledgers["q0"].DeepCopy()
		other.Status.Observed.Slices, other.Status.Used = "7", corev1.ResourceList{keyA: resource.MustParse("1")}
		w.store(w.replicas[0], [kinds]watchCache{}, nil, other)
		w.mu.Unlock()
		settle := func() error {
			_, err := l.Settle(t.Context(), "q0", nil)
			return err
		}
		for range 10 {
			if err := settle(); !errors.Is(err, errOvertaken) {
				t.Fatalf("want the settle left to whoever has seen more, got error %v", err)
			}
			time.Sleep(time.Minute)
		}
		if got := w.ledgers["q0"].Status.Observed.Slices; got != "7" {
			t.Errorf("the version that another replica observed became %q", got)
		}
		time.Sleep(cacheLag)
		if err := settle(); err != nil || w.ledgers["q0"].Status.Observed.Slices != "" {
			t.Errorf("ahead for %v: want it put right, got %+v, error %v", cacheLag, w.ledgers["q0"].Status.Observed, err)
		}
	})
}

func TestALedgerIsRemovedAfterItsQuotaAndItsHolds(t *testing.T) {
	inWorld(t, Options{}, 1, 2, func(t *testing.T, w *world, l *Ledger) {
		remove := func(wantDone bool) time.Duration {
			t.Helper()
			done, again, err := l.Remove(t.Context(), "q0")
			if err != nil || done != wantDone {
				t.Errorf("want done %v, got %v, error %v", wantDone, done, err)
			}
			return again
		}
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		if again := remove(false); again != 0 {
			t.Errorf("want no removal while the quota is there, got again in %v", again)
		}
		w.mu.Lock()
		w.remove(kCRQ, w.quota(0).uid)
		w.mu.Unlock()
		again := remove(false)
		if again <= 0 || again > DefaultHoldAge {
			t.Errorf("want to be asked again when the hold is old, got %v", again)
		}
		time.Sleep(again)
		remove(true)
		if w.ledgers["q0"] != nil {
			t.Error("want the ledger gone")
		}
		remove(true)
	})
}

func TestARecreatedQuotaAdoptsTheLedgerWithItsHolds(t *testing.T) {
	inWorld(t, Options{}, 1, 2, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		w.mu.Lock()
		w.remove(kCRQ, w.quota(0).uid)
		n := w.writeQuota(0, 2, 0)
		w.mu.Unlock()
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Allowed)
		if got := w.ledgers["q0"].Status; got.CRQUID != n.uid || len(got.Holds) != 2 {
			t.Errorf("want both holds under the new quota, got %+v", got)
		}
	})
}

func TestARequestForAQuotaThatGoesMeanwhileIsNotBlocked(t *testing.T) {
	inWorld(t, Options{}, 1, 1, func(t *testing.T, w *world, l *Ledger) {
		w.current = false
		w.mu.Lock()
		w.remove(kCRQ, w.quota(0).uid)
		w.removeLedger("q0")
		w.replicas[0].advanceLedger()
		w.replicas[0].advanceLedger()
		w.mu.Unlock()
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "a", 5)), Allowed)
	})
}

type recorded struct {
	nobody
	mu      sync.Mutex
	batches []int
	puts    map[PutResult]int
	aged    int
	sources []Source
}

func (r *recorded) Batch(n int) { r.mu.Lock(); r.batches = append(r.batches, n); r.mu.Unlock() }
func (r *recorded) Put(p PutResult, _ time.Duration) {
	r.mu.Lock()
	r.puts[p]++
	r.mu.Unlock()
}
func (r *recorded) Aged(n int) { r.mu.Lock(); r.aged += n; r.mu.Unlock() }
func (r *recorded) Settled(s Source, _ time.Duration) {
	r.mu.Lock()
	r.sources = append(r.sources, s)
	r.mu.Unlock()
}

func TestTheRecorderIsTold(t *testing.T) {
	rec := &recorded{puts: map[PutResult]int{}}
	inWorld(t, Options{Recorder: rec}, 1, 3, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 2)), Allowed)
		time.Sleep(5 * time.Second)
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "b", 1)), Allowed)
		time.Sleep(2 * time.Second)
		if s := l.State(w.ledgers["q0"]); s.Holds != 2 || s.OldestHold != 7*time.Second || !quota.Equal(s.Held, corev1.ResourceList{keyA: resource.MustParse("3")}) {
			t.Errorf("want 2 holds of 3 together, the oldest 7 s old, got %+v", s)
		}
		if s := New(nil, nil, Options{}).State(w.ledgers["q0"]); s.Holds != 2 || s.OldestHold != 0 {
			t.Errorf("a replica that decided nothing: want 2 holds of unknown age, got %+v", s)
		}
		time.Sleep(DefaultHoldAge)
		if _, err := l.Settle(t.Context(), "q0", nil); err != nil {
			t.Fatal(err)
		}
		if rec.aged != 2 || rec.puts[PutStored] != 3 || !slices.Equal(rec.batches, []int{1, 1, 0}) ||
			!slices.Equal(rec.sources, []Source{SourceCache, SourceCache, SourceLive}) {
			t.Errorf("got aged %d, puts %v, batches %v, sources %v", rec.aged, rec.puts, rec.batches, rec.sources)
		}
	})
}

// traced is a Tracer that remembers.
type traced struct {
	mu      sync.Mutex // protects following
	begun   []string
	waiting []int
	done    []Commit
}

func (r *traced) Commit(ctx context.Context, name string, waiting []context.Context) (context.Context, func(Commit)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = append(r.begun, name)
	r.waiting = append(r.waiting, len(waiting))
	return ctx, func(c Commit) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.done = append(r.done, c)
	}
}

func TestTheTracerIsToldOfEachCommit(t *testing.T) {
	tr := &traced{}
	inWorld(t, Options{Tracer: tr}, 1, 3, func(t *testing.T, w *world, l *Ledger) {
		wantVerdict(t, admit(t, l, w.claim(1, "ns0", "a", 1)), Allowed)
		w.current = false
		w.mu.Lock()
		for len(w.replicas[0].ledgers) == 0 || w.replicas[0].ledgers["q0"].ResourceVersion != w.ledgers["q0"].ResourceVersion {
			w.replicas[0].advanceLedger()
		}
		// What somebody else writes now is not seen.
		w.store(w.replicas[0], [kinds]watchCache{}, nil, w.ledgers["q0"].DeepCopy())
		w.mu.Unlock()
		wantVerdict(t, admit(t, l, w.claim(2, "ns0", "c", 1)), Allowed)
		synctest.Wait()
		want := []Commit{{Admitted: 1, Writes: 1}, {Admitted: 1, Writes: 2, Conflicts: 1}}
		if diff := cmp.Diff(want, tr.done); diff != "" {
			t.Errorf("commits (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"q0", "q0"}, tr.begun); diff != "" {
			t.Errorf("quotas (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int{1, 1}, tr.waiting); diff != "" {
			t.Errorf("contexts (-want +got):\n%s", diff)
		}
	})
}

// Where admissions come often a settle leaves it to the next one's write to end the holds of what was observed.
func TestASettleThatOnlySeesObjectsLeavesThatToTheNextAdmission(t *testing.T) {
	// two are observed two seconds after each other, the first one alone long before.
	for _, tc := range []struct {
		name string
		// change happens after the second object was created.
		change func(t *testing.T, w *world, l *Ledger)
		// wait before the settle.
		wait    time.Duration
		written bool
		again   time.Duration
	}{
		{name: "at first", again: DefaultLinger},
		{name: "some time later", wait: time.Second, again: DefaultLinger - time.Second},
		{name: "at its end", wait: DefaultLinger, written: true},
		{name: "when an object is gone", written: true, change: func(t *testing.T, w *world, l *Ledger) {
			if _, err := l.Settle(t.Context(), "q0", nil); err != nil { // it was seen
				t.Fatal(err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.remove(kClaim, "u2")
		}},
		{name: "when an object costs less than it was held for", written: true, change: func(_ *testing.T, w *world, _ *Ledger) {
			w.mu.Lock()
			defer w.mu.Unlock()
			c := *find(w.res[kClaim].objs, "u2")
			c.charge = 1
			w.write(kClaim, c)
		}},
		{name: "when the limits change", written: true, change: func(_ *testing.T, w *world, _ *Ledger) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.writeQuota(0, 7, 0)
		}},
		{name: "when the quota is gone", written: true, change: func(_ *testing.T, w *world, _ *Ledger) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.remove(kCRQ, w.quota(0).uid)
		}},
		{name: "when a pod is observed, too", written: true, change: func(t *testing.T, w *world, l *Ledger) {
			p := w.claim(4, "ns0", "p", 1)
			p.Kind = v1alpha1.HoldPod
			wantVerdict(t, admit(t, l, p), Allowed)
			w.create(p, kPod, 1)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, Options{}, 1, 100, func(t *testing.T, w *world, l *Ledger) {
				settle := func() Settled {
					t.Helper()
					s, err := l.Settle(t.Context(), "q0", nil)
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				arrive := func(i int) {
					t.Helper()
					r := w.claim(i, "ns0", fmt.Sprint(i), 2)
					wantVerdict(t, admit(t, l, r), Allowed)
					w.create(r, kClaim, 2)
				}
				arrive(1)
				if s := settle(); !s.Written || len(s.Ledger.Status.Holds) > 0 {
					t.Fatalf("the only one for long: want its hold ended at once, got written %v, holds %v", s.Written, s.Ledger.Status.Holds)
				}
				time.Sleep(2 * time.Second)
				arrive(2)
				if tc.change != nil {
					tc.change(t, w, l)
				}
				time.Sleep(tc.wait)
				s := settle()
				if s.Written != tc.written || s.Again != tc.again {
					t.Errorf("want written %v, again in %v, got %v, %v", tc.written, tc.again, s.Written, s.Again)
				}
				if left := len(w.holds(0)); s.Ledger != nil && (left == 0) != tc.written || s.Ledger != nil && left != len(s.Ledger.Status.Holds) {
					t.Errorf("%d holds are stored, told are %v", left, s.Ledger.Status.Holds)
				}
				if tc.change != nil {
					return
				}
				time.Sleep(time.Second)
				arrive(3)
				if left := w.holds(0); len(left) != 1 || left[0].UID != "u3" {
					t.Errorf("want only the hold of the next admission, got %v", left)
				}
			})
		})
	}
}
