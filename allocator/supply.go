package allocator

// flows tells whether the devices suffice for all demands, each device counted once, and not
// more devices per counter set than fit at best. adminAccess takes nothing.
func (d *deep) flows(l *level, demands []demand) bool {
	n := &d.flow
	firstKind := int32(2 + len(demands))
	n.reset(int(firstKind) + 2*len(l.kinds))
	need := 0
	used := make([]bool, len(l.kinds))
	for i, x := range demands {
		if x.alternatives[0].admin {
			continue // canGet has counted
		}
		need += x.need
		n.add(source, int32(2+i), x.need)
		for j, most := range x.edges {
			if most > 0 {
				n.add(int32(2+i), firstKind+int32(j), most)
				used[j] = true
			}
		}
	}
	groups := map[int32]int32{} // state -> node
	for j := range l.kinds {
		if !used[j] {
			continue
		}
		k := &l.kinds[j]
		most := k.count * d.uses(demands, k, need)
		g := &d.groups[d.groupOf[k.sample]]
		if !g.counted || len(g.members) == 1 {
			n.add(firstKind+int32(j), sink, most)
			continue
		}
		node, found := groups[k.group]
		if !found {
			node = firstKind + int32(len(l.kinds)+len(groups))
			groups[k.group] = node
			n.add(node, sink, l.alike(k.group)*d.atOnce(g, need))
		}
		n.add(firstKind+int32(j), node, most)
	}
	d.steps += int64(len(n.edges) / 16)
	return n.max() == need
}

// alike returns how many groups are in the state.
func (l *level) alike(state int32) (n int) {
	for _, s := range l.groups {
		if s == state {
			n++
		}
	}
	return n
}

// uses returns how many of the demands one device of the kind can serve at best, at most need.
func (d *deep) uses(demands []demand, k *levelKind, need int) int {
	vs, dev := d.at(int(k.sample))
	if !dev.shareable || !d.o.Features.ConsumableCapacity {
		return 1
	}
	least := make([]amount, len(dev.capacities))
	known := false
	for _, x := range demands {
		for _, a := range x.alternatives {
			n := a.need(int(k.sample))
			if a.admin || d.codes[a.number][k.sample] == codeNo {
				continue
			}
			if n == nil {
				return need
			}
			for i := range least {
				if !known || n.amounts[i].cmp(least[i]) < 0 {
					least[i] = n.amounts[i]
				}
			}
			known = true
		}
	}
	if !known {
		return need
	}
	return d.repetitions(vs, dev, least, need)
}

// repetitions returns how often the amounts fit into what is left of the device, at most need.
func (d *deep) repetitions(vs *viewSlice, dev *device, least []amount, need int) int {
	sh, u := d.shares[vs.first+dev.index], d.use(vs).of(dev.name)
	for i := range least {
		left := dev.capacities[i].value
		if u != nil {
			left = left.sub(u.capacity[dev.capacities[i].name])
		}
		if sh != nil {
			left = left.sub(sh.used[i])
		}
		need = min(need, fitting(left, least[i], need))
	}
	return need
}

// fitting returns how often part fits into left, at most limit.
func fitting(left, part amount, limit int) int {
	n := 0
	for n < limit && left.cmp(part) >= 0 {
		left = left.sub(part)
		n++
	}
	return n
}

// atOnce returns how many members of the group can be taken together at best, going by each
// counter alone, at most need.
func (d *deep) atOnce(g *group, need int) int {
	least := map[int]amount{} // counter -> least consumption of a member
	seen := map[int]int{}     // counter -> members that consume it
	free := 0
	var counters []amount
	for _, pos := range g.members {
		vs, dev := d.at(int(pos))
		if d.owner[pos] != 0 {
			continue
		}
		free++
		if !d.consuming(vs, dev) || dev.shareable {
			continue // may cost nothing
		}
		counters = d.countersOf(vs).counters
		for _, u := range vs.pool.layout.of(dev) {
			for _, c := range u.amounts {
				if x, found := least[c.counter]; !found || c.amount.cmp(x) < 0 {
					least[c.counter] = c.amount
				}
				seen[c.counter]++
			}
		}
	}
	for c, n := range seen {
		if n == free {
			need = min(need, fitting(counters[c], least[c], need))
		}
	}
	return need
}
