package differential

import (
	"fmt"
	"math/rand/v2"

	resourceapi "k8s.io/api/resource/v1"
)

// GenerateLimits returns a case about the largest number of results per claim: more devices
// than one claim can have, and requests and alternatives whose counts add up to about that.
func GenerateLimits(seed uint64) *Case {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 0x6c696d)), c: NewCase(AllowAll()), drivers: []string{Driver}}
	g.c.Seed = seed
	n := 30 + g.IntN(12)
	g.c.AddPool("n0", "p", numbered(n, func(i int, d *resourceapi.Device) { *d = Dev(d.Name, "number", i, "numa", i%2) })...)
	for range 1 + g.weighted(6, 3) {
		var requests []resourceapi.DeviceRequest
		for i := range 1 + g.weighted(2, 4, 3) {
			name := fmt.Sprintf("r%d", i)
			if !g.p(50) {
				requests = append(requests, g.limitRequest(name, n))
				continue
			}
			alternatives := []resourceapi.DeviceRequest{g.limitRequest("", n)}
			for range g.IntN(3) {
				alternatives = append(alternatives, g.limitRequest("", n))
			}
			requests = append(requests, FirstOf(name, alternatives...))
		}
		g.c.AddClaim(requests...)
		if g.p(15) {
			g.c.Match(Driver+"/numa", requests[0].Name)
		}
	}
	return g.c
}

func (g *gen) limitRequest(name string, devices int) resourceapi.DeviceRequest {
	var expressions []string
	if g.p(40) {
		expressions = append(expressions, fmt.Sprintf("device.attributes[%q].number %s %d", Driver, pick(g, "<", ">="), g.IntN(devices+1)))
	}
	return Want(name, pick[int64](g, 0, 1, 1, 1, 2, 3, 5, 8, 10, 12, 15, 16, 17, 20, 31), expressions...)
}
