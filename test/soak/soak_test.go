//go:build soak

package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

var (
	claims = flag.Int("claims", 100_000, "claims to create and delete")
	seed   = flag.Uint64("seed", 1, "seed of the order of creates and deletes")
)

const (
	soakClients = 48
	soakRounds  = 10
	// each client keeps at most as many claims.
	soakKept = 3
)

// soaker is one client: it creates and deletes claims, and keeps some.
type soaker struct {
	w        *world
	rand     *rand.Rand
	projects []string
	kept     []*resourceapi.ResourceClaim
}

// TestManyCreatesAndDeletesLeaveNothing: after each tenth of the claims the ledger tells what
// exists and holds are 0; from the first tenth to the last the managers do not grow; at the end
// nothing is left.
func TestManyCreatesAndDeletesLeaveNothing(t *testing.T) {
	w := start(t, 2)
	projects := w.projects("soak", 20)
	// Nobody is near the limit, unless something that ended is still counted.
	w.quota("soak", "soak", 3*soakClients*soakKept)
	w.inForce("soak")
	t.Logf("%d claims, %d clients, seed %d", *claims, soakClients, *seed)
	soakers := make([]*soaker, soakClients)
	for i := range soakers {
		soakers[i] = &soaker{w: w, rand: rand.New(rand.NewPCG(*seed, uint64(i))), projects: projects}
	}
	var first []footprint
	begun := time.Now()
	for round := range soakRounds {
		all := w.round(soakers, *claims/soakRounds)
		took := w.settled("soak", all)
		now := w.footprints()
		t.Logf("%6d created and deleted in %v, %.2f ledger writes per create; holds 0 after %v, largest ledger %d bytes; %v", (round+1)*(*claims/soakRounds),
			time.Since(begun).Round(time.Second), float64(w.ledgerWrites.Load())/float64((round+1)*(*claims/soakRounds)), took.Round(10*time.Millisecond), w.largest.Load(), now)
		if round == 0 {
			first = now
		}
		for i := range now {
			wantFlat(t, i, first[i], now[i])
		}
	}
	for _, s := range soakers {
		for _, c := range s.kept {
			if err := w.cp.Client.Delete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.settled("soak", 0)
	if n, err := w.existing(t.Context()); n != 0 || err != nil {
		t.Errorf("%d claims are left (%v)", n, err)
	}
}

// round creates n claims and deletes about as many, and returns how many exist then.
func (w *world) round(soakers []*soaker, n int) int64 {
	w.t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, s := range soakers {
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > n || w.t.Failed() {
					return
				}
				if err := s.step(w.t.Context(), i); err != nil {
					w.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
	var kept int64
	for _, s := range soakers {
		kept += int64(len(s.kept))
	}
	return kept
}

// step creates a claim, after or before it deletes others. Some live for a moment only.
func (s *soaker) step(ctx context.Context, i int) error {
	c := claim(s.projects[s.rand.IntN(len(s.projects))], fmt.Sprintf("c-%d-%x", i, s.rand.Uint32()))
	for len(s.kept) >= soakKept || len(s.kept) > 0 && s.rand.IntN(2) == 0 {
		if err := s.w.cp.Client.Delete(ctx, s.kept[0]); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		s.kept = s.kept[1:]
	}
	if err := s.w.cp.Client.Create(ctx, c); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	s.kept = append(s.kept, c)
	return nil
}

// settled waits until everything says that n devices are used and nothing is held, also the
// managers' metrics, and returns how long that took.
func (w *world) settled(quota string, n int64) time.Duration {
	w.t.Helper()
	return w.eventually(quota+" at rest", func(ctx context.Context) error {
		if err := w.counted(ctx, quota, n); err != nil {
			return err
		}
		for i, m := range w.managers {
			if n := m.holds(w.t); n != 0 {
				return fmt.Errorf("manager %d tells of %d holds", i, n)
			}
		}
		return nil
	})
}

func (w *world) footprints() []footprint {
	w.t.Helper()
	var out []footprint
	for _, m := range w.managers {
		out = append(out, m.footprint(w.t))
	}
	return out
}

// wantFlat: what is reachable grows by less than a tenth and 4 MiB, goroutines by less than 20:
// connections come and go.
func wantFlat(t *testing.T, i int, first, now footprint) {
	t.Helper()
	if now.heap > first.heap+first.heap/10+4<<20 {
		t.Errorf("manager %d grows: from %v to %v", i, first, now)
	}
	if now.goroutines > first.goroutines+20 {
		t.Errorf("manager %d has %d goroutines, %d at first", i, now.goroutines, first.goroutines)
	}
}
