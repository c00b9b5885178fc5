package allocator

// dimensions number what is summed up over all devices: counters by their name, whatever set
// and pool they are of, and capacities of shared devices by theirs.
type dimensions struct {
	count    int
	counters [][]int32 // by pool of the view and counter
	names    map[string]int32
}

func (x *dimensions) number(name string) int32 {
	n, found := x.names[name]
	if !found {
		n = int32(x.count)
		x.names[name] = n
		x.count++
	}
	return n
}

// newDimensions looks at the counters and capacities that the groups use.
func (d *deep) newDimensions() {
	d.dims = dimensions{counters: make([][]int32, len(d.view.pools)), names: map[string]int32{}}
	for _, g := range d.groups {
		for _, pos := range g.members {
			vs, dev := d.at(int(pos))
			if d.consuming(vs, dev) && d.dims.counters[vs.poolNumber] == nil {
				list := make([]int32, 0, len(vs.pool.layout.counters))
				for _, name := range vs.pool.layout.counters {
					list = append(list, d.dims.number("n"+name))
				}
				d.dims.counters[vs.poolNumber] = list
			}
			if dev.shareable && d.o.Features.ConsumableCapacity {
				for i := range dev.capacities {
					d.dims.number("c" + string(dev.capacities[i].name))
				}
			}
		}
	}
}

// sumsSuffice tells whether, for each counter name and capacity name, the least that all demands
// can consume together is not more than what is left.
func (d *deep) sumsSuffice(l *level, demands []demand) bool {
	n := d.dims.count
	if n == 0 {
		return true
	}
	left, need := make([]amount, n), make([]amount, n)
	for p, list := range d.dims.counters {
		for c, dim := range list {
			if x := d.pools[p].counters[c]; x.sign() > 0 {
				left[dim] = left[dim].add(x)
			}
		}
	}
	d.addShares(left)
	least, one := make([]amount, n), make([]amount, n)
	for i := range demands {
		if demands[i].alternatives[0].admin {
			continue
		}
		d.leastOf(l, &demands[i], least, one)
		for dim := range least {
			for range demands[i].need {
				need[dim] = need[dim].add(least[dim])
			}
			if need[dim].cmp(left[dim]) > 0 {
				return false
			}
		}
	}
	return true
}

// addShares adds what is left of the capacities of shared devices.
func (d *deep) addShares(left []amount) {
	for _, g := range d.groups {
		for _, pos := range g.members {
			vs, dev := d.at(int(pos))
			if !dev.shareable || !d.o.Features.ConsumableCapacity {
				continue
			}
			sh, u := d.shares[int(pos)], d.use(vs).of(dev.name)
			for i := range dev.capacities {
				c := &dev.capacities[i]
				x := c.value
				if u != nil {
					x = x.sub(u.capacity[c.name])
				}
				if sh != nil {
					x = x.sub(sh.used[i])
				}
				if x.sign() > 0 {
					dim := d.dims.names["c"+string(c.name)]
					left[dim] = left[dim].add(x)
				}
			}
		}
	}
}

// leastOf computes the least that one device for the demand consumes of each dimension.
func (d *deep) leastOf(l *level, x *demand, least, one []amount) {
	first := true
	for i := range l.kinds {
		if x.edges[i] == 0 {
			continue
		}
		for _, a := range x.alternatives {
			if d.codes[a.number][l.kinds[i].sample] == codeNo {
				continue
			}
			clear(one)
			d.consumptionOf(a, int(l.kinds[i].sample), one)
			for dim := range one {
				if first || one[dim].cmp(least[dim]) < 0 {
					least[dim] = one[dim]
				}
			}
			first = false
		}
	}
	if first {
		clear(least)
	}
}

// consumptionOf adds what the device at the position consumes for the alternative at least: the
// counters of a shared device may be paid already.
func (d *deep) consumptionOf(a *alternative, pos int, sum []amount) {
	if d.codes[a.number][pos] == codeError {
		return
	}
	vs, dev := d.at(pos)
	if dev.shareable && d.o.Features.ConsumableCapacity {
		if n := a.need(pos); n != nil {
			for i := range n.amounts {
				dim := d.dims.names["c"+string(dev.capacities[i].name)]
				sum[dim] = sum[dim].add(n.amounts[i])
			}
		}
		return
	}
	if !d.consuming(vs, dev) {
		return
	}
	for _, u := range vs.pool.layout.of(dev) {
		for _, c := range u.amounts {
			dim := d.dims.counters[vs.poolNumber][c.counter]
			sum[dim] = sum[dim].add(c.amount)
		}
	}
}
