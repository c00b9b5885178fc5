package cluster

import (
	"sync"
	"testing"

	"github.com/devicequota/devicequota/quota"
)

// A recount for another inventory computes beside the index while events go on.
func TestEventsDuringARecountAreCountedOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		s := newSimulation(t, seed)
		shelves := make([]*shelf, 40)
		for i := range shelves {
			shelves[i] = &shelf{revision: uint64(1_000_000 + i), memory: map[string][]int64{"gpu": {int64(i), 40}, "nic": {0}}}
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(stop)
			for _, inventory := range shelves {
				s.view.index.setInventory(inventoryAt{inventory: inventory})
			}
		})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, name := range []string{"q0", "q1", "q2"} {
					o := s.view.Cached().Observe(name, nil, nil)
					sum := quota.Copy(nil)
					for _, used := range o.ByNamespace {
						quota.AddTo(sum, used)
					}
					if !quota.Equal(sum, o.Used) {
						t.Errorf("%s: projects add up to %s, used is %s", name, quota.Format(sum), quota.Format(o.Used))
						return
					}
				}
			}
		})
		for range 400 {
			s.stepWithoutStock()
		}
		wg.Wait()
		s.shelf = shelves[len(shelves)-1]
		s.check()
	}
}
