package ledger

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

var flagSoak = flag.Int("soak.creates", 5_000, "creates and deletes of the soak test, and a tenth of it before, to compare with")

// tide is a View of objects that come and go, in memory that does not grow with them.
type tide struct {
	quota *quota.Quota

	mu     sync.Mutex // protects following
	exist  map[types.UID]bool
	ever   []uint64 // a bit for each object that ever was
	events uint64
}

func (v *tide) change(uid types.UID, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events++
	if exists {
		v.exist[uid] = true
		i := indexIn(uid)
		v.ever[i/64] |= 1 << (i % 64)
	} else {
		delete(v.exist, uid)
	}
}

func indexIn(uid types.UID) int {
	i, err := strconv.Atoi(strings.TrimPrefix(string(uid), "u"))
	if err != nil {
		panic(err)
	}
	return i
}

// Observe has an object that was deleted still present: its deletion was seen.
func (v *tide) Observe(_ string, _ *quota.Quota, uids []types.UID) quota.Observed {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := *resource.NewQuantity(1, resource.DecimalSI)
	o := quota.Observed{Quota: v.quota, Present: map[types.UID]bool{}, Charges: map[types.UID]corev1.ResourceList{},
		Used: corev1.ResourceList{keyA: *resource.NewQuantity(int64(len(v.exist)), resource.DecimalSI)}}
	o.Version[quota.Claims], o.Version[quota.Namespaces], o.Version[quota.Quotas] = v.events, 1, v.quota.ResourceVersion
	o.Recorded = o.Version
	for _, uid := range uids {
		if i := indexIn(uid); v.ever[i/64]&(1<<(i%64)) != 0 {
			o.Present[uid] = true
		}
		if v.exist[uid] {
			o.Charges[uid] = corev1.ResourceList{keyA: one}
		}
	}
	return o
}

func (v *tide) Covering(string) ([]*quota.Quota, uint64, bool) {
	return []*quota.Quota{v.quota}, 1, true
}
func (v *tide) Cached() Observation                                 { return v }
func (v *tide) Live(context.Context) (Observation, error)           { return v, nil }
func (v *tide) Quota(context.Context, string) (*quota.Quota, error) { return v.quota, nil }
func (v *tide) Namespace(_ context.Context, ns string) ([]*quota.Quota, uint64, bool, error) {
	quotas, version, known := v.Covering(ns)
	return quotas, version, known, nil
}

// TestManyCreatesAndDeletesLeaveNothing: three replicas, of whose admissions one in five hundred
// is never created. When all is over there are no holds, and no replica remembers anything.
func TestManyCreatesAndDeletesLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, 1, 1, 1, 500)
		v := &tide{quota: w.quota(0).q, exist: map[types.UID]bool{}, ever: make([]uint64, (*flagSoak+*flagSoak/10)/64+1)}
		store := NewMemoryStore(clock.RealClock{})
		ledgers := make([]*Ledger, 3)
		for i := range ledgers {
			ledgers[i] = New(store, v, Options{})
		}
		next := 0
		pass := func(n int) uint64 {
			flood(t, v, ledgers, next, n)
			next += n
			time.Sleep(DefaultHoldAge)
			for i, l := range ledgers {
				s, err := l.Settle(t.Context(), quotaName(0), nil)
				if err != nil {
					t.Fatal(err)
				}
				if used := s.Ledger.Status.Used[keyA]; used.Value() != 0 || len(s.Ledger.Status.Holds) != 0 {
					t.Errorf("want nothing used or held, got %s and %d holds", used.String(), len(s.Ledger.Status.Holds))
				}
				synctest.Wait() // the commit that answered may still be ending
				if a := l.account(quotaName(0)); len(a.seen)+len(a.queue) > 0 || a.committing {
					t.Errorf("replica %d still remembers %d holds and %d requests", i, len(a.seen), len(a.queue))
				}
			}
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		first := pass(*flagSoak / 10)
		if last := pass(*flagSoak); last > first+1<<20 {
			t.Errorf("from %d creates to %d more the heap grew from %d to %d KiB", *flagSoak/10, *flagSoak, first>>10, last>>10)
		}
	})
}

// flood creates and deletes n objects, some at a time.
func flood(t *testing.T, v *tide, ledgers []*Ledger, from, n int) {
	t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 96 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				uid := types.UID(fmt.Sprintf("u%d", from+i))
				d, err := ledgers[i%len(ledgers)].Admit(t.Context(), Request{UID: uid, Kind: v1alpha1.HoldClaim, Namespace: nsName(0), Name: string(uid), Arrived: time.Now(), Created: time.Now(),
					Charge: func(q *quota.Quota) (quota.Charge, error) { return quota.Charge{Amounts: amounts(q, 1)}, nil }})
				if err != nil || d.Verdict == Denied {
					t.Errorf("%s: %+v, %v", uid, d, err)
				}
				if d.Verdict == Allowed && i%500 != 0 {
					v.change(uid, true)
					v.change(uid, false)
				}
			}
		})
	}
	wg.Wait()
	synctest.Wait()
	for i, l := range ledgers {
		if a := l.account(quotaName(0)); len(a.own) > 200 {
			t.Errorf("replica %d remembers %d of its own holds, of which most have ended", i, len(a.own))
		}
	}
}
