package ledger

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestBatchesAreSmallUnlessRequestsWaitForLong(t *testing.T) {
	for name, test := range map[string]struct {
		slow        time.Duration
		least, most int
	}{
		// The first request alone, then the other 99 by 32.
		"a fast store is written more often": {10 * time.Millisecond, 5, 6},
		"a slow store takes all that wait":   {2 * time.Second, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{}, 1, 100, func(t *testing.T, w *world, l *Ledger) {
				w.slow = test.slow
				before := w.puts
				var wg sync.WaitGroup
				got := make([]Decision, 100)
				for i := range got {
					r := w.claim(i, "ns0", fmt.Sprint(i), 1)
					wg.Go(func() { got[i], _ = l.Admit(t.Context(), r) })
				}
				wg.Wait()
				for _, d := range got {
					wantVerdict(t, d, Allowed)
				}
				if puts := w.puts - before; puts < test.least || puts > test.most {
					t.Errorf("want %d to %d writes for 100 admissions, got %d", test.least, test.most, puts)
				}
			})
		})
	}
}
