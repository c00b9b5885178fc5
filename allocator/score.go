package allocator

import "math"

// stranded is the score of the allocation: see Allocator.Choose.
func (s *search) stranded() float64 {
	const free = 0.001
	score := 0.0
	usable := map[*poolView][]bool{} // by counter: a free device can use what is left
	for i := range s.view.slices {
		vs := &s.view.slices[i]
		for j := range vs.devices {
			d := &vs.devices[j]
			left, wasted := s.leftOf(vs, d)
			score += wasted + free*left
			if left > 0 && vs.pool.layout != nil && d.consumes {
				s.markUsable(usable, vs, d)
			}
		}
	}
	for i, pv := range s.view.pools {
		if pv.layout == nil {
			continue
		}
		counters := s.pools[i].counters
		if !s.pools[i].counted {
			counters = s.allocator.available(pv, s.state.pool(pv.key)).counters
		}
		for c, left := range counters {
			share := part(left, pv.layout.totals[c])
			score += free * share
			if marks := usable[pv]; marks == nil || !marks[c] {
				score += share
			}
		}
	}
	return score
}

// leftOf returns which share of the device is free, and how much of that is less than the least
// share that the device's request policies allow.
func (s *search) leftOf(vs *viewSlice, d *device) (left, wasted float64) {
	pos, u := vs.first+d.index, s.use(vs).of(d.name)
	sharing := d.shareable && s.o.Features.ConsumableCapacity
	if s.owner[pos] != 0 || u != nil && (u.exclusive > 0 || !sharing) {
		return 0, 0
	}
	if !sharing || len(d.capacities) == 0 {
		return 1, 0
	}
	for i, c := range d.capacities {
		free := c.value
		if u != nil {
			free = free.sub(u.capacity[c.name])
		}
		if sh := s.shares[pos]; sh != nil {
			free = free.sub(sh.used[i])
		}
		left += part(free, c.value)
		if free.cmp(c.least()) < 0 {
			wasted += part(free, c.value)
		}
	}
	n := float64(len(d.capacities))
	return left / n, wasted / n
}

// least is the smallest share that the request policy allows, zero without a policy.
func (c *capacity) least() amount {
	p := c.api.RequestPolicy
	switch {
	case p == nil:
		return amount{}
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		return amountOf(*p.ValidRange.Min)
	case len(p.ValidValues) > 0:
		return amountOf(p.ValidValues[0])
	}
	return amount{}
}

// markUsable marks the counters that the device, which is free, could consume.
func (s *search) markUsable(usable map[*poolView][]bool, vs *viewSlice, d *device) {
	p := s.countersOf(vs)
	uses := vs.pool.layout.of(d)
	for _, u := range uses {
		for _, c := range u.amounts {
			if p.counters[c.counter].cmp(c.amount) < 0 {
				return
			}
		}
	}
	if usable[vs.pool] == nil {
		usable[vs.pool] = make([]bool, len(vs.pool.layout.totals))
	}
	for _, u := range uses {
		for _, c := range u.amounts {
			usable[vs.pool][c.counter] = true
		}
	}
}

// part returns x / y, between 0 and 1.
func part(x, y amount) float64 {
	if x.sign() <= 0 || y.sign() <= 0 {
		return 0
	}
	return min(x.float()/y.float(), 1)
}

func (a amount) float() float64 { return float64(a.hi)*math.Exp2(64) + float64(a.lo) }
