package differential

import (
	"fmt"
	"math/rand/v2"

	resourceapi "k8s.io/api/resource/v1"
)

// GenerateGenerations returns a case in which two nodes see different, complete generations of one
// pool with counters: what is computed for the one must not be used for the other.
func GenerateGenerations(seed uint64) *Case {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 0x67656e)), c: NewCase(AllowAll()).AddNode("n1"), drivers: []string{Driver}}
	g.c.Seed = seed
	groups := g.p(30)
	for _, node := range []string{"n0", "n1"} {
		generation := int64(1 + g.IntN(2))
		devices := numbered(2+g.IntN(3), func(_ int, d *resourceapi.Device) {
			*d = Consuming(*d, "set", "slices", int64(1+g.IntN(2)))
			if groups && g.p(70) {
				d.ConsumesCounters[0].CompatibilityGroups = pick(g, []string{"x"}, []string{"y"}, []string{"x", "y"})
			}
		})
		s, k := NewSlice(Driver, node, "p", devices...), NewSlice(Driver, node, "p")
		k.Name, k.Spec.SharedCounters = "counters-"+node, []resourceapi.CounterSet{Set("set", "slices", int64(1+g.IntN(6)))}
		for _, x := range []*resourceapi.ResourceSlice{k, s} {
			x.Spec.Pool.Generation, x.Spec.Pool.ResourceSliceCount = generation, 2
			g.c.Slices = append(g.c.Slices, x)
		}
	}
	if g.c.Slices[0].Spec.Pool.Generation == g.c.Slices[2].Spec.Pool.Generation {
		for _, x := range g.c.Slices[2:] {
			x.Spec.Pool.Name = "q"
		}
	}
	if g.p(40) {
		g.c.Hold("p", fmt.Sprintf("d0%d", g.IntN(3)), nil)
	}
	for range 1 + g.IntN(2) {
		g.c.AddClaim(Want("r", int64(1+g.IntN(3))))
	}
	return g.c
}
