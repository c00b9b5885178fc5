package allocator

import (
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// An Allocator and an Inventory may be used by several goroutines: with the race detector this
// test tells.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	a := nodesWith(t, 1, 2, 3, 4, 2, 1)
	claims := []*resourceapi.ResourceClaim{claim("c", req("r", 2, selecting(`device.driver != ""`)))}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				n := 0
				for _, err := range a.Nodes(t.Context(), claims) {
					if err != nil {
						t.Error(err)
					}
					n++
				}
				if n != 4 {
					t.Errorf("want 4 nodes, got %d", n)
				}
				if r, err := a.Allocate(t.Context(), node("n0"), claims); err != nil || r.Unfit == nil {
					t.Errorf("want unfit, got %v, %v", r.Unfit, err)
				}
				if u, err := a.Explain(t.Context(), claims); u != nil || err != nil {
					t.Errorf("want nothing, got %v, %v", u, err)
				}
				if _, err := a.inv.Candidates(classA, nil, func(string, string, *resourceapi.Device, []string) bool { return true }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
