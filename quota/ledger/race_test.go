package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// claim returns an admission request for a claim, as of now.
func (w *world) claim(i int, ns, name string, charge int64) Request {
	return Request{
		UID: types.UID(fmt.Sprintf("u%d", i)), Kind: v1alpha1.HoldClaim, Namespace: ns, Name: name, Arrived: w.replicas[i%len(w.replicas)].now(), Created: time.Now(),
		Charge: func(q *quota.Quota) (quota.Charge, error) { return quota.Charge{Amounts: amounts(q, charge)}, nil },
	}
}

func TestParallelCreatesOverReplicasTakeExactlyThePlacesThereAre(t *testing.T) {
	synctest.Test(t, parallelCreates) // in fake time, so that a slow machine makes nobody wait in vain
}

func parallelCreates(t *testing.T) {
	const replicas, places = 3, 50
	w := newWorld(Options{}, 4, 1, replicas, places)
	w.free, w.current = true, true
	store := NewMemoryStore(clock.RealClock{})
	ledgers := make([]*Ledger, replicas)
	for i := range ledgers {
		r := w.replicas[i]
		ledgers[i] = New(store, &viewOf{r, r.inc}, Options{Clock: r.ledger.o.Clock})
	}
	var wg sync.WaitGroup
	got := make([]Decision, 200)
	for i := range got {
		wg.Go(func() {
			ns := nsName(i % 4)
			d, err := ledgers[i%replicas].Admit(t.Context(), w.claim(i, ns, fmt.Sprint(i), 1))
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			if d.Verdict == Allowed {
				w.mu.Lock()
				w.write(kClaim, object{uid: types.UID(fmt.Sprintf("u%d", i)), ns: ns, name: fmt.Sprint(i), charge: 1})
				w.mu.Unlock()
			}
			got[i] = d
		})
	}
	wg.Wait()
	counts := map[Verdict]int{}
	for _, d := range got {
		counts[d.Verdict]++
	}
	if counts[Allowed] != places || counts[Denied] != len(got)-places {
		t.Errorf("want %d allowed and the rest denied, got %v", places, counts)
	}
	l, err := store.GetLive(t.Context(), quotaName(0))
	if err != nil {
		t.Fatal(err)
	}
	used := quota.Add(l.Status.Used, quota.HoldSum(l.Status.Holds, "", nil, false))[keyA]
	if used.Value() != places {
		t.Errorf("want use and holds of %d together, got %s", places, used.String())
	}
}

// distant is a store far away: what is read is old when it arrives, what is written arrives late.
type distant struct{ Store }

const distance = 10 * time.Millisecond

func (s distant) GetLive(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	defer time.Sleep(distance)
	return s.Store.GetLive(ctx, name)
}

func (s distant) Update(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	time.Sleep(distance)
	return s.Store.Update(ctx, l)
}

// A replica that always has requests would win each race for the ledger, which it alone knows as
// it is, if it did not give way.
func TestAReplicaThatAlwaysHasRequestsLetsTheOthersWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, 4, 1, 2, 1_000_000)
		w.free, w.current = true, true
		store := distant{NewMemoryStore(clock.RealClock{})}
		var ledgers [2]*Ledger
		for i, r := range w.replicas {
			ledgers[i] = New(store, &viewOf{r, r.inc}, Options{Clock: r.ledger.o.Clock, MaxHolds: 1_000_000, Rand: rand.NewPCG(1, uint64(i))})
		}
		var next atomic.Int64
		ask := func(l *Ledger) {
			i := int(next.Add(1))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if d, err := l.Admit(ctx, w.claim(i, nsName(i%4), fmt.Sprint(i), 1)); err != nil || d.Verdict != Allowed {
				t.Errorf("want it admitted, got verdict %d, error %v", d.Verdict, err)
			}
		}
		ask(ledgers[0])
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						ask(ledgers[0])
					}
				}
			})
		}
		var took []time.Duration
		for range 5 {
			time.Sleep(10 * distance) // until the first replica wins again
			begun := time.Now()
			ask(ledgers[1])
			took = append(took, time.Since(begun))
		}
		close(stop)
		wg.Wait()
		if worst := slices.Max(took); worst > 100*distance {
			t.Errorf("the other replica's requests took %v at calls of %v", took, distance)
		}
	})
}
