package allocator

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// demand is what one request still has to get.
type demand struct {
	alternatives []*alternative
	need         int
	openOnly     bool  // only open devices: the request is in progress
	edges        []int // by kind of the level: how many of its devices it can get
}

// promising tells whether what is left to do passes all bounds: false only if it cannot
// succeed. The point of the search is before the k-th device of the alternative, or before the
// request if the alternative is nil.
func (d *deep) promising(l *level, claim, request int, a *alternative, k int) bool {
	demands, ok := d.demands(l, claim, request, a, k)
	if !ok {
		return false
	}
	for c := claim; c < len(d.claims); c++ {
		own := slices.DeleteFunc(slices.Clone(demands), func(x demand) bool { return x.alternatives[0].claim != c })
		for _, con := range d.constraints[c] {
			if con.distinct && !d.distinctBound(l, con, own) || !con.distinct && !d.matchBound(l, con, own) {
				return false
			}
		}
	}
	return d.sumsSuffice(l, demands) && d.flows(l, demands)
}

// demands collects what is left to do, with what each request can get. ok is false if a
// request can get nothing that suffices, or a claim needs more than 32 results.
func (d *deep) demands(l *level, claim, request int, a *alternative, k int) (list []demand, ok bool) {
	for c := claim; c < len(d.claims); c++ {
		results := len(d.placed[c])
		for r, req := range d.requests[c] {
			var next demand
			switch {
			case c == claim && r < request, c == claim && r == request && a != nil && a.wants() == int64(k):
				continue
			case c == claim && r == request && a != nil:
				next = demand{alternatives: []*alternative{a}, need: int(a.wants()) - k, openOnly: true}
			default:
				next = demand{alternatives: slices.Clone(req.alternatives), need: resourceapi.AllocationResultsMaxSize + 1}
			}
			if !d.canGet(l, &next) {
				return nil, false
			}
			results += next.need
			list = append(list, next)
		}
		if results > resourceapi.AllocationResultsMaxSize {
			return nil, false
		}
	}
	return list, true
}

// canGet fills in the edges of the demand and drops the alternatives that cannot get enough.
func (d *deep) canGet(l *level, x *demand) bool {
	x.edges = make([]int, len(l.kinds))
	whole := !x.openOnly
	x.alternatives = slices.DeleteFunc(x.alternatives, func(a *alternative) bool {
		wants := a.wants()
		if !whole {
			wants = int64(x.need)
		}
		if a.impossible.why != "" || wants == 0 || wants > resourceapi.AllocationResultsMaxSize {
			return true
		}
		total := int64(0)
		edges := make([]int, len(l.kinds))
		for i := range l.kinds {
			if n := &l.kinds[i]; (n.open || whole) && d.available(a, int(n.sample)) {
				edges[i] = n.count
				total += int64(n.count)
			}
		}
		if total < wants {
			return true
		}
		if whole {
			x.need = min(x.need, int(wants))
		}
		for i := range edges {
			x.edges[i] = max(x.edges[i], edges[i])
		}
		return false
	})
	d.steps += int64(len(l.kinds) / 8)
	return len(x.alternatives) > 0
}

// available tells whether the device could be taken for the alternative now, alone.
func (d *deep) available(a *alternative, pos int) bool {
	switch d.codes[a.number][pos] {
	case codeNo:
		return false
	case codeError:
		return true // the search has to reach it
	}
	vs, dev := d.at(pos)
	sharing := dev.shareable && d.o.Features.ConsumableCapacity
	if d.inUse(a, vs, dev, sharing) || !d.hasCapacity(a, vs, dev) || !d.countersFit(a, vs, dev, sharing) {
		return false
	}
	for _, c := range a.constraints {
		if c.devices > 0 && !d.fits(c, d.values[valueKey{c, a.number}][pos]) {
			return false
		}
	}
	return true
}

// fits tells whether a device whose attribute has the elements may join the constraint.
func (d *deep) fits(c *constraint, elements []int32) bool {
	if !c.distinct {
		return overlap(d.elements(c.common), elements)
	}
	for _, seen := range c.seen {
		if overlap(d.elements(seen), elements) {
			return false
		}
	}
	return true
}

func overlap(a, b []int32) bool {
	return slices.ContainsFunc(a, func(x int32) bool { return slices.Contains(b, x) })
}

// countersFit tells whether the counters that are left suffice for the device.
func (d *deep) countersFit(a *alternative, vs *viewSlice, dev *device, sharing bool) bool {
	mark := d.mark()
	ok := d.takeCounters(a, vs, dev, sharing)
	d.undo(mark)
	return ok
}

// matchBound keeps only those devices for which some value of the attribute can serve all
// requests that are under the constraint. False: there is no such value.
func (d *deep) matchBound(l *level, c *constraint, own []demand) bool {
	under := d.under(c, own)
	if c.devices > 0 || len(under) == 0 {
		return true // available() looks at what the devices have in common
	}
	domain := map[int32]bool{}
	for i := range l.kinds {
		if under[0].edges[i] == 0 {
			continue
		}
		elements, known := d.elementsOf(c, under[0], &l.kinds[i])
		if !known {
			return true // a device on which the attribute fails
		}
		for _, e := range elements {
			if _, seen := domain[e]; !seen {
				domain[e] = d.valueServes(l, c, own, e)
			}
		}
	}
	some := false
	for _, serves := range domain {
		some = some || serves
	}
	if !some {
		return false
	}
	for _, x := range under {
		for i := range l.kinds {
			elements, known := d.elementsOf(c, x, &l.kinds[i])
			if x.edges[i] > 0 && known && !slices.ContainsFunc(elements, func(e int32) bool { return domain[e] }) {
				x.edges[i] = 0
			}
		}
	}
	return true
}

// under returns the demands whose alternatives are all under the constraint.
func (d *deep) under(c *constraint, own []demand) []demand {
	return slices.DeleteFunc(slices.Clone(own), func(x demand) bool {
		return slices.ContainsFunc(x.alternatives, func(a *alternative) bool { return !slices.Contains(a.constraints, c) })
	})
}

// elementsOf returns the elements of the attribute on the kind, over all alternatives; known is
// false if reading it is an error.
func (d *deep) elementsOf(c *constraint, x demand, k *levelKind) (elements []int32, known bool) {
	for _, a := range x.alternatives {
		switch d.codes[a.number][k.sample] {
		case codeError:
			return nil, false
		case codeYes:
			elements = append(elements, d.values[valueKey{c, a.number}][k.sample]...)
		}
	}
	return elements, true
}

// valueServes tells whether the claim's requests could be served if those under the constraint
// only took devices that have the element.
func (d *deep) valueServes(l *level, c *constraint, own []demand, element int32) bool {
	restricted := slices.Clone(own)
	for i := range restricted {
		x := &restricted[i]
		if len(d.under(c, restricted[i:i+1])) == 0 {
			continue
		}
		x.edges = slices.Clone(x.edges)
		total := 0
		for j := range l.kinds {
			elements, known := d.elementsOf(c, *x, &l.kinds[j])
			if known && !slices.Contains(elements, element) {
				x.edges[j] = 0
			}
			total += x.edges[j]
		}
		if total < x.need {
			return false
		}
	}
	return d.flows(l, restricted)
}

// distinctBound tells whether there are enough different values of the attribute.
func (d *deep) distinctBound(l *level, c *constraint, own []demand) bool {
	under := d.under(c, own)
	need := 0
	index := map[int32]int32{} // element -> node
	n := &d.flow
	n.reset(2 + len(under) + len(under)*len(l.kinds)) // each kind has one element per demand
	for i, x := range under {
		need += x.need
		n.add(source, int32(2+i), x.need)
		linked := map[int32]bool{}
		for j := range l.kinds {
			if x.edges[j] == 0 {
				continue
			}
			elements, known := d.elementsOf(c, x, &l.kinds[j])
			slices.Sort(elements)
			elements = slices.Compact(elements)
			if !known || len(elements) != 1 {
				return true // a list, or different values by alternative: no bound
			}
			e := elements[0]
			if _, found := index[e]; !found {
				index[e] = int32(2 + len(under) + len(index))
				n.add(index[e], sink, 1)
			}
			if !linked[e] {
				linked[e] = true
				n.add(int32(2+i), index[e], 1)
			}
		}
	}
	d.steps += int64(len(n.edges) / 16)
	return n.max() == need
}
