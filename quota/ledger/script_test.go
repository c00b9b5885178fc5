package ledger

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// script plays one interleaving step by step; the invariants are checked after each.
type script struct {
	*model
	t *testing.T
}

// play runs a script in a bubble. At its end the ledgers must come to rest.
func play(t *testing.T, c modelConfig, f func(s *script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &script{newModel(c, rand.New(rand.NewPCG(1, 1))), t}
		s.trace = true
		f(s)
		s.quiesce()
		if s.err != "" {
			t.Error(s.err)
		}
		if t.Failed() {
			t.Log("\n" + strings.Join(s.lines, "\n"))
		}
	})
}

func scriptConfig(hard int64) modelConfig {
	return modelConfig{replicas: 2, quotas: 1, namespaces: 2, hard: hard, persist: 34 * time.Second, age: 40 * time.Second, maxDeliveries: 3}
}

func (s *script) rest() {
	s.t.Helper()
	s.settleDown()
	if s.err != "" {
		s.t.Error(s.err)
	}
}

// asks delivers a new request to a replica.
func (s *script) asks(rep int, k kind, ns int, name string, charge int64) *delivery {
	return s.asksFor(rep, k, ns, name, charge, "")
}

func (s *script) asksFor(rep int, k kind, ns int, name string, charge int64, pod types.UID) *delivery {
	s.t.Helper()
	i := len(s.requests)
	r := &modelRequest{i: i, uid: uidOf(i), kind: k, ns: nsName(ns), name: name, charge: charge, min: charge, pod: pod,
		start: time.Now(), charged: map[string]bool{}, taint: map[string]bool{}, chargedB: map[string]bool{}}
	s.requests = append(s.requests, r)
	return s.again(r, rep)
}

// again delivers a request once more.
func (s *script) again(r *modelRequest, rep int) *delivery {
	s.t.Helper()
	d := s.deliverTo(r, s.replicas[rep])
	s.rest()
	return d
}

// lets let the replica's call go that begins so.
func (s *script) lets(rep int, what string) { s.t.Helper(); s.letsGo(rep, what, vApply) }

func (s *script) letsGo(rep int, what string, v verdict) {
	s.t.Helper()
	i := slices.IndexFunc(s.calls, func(c *call) bool { return c.r.i == rep && strings.HasPrefix(c.what, what) })
	if i < 0 {
		var have []string
		for _, c := range s.calls {
			have = append(have, "r"+string(rune('0'+c.r.i))+" "+c.what)
		}
		s.t.Fatalf("r%d waits for no %q, but: %s\n%s", rep, what, strings.Join(have, ", "), strings.Join(s.lines, "\n"))
	}
	s.release(s.calls[i], v)
	s.rest()
}

// flow lets all calls of a replica go for a while, as long as there are any.
func (s *script) flow(rep int) {
	s.t.Helper()
	for range 2000 {
		i := slices.IndexFunc(s.calls, func(c *call) bool { return c.r.i == rep })
		if i < 0 {
			if !s.pending(rep) {
				return
			}
			s.sleep(5 * time.Millisecond)
			s.rest()
			continue
		}
		s.release(s.calls[i], vApply)
		s.rest()
	}
}

func (s *script) pending(rep int) bool {
	if s.bg[rep] > 0 {
		return true
	}
	for _, d := range s.deliveries {
		if d.rep.i == rep && !d.over {
			return true
		}
	}
	return false
}

// sees delivers all events of the resources to a replica.
func (s *script) sees(rep int, ks ...kind) {
	s.t.Helper()
	r := s.replicas[rep]
	for _, k := range ks {
		for r.c[k].pos < len(s.res[k].log) {
			r.advance(k, false)
		}
	}
	for r.ledgerPos < len(s.ledgerL) {
		r.advanceLedger()
	}
	s.rest()
}

func (s *script) waits(d time.Duration) { s.t.Helper(); s.pass(d); s.rest() }

func (s *script) settles(rep int) {
	s.t.Helper()
	s.settleInBackground(s.replicas[rep], quotaName(0))
	s.rest()
}

func (s *script) wantAnswer(d *delivery, want Verdict) {
	s.t.Helper()
	if got, ok := s.verdicts[d]; !ok || got != want {
		s.t.Errorf("%s/%d: want verdict %d, got %d (answered: %v)", d.r.uid, d.n, want, got, ok)
	}
}

func (s *script) wantCounted(d *delivery, want bool) {
	s.t.Helper()
	l := s.ledgers[quotaName(0)]
	if got := l != nil && has(l, d.r); got != want {
		s.t.Errorf("%s: want counted %v, got %v", d.r.uid, want, got)
	}
}

func (s *script) status() v1alpha1.DeviceLedgerStatus { return s.ledgers[quotaName(0)].Status }

func (s *script) count() int64 {
	l := s.status()
	q := quota.Add(l.Used, quota.HoldSum(l.Holds, "", nil, false))[keyA]
	return q.Value()
}

// The counterexamples of the model that the rules were found with.

// TestW1AHoldSharedByTwoDeliveriesOutlivesARefusalOfOne: the first delivery's refusal must not
// drop the hold that the second was admitted by.
func TestW1AHoldSharedByTwoDeliveriesOutlivesARefusalOfOne(t *testing.T) {
	play(t, scriptConfig(2), func(s *script) {
		first := s.asks(0, kClaim, 0, "a", 1)
		second := s.again(first.r, 1)
		s.lets(1, "put ledger")
		s.wantAnswer(second, Allowed)
		other := s.asks(1, kClaim, 0, "b", 1)
		s.lets(1, "put ledger")
		s.wantAnswer(other, Allowed)
		s.changeQuota(0, 1)
		s.sees(0, kCRQ)
		s.flow(0)
		s.wantAnswer(first, Busy)
		s.persist(first.r)
		s.rest()
		s.wantCounted(first, true)
	})
}

// TestW1AHoldStaysWhenAnotherQuotaRefuses: a failed commit to a later quota leaves the hold in
// the earlier one, because another delivery may rely on it.
func TestW1AHoldStaysWhenAnotherQuotaRefuses(t *testing.T) {
	c := scriptConfig(1)
	c.quotas = 2
	play(t, c, func(s *script) {
		first := s.asks(0, kClaim, 0, "a", 1)
		s.lets(0, "put ledger q0")
		second := s.again(first.r, 1)
		s.sees(1)
		s.flow(1)
		s.wantAnswer(second, Allowed)
		s.persist(first.r)
		s.changeQuota(1, 0)
		s.sees(0, kCRQ)
		s.flow(0)
		s.wantCounted(first, true)
	})
}

// TestW2ReadingACacheDoesNotAgeHolds: what a stalled cache lacks may exist.
func TestW2ReadingACacheDoesNotAgeHolds(t *testing.T) {
	play(t, scriptConfig(2), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.lets(1, "put ledger")
		s.wantAnswer(a, Allowed)
		s.sees(0)
		s.settles(0) // r0 sees the hold now
		s.waits(33 * time.Second)
		s.persist(a.r)
		s.waits(8 * time.Second)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.lets(0, "put ledger")
		s.wantAnswer(b, Allowed)
		s.wantCounted(a, true)
	})
}

// TestW3TheRebuildingMarkOutlivesTheReplicaThatSetIt: a restart must not end it.
func TestW3TheRebuildingMarkOutlivesTheReplicaThatSetIt(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.lets(1, "put ledger")
		s.wantAnswer(a, Allowed)
		s.deleteLedger(0)
		s.crash(s.replicas[1])
		s.rest()
		b := s.asks(0, kClaim, 0, "b", 1)
		s.sees(0)
		s.flow(0)
		s.wantAnswer(b, Busy)
		s.crash(s.replicas[0])
		s.sees(0)
		c := s.asks(0, kClaim, 0, "c", 1)
		s.flow(0)
		s.wantAnswer(c, Busy)
		s.waits(30 * time.Second)
		s.persist(a.r)
		s.rest()
	})
}

// TestW3OnlyALateLiveObservationEndsTheRebuilding: caches may lack what was admitted before.
func TestW3OnlyALateLiveObservationEndsTheRebuilding(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.lets(1, "put ledger")
		s.deleteLedger(0)
		s.crash(s.replicas[1])
		s.sees(0)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Busy)
		s.persist(a.r)
		s.waits(39 * time.Second)
		s.sees(0, kNS)
		c := s.asks(0, kClaim, 0, "c", 1)
		s.flow(0)
		s.wantAnswer(c, Busy)
		s.waits(2 * time.Second)
		d := s.asks(0, kClaim, 0, "d", 1)
		s.flow(0)
		s.wantAnswer(d, Denied)
		s.wantCounted(a, true)
	})
}

// TestW4TheSchedulersClaimIsHeldThoughItsPodPaysForIt: the pod may go before the claim is seen.
func TestW4TheSchedulersClaimIsHeldThoughItsPodPaysForIt(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		pod := s.asks(1, kPod, 0, "p", 1)
		s.lets(1, "put ledger")
		s.persist(pod.r)
		s.sees(0)
		claim := s.asksFor(0, kClaim, 0, "c", 1, pod.r.uid)
		s.lets(0, "put ledger")
		s.wantAnswer(claim, Allowed)
		if got := s.count(); got != 1 {
			s.t.Errorf("want pod and claim to count 1, got %d", got)
		}
		s.sees(1, kPod)
		s.settles(1)
		s.flow(1) // the pod's own hold ends
		s.persist(claim.r)
		s.delete(pod.r)
		s.sees(1, kPod)
		s.settles(1)
		s.flow(1)
		s.wantCounted(claim, true)
		if got := s.count(); got != 1 {
			s.t.Errorf("want the claim to count 1 without its pod, got %d", got)
		}
	})
}

// TestW4PodsOfOneNameAreHeldEach: a pod's charge may live on in its claim after another pod
// took its name.
func TestW4PodsOfOneNameAreHeldEach(t *testing.T) {
	play(t, scriptConfig(3), func(s *script) {
		for _, d := range []*delivery{s.asks(1, kPod, 0, "a", 2), s.asks(1, kPod, 0, "b", 1)} {
			s.flow(1)
			s.wantAnswer(d, Allowed)
		}
		twin := s.asks(1, kPod, 0, "b", 1)
		s.flow(1)
		s.wantAnswer(twin, Busy)
	})
}

// TestW5ARaisedLimitIsSeenBeforeADenial: caches may be behind.
func TestW5ARaisedLimitIsSeenBeforeADenial(t *testing.T) {
	for name, charge := range map[string]int64{"charge beyond the old limit": 2, "beside what exists": 1} {
		t.Run(name, func(t *testing.T) {
			play(t, scriptConfig(1), func(s *script) {
				if charge == 1 {
					a := s.asks(0, kClaim, 0, "a", 1)
					s.flow(0)
					s.persist(a.r)
					s.sees(0, kClaim)
				}
				s.changeQuota(0, 2)
				b := s.asks(0, kClaim, 0, "b", charge)
				s.flow(0)
				s.wantAnswer(b, Allowed)
			})
		})
	}
}

// TestW5ANamespaceThatLeftIsSeenBeforeADenial: its objects do not count any more.
func TestW5ANamespaceThatLeftIsSeenBeforeADenial(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(0, kClaim, 1, "a", 1)
		s.flow(0)
		s.persist(a.r)
		s.sees(0, kClaim)
		s.label(1, false)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Allowed)
	})
}

// TestW6ObservedVersionsNeverDecrease: a cache older than an earlier settle may not settle.
func TestW6ObservedVersionsNeverDecrease(t *testing.T) {
	play(t, scriptConfig(3), func(s *script) {
		a := s.asks(1, kClaim, 1, "a", 1)
		s.flow(1)
		s.persist(a.r)
		s.sees(1, kClaim)
		s.settles(1)
		s.flow(1)
		s.label(1, false)
		s.sees(1, kNS)
		s.settles(1)
		s.flow(1)
		s.label(1, true)
		s.sees(0, kNS)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Allowed)
		s.wantCounted(a, true)
	})
}

// TestW7WhatAGoneQuotaCoveredIsStillCounted: the quota may come back before everybody saw it go.
func TestW7WhatAGoneQuotaCoveredIsStillCounted(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(0, kClaim, 0, "a", 1)
		s.flow(0)
		s.persist(a.r)
		pod := s.asks(0, kPod, 1, "p", 0)
		s.flow(0)
		s.persist(pod.r)
		s.sees(0, kClaim, kPod)
		o := s.quota(0)
		s.ends(o.uid)
		s.remove(kCRQ, o.uid)
		s.sees(0, kCRQ)
		s.settles(0)
		s.flow(0)
		if got := s.count(); got != 1 {
			s.t.Errorf("want the object of a gone quota to count 1, got %d", got)
		}
		s.changeQuota(0, 1)
		b := s.asks(1, kClaim, 0, "b", 1)
		s.sees(1)
		s.flow(1)
		s.wantAnswer(b, Denied)
	})
}

// TestW8ALiveListOlderThanTheOwnCacheDoesNotSettleCoverage: the replica knows better.
func TestW8ALiveListOlderThanTheOwnCacheDoesNotSettleCoverage(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		s.label(1, false)
		s.sees(1, kNS)
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.persist(a.r)
		s.sees(1, kClaim)
		moved := s.asks(1, kClaim, 1, "moved", 1)
		s.flow(1)
		s.persist(moved.r)
		s.sees(1, kClaim)
		s.delete(a.r)
		b := s.asks(1, kClaim, 0, "b", 1)
		s.lets(1, "live 0")
		s.label(1, true)
		s.sees(1, kNS)
		s.flow(1)
		s.wantAnswer(b, Denied)
	})
}

// TestNewerCoverageIsSettledBeforeTheNextAdmission: a replica that may not settle by its cache
// must look live before it admits by a ledger that lacks a project it knows to be covered.
func TestNewerCoverageIsSettledBeforeTheNextAdmission(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		s.label(1, false)
		s.sees(0, kNS)
		s.sees(1, kNS)
		moved := s.asks(0, kClaim, 1, "moved", 1)
		s.flow(0)
		s.persist(moved.r)
		s.sees(0, kClaim)
		// r1 settles by a newer pod that r0 has not seen.
		pod := s.asks(1, kPod, 0, "p", 0)
		s.flow(1)
		s.persist(pod.r)
		s.sees(1, kClaim, kPod)
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.persist(a.r)
		s.sees(1, kClaim)
		s.settles(1)
		s.flow(1)
		s.delete(a.r)
		s.sees(1, kClaim)
		s.settles(1)
		s.flow(1)
		s.label(1, true)
		s.sees(0, kNS)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Denied)
	})
}

// TestANewKeyIsCountedBeforeTheNextAdmission: what exists was never counted for it.
func TestANewKeyIsCountedBeforeTheNextAdmission(t *testing.T) {
	play(t, scriptConfig(9), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.persist(a.r)
		pod := s.asks(1, kPod, 0, "p", 1)
		s.flow(1)
		s.persist(pod.r)
		s.sees(1, kClaim, kPod)
		s.settles(1)
		s.flow(1)
		s.begins(s.writeQuota(0, 9, 2))
		s.sees(0, kCRQ, kClaim) // but not the pod: it may not settle
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Denied)
	})
}

// TestAHoldOutlivesTheLastMomentOfItsCreate: the API server may persist until 34 s.
func TestAHoldOutlivesTheLastMomentOfItsCreate(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(0, kClaim, 0, "a", 1)
		s.flow(0)
		s.waits(33900 * time.Millisecond)
		s.settles(0)
		s.flow(0)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.lets(0, "live 0")
		s.lets(0, "live 1")
		s.persist(a.r)
		s.flow(0)
		s.wantAnswer(b, Busy)
		s.wantCounted(a, true)
	})
}

// TestACacheOlderThanALiveListDoesNotAgeHolds: that the replica has looked live since does not
// make its cache newer.
func TestACacheOlderThanALiveListDoesNotAgeHolds(t *testing.T) {
	play(t, scriptConfig(2), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.sees(0)
		s.settles(0) // r0 sees the hold now
		s.waits(33 * time.Second)
		s.persist(a.r)
		s.waits(8 * time.Second)
		b := s.asks(0, kClaim, 0, "b", 2)
		s.flow(0)
		s.wantAnswer(b, Denied)
		c := s.asks(0, kClaim, 0, "c", 1)
		s.flow(0)
		s.wantAnswer(c, Allowed)
		s.wantCounted(a, true)
	})
}

// TestARebuildingIsNotEndedByAListThatBeganTooEarly: what was on its way then may be missing.
func TestARebuildingIsNotEndedByAListThatBeganTooEarly(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		pod := s.asks(1, kPod, 1, "p", 0)
		s.flow(1)
		s.persist(pod.r)
		s.deleteLedger(0)
		s.crash(s.replicas[1])
		s.sees(0)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Busy)
		s.sees(0)
		s.waits(33 * time.Second)
		s.settles(0) // its pods are older than what the creation has recorded: it looks live
		for _, step := range []string{"live 0", "live 1"} {
			s.lets(0, step)
		}
		s.persist(a.r)
		s.waits(8 * time.Second)
		s.flow(0)
		if !s.status().Rebuilding {
			s.t.Error("want the ledger rebuilding still")
		}
	})
}

// goes deletes the quota, and what Kubernetes would collect with it.
func (s *script) goes() {
	s.t.Helper()
	o := s.quota(0)
	s.ends(o.uid)
	s.remove(kCRQ, o.uid)
	if l := s.ledgers[quotaName(0)]; l != nil && len(l.OwnerReferences) > 0 {
		s.removeLedger(quotaName(0))
	}
	s.rest()
}

// removes asks a replica to remove the ledger.
func (s *script) removes(rep int) {
	s.t.Helper()
	l, ctx := s.replicas[rep].ledger, s.replicas[rep].ctx
	s.bg[rep]++
	go func() {
		_, _, _ = l.Remove(ctx, quotaName(0))
		s.mu.Lock()
		s.bg[rep]--
		s.mu.Unlock()
	}()
	s.rest()
}

// TestAQuotaRecreatedMeanwhileFindsTheHolds: garbage collection would lose them.
func TestAQuotaRecreatedMeanwhileFindsTheHolds(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.wantAnswer(a, Allowed)
		s.goes()
		s.changeQuota(0, 1)
		s.sees(0, kCRQ)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Busy)
		s.wantCounted(a, true)
	})
}

// TestALedgerAdoptedMeanwhileIsNotRemoved: removal is of one version only.
func TestALedgerAdoptedMeanwhileIsNotRemoved(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		s.goes()
		s.removes(0)
		s.lets(0, "get quota")
		s.lets(0, "get ledger")
		s.changeQuota(0, 1)
		s.sees(1, kCRQ)
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.wantAnswer(a, Allowed)
		s.flow(0)
		s.wantCounted(a, true)
	})
}

// TestALedgerIsCreatedFromALiveObservation: a stalled cache lacks what exists, and the first
// ledger of a young quota has no mark that would wait for it.
func TestALedgerIsCreatedFromALiveObservation(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		a := s.asks(1, kClaim, 0, "a", 1)
		s.flow(1)
		s.persist(a.r)
		s.sees(1, kClaim)
		s.settles(1)
		s.flow(1)
		s.goes()
		s.removes(1)
		s.flow(1)
		if s.ledgers[quotaName(0)] != nil {
			s.t.Error("want the ledger removed")
		}
		s.changeQuota(0, 1)
		s.sees(0, kCRQ)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Denied)
	})
}

// TestALeaderLostDuringASettleLeavesItToTheNext: whether its write was stored or not.
func TestALeaderLostDuringASettleLeavesItToTheNext(t *testing.T) {
	for name, v := range map[string]verdict{"written": vLose, "not written": vFail} {
		t.Run(name, func(t *testing.T) {
			play(t, scriptConfig(2), func(s *script) {
				a := s.asks(0, kClaim, 0, "a", 1)
				s.flow(0)
				s.persist(a.r)
				s.sees(0, kClaim)
				s.sees(1, kClaim)
				s.settles(1)
				s.letsGo(1, "put ledger", v)
				s.crash(s.replicas[1])
				s.rest()
				s.wantCounted(a, true)
				s.sees(0)
				s.settles(0)
				s.flow(0)
				if l := s.status(); len(l.Holds) != 0 || s.count() != 1 {
					s.t.Errorf("want use of 1 and no hold, got %d and holds %v", s.count(), l.Holds)
				}
			})
		})
	}
}

// TestTwoLeadersForAMomentDoNotUndoEachOther: the one that lost its lease does not know it yet,
// and its caches are older.
func TestTwoLeadersForAMomentDoNotUndoEachOther(t *testing.T) {
	play(t, scriptConfig(2), func(s *script) {
		a := s.asks(0, kClaim, 0, "a", 1)
		s.flow(0)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.persist(a.r)
		s.sees(0, kClaim)
		s.settles(0) // it would end the hold of a only, and waits to be written
		s.persist(b.r)
		s.sees(1, kClaim)
		s.settles(1)
		s.lets(1, "put ledger")
		if l := s.status(); len(l.Holds) != 0 || s.count() != 2 {
			s.t.Errorf("want both used by the new leader's settle, got %d and holds %v", s.count(), l.Holds)
		}
		before := s.ledgers[quotaName(0)].ResourceVersion
		s.flow(0) // conflicts
		s.wantCounted(a, true)
		s.wantCounted(b, true)
		if after := s.ledgers[quotaName(0)].ResourceVersion; after != before {
			s.t.Errorf("want nothing written by the old leader, got version %s after %s", after, before)
		}
	})
}

// TestAnObjectInAProjectThatIsNotKnownIsNotObserved: the watch of namespaces may be behind that
// of claims. Whoever knows the claim only can neither count it nor end its hold.
func TestAnObjectInAProjectThatIsNotKnownIsNotObserved(t *testing.T) {
	play(t, scriptConfig(1), func(s *script) {
		s.newNamespace()
		a := s.asks(0, kClaim, 2, "a", 1)
		s.flow(0)
		s.wantAnswer(a, Allowed)
		s.persist(a.r)
		s.sees(0, kClaim)
		s.settles(0)
		s.flow(0)
		s.wantCounted(a, true)
		b := s.asks(0, kClaim, 0, "b", 1)
		s.flow(0)
		s.wantAnswer(b, Denied)
		s.sees(0, kNS)
		s.settles(0)
		s.flow(0)
		if l := s.status(); len(l.Holds) != 0 || s.count() != 1 {
			s.t.Errorf("want use of 1 and no hold, got %d and holds %v", s.count(), l.Holds)
		}
	})
}
