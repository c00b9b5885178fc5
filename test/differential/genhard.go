package differential

import (
	"fmt"
	"math/rand/v2"

	resourceapi "k8s.io/api/resource/v1"
)

// GenerateHard returns a case of another kind: few features, but more claims that compete
// for more, nearly equal devices, so that searches are long and shortcuts matter.
func GenerateHard(seed uint64) *Case {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 0x68617264)), c: NewCase(AllowAll()), drivers: []string{Driver}}
	g.c.Seed = seed
	g.c.AddClass("any")
	n := 4 + g.IntN(7)
	shape := g.weighted(30, 30, 25, 15)
	var sets []resourceapi.CounterSet
	if shape == 1 {
		for i := range 1 + g.IntN(3) {
			sets = append(sets, Set(fmt.Sprintf("set%d", i), "slices", int64(3+g.IntN(5))))
		}
	}
	devices := numbered(n, func(i int, d *resourceapi.Device) { g.hardDevice(i, d, shape, sets) })
	cut := g.IntN(n)
	if len(sets) > 0 || cut == 0 {
		g.c.AddPool("n0", "p", devices...)
		if len(sets) > 0 {
			g.c.AddCounters("n0", "p", sets...)
		}
	} else {
		g.c.AddPool("n0", "p", devices[:cut]...).AddPool("", "q", devices[cut:]...)
	}
	if g.p(30) {
		g.c.Hold("p", "d00", nil)
	}
	for range 1 + g.weighted(3, 4, 3, 2) {
		g.hardClaim(n, shape)
	}
	return g.c
}

func (g *gen) hardDevice(i int, d *resourceapi.Device, shape int, sets []resourceapi.CounterSet) {
	*d = Dev(d.Name, "number", i, "numa", g.IntN(2), "rail", g.IntN(4), "model", pick(g, "A", "A", "A", "B"))
	if g.p(20) {
		d.Attributes["links"] = resourceapi.DeviceAttribute{IntValues: pick(g, []int64{0}, []int64{0, 1}, []int64{1, 2}, []int64{2})}
	}
	switch shape {
	case 1:
		for _, set := range sets {
			if g.p(60) {
				*d = Consuming(*d, set.Name, "slices", int64(1+g.weighted(4, 3, 1)))
				if g.p(15) {
					d.ConsumesCounters[len(d.ConsumesCounters)-1].CompatibilityGroups = pick(g, []string{"x"}, []string{"y"}, []string{"x", "y"})
				}
			}
		}
	case 2:
		if !g.p(15) {
			*d = Shared(*d, "memory", int64(4+g.IntN(3)))
		}
		if g.p(30) && d.Capacity != nil {
			*d = withPolicy(*d, &resourceapi.CapacityRequestPolicy{ValidValues: nil})
		}
	case 3:
		if g.p(20) {
			d.Taints = []resourceapi.DeviceTaint{{Key: "t", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		if g.p(20) {
			d.BindsToNode = ptr(true)
		}
	}
}

func withPolicy(d resourceapi.Device, policy *resourceapi.CapacityRequestPolicy) resourceapi.Device {
	capacity := d.Capacity["memory"]
	capacity.RequestPolicy = policy
	d.Capacity["memory"] = capacity
	return d
}

func (g *gen) hardClaim(devices, shape int) {
	var requests []resourceapi.DeviceRequest
	var names []string
	for i := range 1 + g.weighted(5, 3, 2) {
		name := fmt.Sprintf("r%d", i)
		r := g.hardRequest(name, devices, shape)
		if g.p(20) {
			others := []resourceapi.DeviceRequest{r}
			for range 1 + g.IntN(2) {
				others = append(others, g.hardRequest(name, devices, shape))
			}
			r = FirstOf(name, others...)
		} else if g.p(6) {
			r.Exactly.AdminAccess = ptr(true)
		}
		requests, names = append(requests, r), append(names, name)
	}
	g.c.AddClaim(requests...)
	for range g.weighted(45, 40, 15) {
		attribute := Driver + "/" + pick(g, "numa", "numa", "rail", "rail", "model", "number", "links")
		var scope []string
		if g.p(50) {
			scope = g.subset(names)
		}
		if g.p(55) {
			g.c.Match(attribute, scope...)
		} else {
			g.c.Distinct(attribute, scope...)
		}
	}
}

func (g *gen) hardRequest(name string, devices, shape int) resourceapi.DeviceRequest {
	var expressions []string
	attribute := func(format string, args ...any) string {
		return fmt.Sprintf("device.attributes[%q].", Driver) + fmt.Sprintf(format, args...)
	}
	switch g.weighted(50, 15, 15, 10, 10) {
	case 1:
		expressions = []string{attribute("numa == %d", g.IntN(2))}
	case 2:
		expressions = []string{attribute("number < %d", 1+g.IntN(devices))}
	case 3:
		expressions = []string{attribute("model == 'A'")}
	case 4:
		expressions = []string{attribute("rail != %d", g.IntN(4))}
	}
	count := int64(1 + g.weighted(60, 20, 12, 8))
	if g.p(5) {
		count = 0
	}
	r := Want(name, count, expressions...)
	if shape == 2 && g.p(80) {
		r.Exactly.Capacity = WantCapacity("", "memory", fmt.Sprint(1+g.IntN(4))).Exactly.Capacity
	}
	if shape == 3 && g.p(30) {
		r.Exactly.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	}
	return r
}
