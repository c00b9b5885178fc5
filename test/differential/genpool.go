package differential

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// placement says how the slices of a pool select their nodes.
type placement int

const (
	nodeLocal placement = iota
	allNodes
	bySelector
	perDevice
	spread // each slice on a node of its own
)

// poolGen draws one pool.
type poolGen struct {
	*gen
	driver, name string
	place        placement
	node         string
	sets         []resourceapi.CounterSet
	groups       bool
	shareable    bool
	skip         []resourceapi.SkipNodeOperation
	devices      int
}

func (g *gen) pool(i int) {
	p := &poolGen{gen: g, driver: pick(g, g.drivers...), name: fmt.Sprintf("p%d", i), node: pick(g, g.c.Nodes...).Name}
	p.place = placement(g.weighted(40, 24, 12, 12, 12))
	if g.p(35) {
		p.counterSets()
	}
	p.groups = len(p.sets) > 0 && g.p(20)
	p.shareable = g.p(30)
	if g.p(8) {
		p.skip = []resourceapi.SkipNodeOperation{pick(g, resourceapi.SkipNodeOperationNodePrepareResources, resourceapi.SkipNodeOperationAll)}
	}
	generation := int64(1 + g.IntN(2))
	if p.place == spread && len(p.sets) > 0 && g.p(30) {
		p.generations(generation)
		return
	}
	made := p.slices(generation)
	if g.p(6) { // another generation of the same pool
		p.devices = 0
		p.slices(generation + int64(pick(g, -1, 1)))
	}
	if g.p(4) { // a driver restarts: one slice not published yet
		for _, s := range made {
			s.Spec.Pool.ResourceSliceCount++
		}
	}
	if g.wild && g.p(8) {
		made[g.IntN(len(made))].Spec.Pool.ResourceSliceCount++
	}
}

// slices adds the slices of one generation.
func (p *poolGen) slices(generation int64) []*resourceapi.ResourceSlice {
	n := 1 + p.weighted(4, 3, 2)
	if p.place == spread {
		n = len(p.c.Nodes)
	}
	var made []*resourceapi.ResourceSlice
	for i := range n {
		s := p.slice(generation, fmt.Sprintf("s%d", i), i)
		for range 1 + p.weighted(2, 3, 3, 2) {
			if p.budget == 0 {
				break
			}
			p.budget--
			s.Spec.Devices = append(s.Spec.Devices, p.device())
		}
		made = append(made, s)
	}
	if len(p.sets) > 0 {
		made = append(made, p.counterSlices(generation, n)...)
	}
	for _, s := range made {
		s.Spec.Pool.ResourceSliceCount = int64(len(made))
	}
	p.c.Slices = append(p.c.Slices, made...)
	return made
}

// generations adds a complete generation of its own for each node, with other counters, so
// that the nodes see different ones.
func (p *poolGen) generations(first int64) {
	p.place = nodeLocal
	for i, node := range p.c.Nodes {
		p.node, p.sets, p.devices = node.Name, nil, 0
		p.counterSets()
		for _, s := range p.slices(first + int64(i)) {
			s.Name += "-" + node.Name
		}
	}
}

func (p *poolGen) counterSlices(generation int64, index int) []*resourceapi.ResourceSlice {
	if p.wild && p.p(15) { // beside devices, as in the first versions of the API
		last := p.c.Slices
		if len(last) > 0 {
			s := p.slice(generation, "beside", index)
			s.Spec.SharedCounters = p.sets
			s.Spec.Devices = append(s.Spec.Devices, p.device())
			return []*resourceapi.ResourceSlice{s}
		}
	}
	if len(p.sets) > 1 && p.p(30) {
		a, b := p.slice(generation, "c0", index), p.slice(generation, "c1", index)
		a.Spec.SharedCounters, b.Spec.SharedCounters = p.sets[:1], p.sets[1:]
		return []*resourceapi.ResourceSlice{a, b}
	}
	s := p.slice(generation, pick(p.gen, "c0", "zc"), index)
	s.Spec.SharedCounters = p.sets
	return []*resourceapi.ResourceSlice{s}
}

func (p *poolGen) slice(generation int64, name string, index int) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-g%d-%s", p.name, generation, name)},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:             p.driver,
			Pool:               resourceapi.ResourcePool{Name: p.name, Generation: generation},
			SkipNodeOperations: p.skip,
		},
	}
	switch p.place {
	case nodeLocal:
		s.Spec.NodeName = ptr(p.node)
	case allNodes:
		s.Spec.AllNodes = ptr(true)
	case bySelector:
		s.Spec.NodeSelector = p.nodeSelector()
	case perDevice:
		s.Spec.PerDeviceNodeSelection = ptr(true)
	case spread:
		s.Spec.NodeName = ptr(p.c.Nodes[index%len(p.c.Nodes)].Name)
	}
	if p.wild && p.p(3) {
		s.Spec.NodeName, s.Spec.AllNodes, s.Spec.NodeSelector, s.Spec.PerDeviceNodeSelection = nil, nil, nil, nil
	}
	return s
}

func (p *poolGen) counterSets() {
	for i := range 1 + p.weighted(5, 4, 1) {
		set := resourceapi.CounterSet{Name: fmt.Sprintf("set%d", i), Counters: map[string]resourceapi.Counter{}}
		for j := range 1 + p.weighted(5, 3) {
			v := int64(2 + p.IntN(7))
			if p.wild && p.p(5) {
				v = -1
			}
			set.Counters[fmt.Sprintf("k%d", j)] = resourceapi.Counter{Value: *resource.NewQuantity(v, resource.DecimalSI)}
		}
		p.sets = append(p.sets, set)
	}
	if p.p(2) {
		p.sets = append(p.sets, p.sets[0])
	}
}

// device draws the next device of the pool.
func (p *poolGen) device() resourceapi.Device {
	d := resourceapi.Device{Name: fmt.Sprintf("d%d", p.devices)}
	if p.devices > 0 && p.p(1) {
		d.Name = fmt.Sprintf("d%d", p.devices-1) // duplicate
	}
	p.devices++
	d.Attributes = p.attributes()
	if p.p(40) || p.shareable {
		d.Capacity = p.capacities()
	}
	if p.shareable && p.p(75) {
		d.AllowMultipleAllocations = ptr(true)
	}
	for i := range p.sets {
		if p.p(60) {
			d.ConsumesCounters = append(d.ConsumesCounters, p.consumption(&p.sets[i]))
		}
	}
	if len(d.ConsumesCounters) > 1 && d.ConsumesCounters[0].CounterSet == d.ConsumesCounters[len(d.ConsumesCounters)-1].CounterSet {
		d.ConsumesCounters = d.ConsumesCounters[:len(d.ConsumesCounters)-1]
	}
	p.taintsAndConditions(&d)
	if p.place == perDevice {
		switch p.weighted(50, 25, 25) {
		case 0:
			d.NodeName = ptr(pick(p.gen, p.c.Nodes...).Name)
		case 1:
			d.AllNodes = ptr(true)
		case 2:
			d.NodeSelector = p.nodeSelector()
		}
	}
	return d
}

func (p *poolGen) consumption(set *resourceapi.CounterSet) resourceapi.DeviceCounterConsumption {
	c := resourceapi.DeviceCounterConsumption{CounterSet: set.Name, Counters: map[string]resourceapi.Counter{}}
	for j := range 2 {
		name := fmt.Sprintf("k%d", j)
		if _, ok := set.Counters[name]; !ok || j > 0 && p.p(30) {
			continue
		}
		v := int64(1 + p.weighted(4, 3, 2, 1))
		if p.wild && p.p(5) {
			v = -1
		}
		c.Counters[name] = resourceapi.Counter{Value: *resource.NewQuantity(v, resource.DecimalSI)}
	}
	if p.p(1) {
		c.CounterSet = "nowhere"
	} else if p.p(1) {
		c.Counters["nothing"] = resourceapi.Counter{Value: *resource.NewQuantity(1, resource.DecimalSI)}
	}
	if p.groups {
		switch p.weighted(3, 3, 2, 1) {
		case 0:
			c.CompatibilityGroups = []string{"mig"}
		case 1:
			c.CompatibilityGroups = []string{"vgpu"}
		case 2:
			c.CompatibilityGroups = []string{"mig", "vgpu"}
		}
	}
	return c
}

func (p *poolGen) taintsAndConditions(d *resourceapi.Device) {
	if p.p(12) {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{
			Key: pick(p.gen, "unhealthy", "reserved"), Value: pick(p.gen, "", "yes"),
			Effect: pick(p.gen, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffect("Future")),
		})
	}
	if p.p(7) {
		d.BindingConditions = []string{"example.com/ready"}
		d.BindingFailureConditions = []string{"example.com/broken"}
		if p.p(30) {
			d.BindsToNode = ptr(true)
		}
	}
}
