package allocator

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
)

// flight is what the search has allocated so far, with the trail to take it back.
type flight struct {
	placed [][]placed       // per claim, in result order
	chosen [][]*alternative // per claim and request
	// owner is, by position of the device, the number+1 of the claim that has it exclusively,
	// admin that of the last claim that has it with adminAccess.
	owner, admin []int32
	shares       map[int]*share // by position
	pools        []poolFlight   // by pool of the view
	trail        []undo
}

// placed is one allocated device.
type placed struct {
	alternative *alternative
	at          place
}

// share is what this call allocates of a device that allows multiple allocations.
type share struct {
	shares   int // with and without adminAccess
	charging int // those without: the first one pays the counters
	used     []amount
}

// poolFlight is what is left of a pool.
type poolFlight struct {
	loaded, counted bool
	used            *poolUse
	// counters and groups begin as what the devices in use leave, once they are counted.
	counters []amount
	groups   []groupState
}

type undoKind uint8

const (
	undoOwner undoKind = iota
	undoAdmin
	undoShare
	undoCounters
	undoGroup
	undoConstraint
	undoPlaced
)

// undo is one change; which fields matter depends on the kind.
type undo struct {
	kind       undoKind
	admin      bool
	number     int // position, pool or claim
	set        int
	before     int32
	uses       []use
	group      groupState
	amounts    []amount
	constraint *constraint
	common     value
}

// init begins with nothing allocated.
func (f *flight) init(v *nodeView, claims []*resourceapi.ResourceClaim) {
	f.placed = resized(f.placed, len(claims))
	f.chosen = resized(f.chosen, len(claims))
	for c, claim := range claims {
		f.placed[c] = f.placed[c][:0]
		f.chosen[c] = cleared(f.chosen[c], len(claim.Spec.Devices.Requests))
	}
	f.owner = cleared(f.owner, v.devices)
	f.admin = f.admin[:0]
	clear(f.shares)
	f.pools = resized(f.pools, len(v.pools))
	for i := range f.pools {
		f.pools[i] = poolFlight{counters: f.pools[i].counters[:0], groups: f.pools[i].groups[:0]}
	}
	f.trail = f.trail[:0]
}

func (f *flight) mark() int { return len(f.trail) }

// undo takes back all changes since the mark.
func (f *flight) undo(mark int) {
	for i := len(f.trail) - 1; i >= mark; i-- {
		u := &f.trail[i]
		switch u.kind {
		case undoOwner:
			f.owner[u.number] = u.before
		case undoAdmin:
			f.admin[u.number] = u.before
		case undoShare:
			f.unshare(u)
		case undoCounters:
			for j := range u.uses {
				for _, c := range u.uses[j].amounts {
					counters := f.pools[u.number].counters
					counters[c.counter] = counters[c.counter].add(c.amount)
				}
			}
		case undoGroup:
			f.pools[u.number].groups[u.set] = u.group
		case undoConstraint:
			u.constraint.leave(u.common)
		case undoPlaced:
			f.placed[u.number] = f.placed[u.number][:len(f.placed[u.number])-1]
		}
		*u = undo{}
	}
	f.trail = f.trail[:mark]
}

func (f *flight) unshare(u *undo) {
	sh := f.shares[u.number]
	sh.shares--
	if !u.admin {
		sh.charging--
	}
	for i := range u.amounts {
		sh.used[i] = sh.used[i].sub(u.amounts[i])
	}
}

// leave takes back the last device of the constraint.
func (c *constraint) leave(common value) {
	c.devices--
	c.common = common
	if c.distinct {
		c.seen = c.seen[:len(c.seen)-1]
	}
}

// use returns what is in use of the slice's pool.
func (s *search) use(vs *viewSlice) *poolUse {
	p := &s.pools[vs.poolNumber]
	if !p.loaded {
		p.loaded, p.used = true, s.state.pool(vs.pool.key)
	}
	return p.used
}

// take allocates the device at the place for the alternative if it is free and fits. If not,
// or after an error, the caller undoes what was done until then.
func (s *search) take(ctx context.Context, a *alternative, at place) (bool, error) {
	vs := &s.view.slices[at.slice]
	d := &vs.devices[at.device]
	sharing := d.shareable && s.o.Features.ConsumableCapacity
	if s.inUse(a, vs, d, sharing) {
		return false, nil
	}
	if ok, err := s.usable(ctx, a, vs, d); !ok || err != nil {
		return false, err
	}
	if !s.hasCapacity(a, vs, d) || !s.takeCounters(a, vs, d, sharing) {
		return false, nil
	}
	if ok, err := s.join(ctx, a, d); !ok || err != nil {
		return false, err
	}
	s.own(a, vs, d, sharing)
	s.placed[a.claim] = append(s.placed[a.claim], placed{alternative: a, at: at})
	s.trail = append(s.trail, undo{kind: undoPlaced, number: a.claim})
	return true, nil
}

// inUse tells whether the device is taken. With adminAccess only the same claim is in the way;
// without it, what other claims have with adminAccess is not.
func (s *search) inUse(a *alternative, vs *viewSlice, d *device, sharing bool) bool {
	pos, self := vs.first+d.index, int32(a.claim)+1
	sameAdmin := len(s.admin) > 0 && s.admin[pos] == self
	if a.admin {
		return s.owner[pos] == self || sameAdmin
	}
	if s.owner[pos] != 0 || sameAdmin {
		return true
	}
	u := s.use(vs).of(d.name)
	return u != nil && (u.exclusive > 0 || !sharing)
}

// hasCapacity tells whether the capacity that is left suffices. adminAccess takes none of it.
func (s *search) hasCapacity(a *alternative, vs *viewSlice, d *device) bool {
	n := a.need(vs.first + d.index)
	if n == nil || a.admin {
		return true
	}
	sh := s.shares[vs.first+d.index]
	u := s.use(vs).of(d.name)
	for i := range n.amounts {
		sum := n.amounts[i]
		if u != nil {
			sum = sum.add(u.capacity[d.capacities[i].name])
		}
		if sh != nil {
			sum = sum.add(sh.used[i])
		}
		if sum.cmp(d.capacities[i].value) > 0 {
			return false
		}
	}
	return true
}

// takeCounters takes what the device consumes of the counters if that is left, and lets it join
// the compatibility groups. Later shares of a device consume nothing, nor does adminAccess.
func (s *search) takeCounters(a *alternative, vs *viewSlice, d *device, sharing bool) bool {
	if a.admin || !d.consumes || vs.pool.layout == nil {
		return true
	}
	if sharing {
		sh, u := s.shares[vs.first+d.index], s.use(vs).of(d.name)
		if sh != nil && sh.charging > 0 || u != nil && u.shares > 0 {
			return true
		}
	}
	p := s.countersOf(vs)
	uses := vs.pool.layout.of(d)
	for i := range uses {
		if s.o.Features.CompatibilityGroups && !p.groups[uses[i].set].admits(uses[i].groups) {
			return false
		}
	}
	for i := range uses {
		for _, c := range uses[i].amounts {
			if p.counters[c.counter].cmp(c.amount) < 0 {
				return false
			}
		}
	}
	s.consume(vs.poolNumber, uses)
	return p.within(uses)
}

// consume subtracts the uses and lets the device join the groups.
func (s *search) consume(pool int, uses []use) {
	p := &s.pools[pool]
	s.trail = append(s.trail, undo{kind: undoCounters, number: pool, uses: uses})
	for i := range uses {
		for _, c := range uses[i].amounts {
			p.counters[c.counter] = p.counters[c.counter].sub(c.amount)
		}
		set := uses[i].set
		s.trail = append(s.trail, undo{kind: undoGroup, number: pool, set: set, group: p.groups[set]})
		p.groups[set] = p.groups[set].add(uses[i].groups)
	}
}

// within tells whether none of the counters is below zero. This matters for a device that
// names a counter set twice.
func (p *poolFlight) within(uses []use) bool {
	for i := range uses {
		for _, c := range uses[i].amounts {
			if p.counters[c.counter].sign() < 0 {
				return false
			}
		}
	}
	return true
}

// countersOf returns the pool with its counters loaded.
func (s *search) countersOf(vs *viewSlice) *poolFlight {
	p := &s.pools[vs.poolNumber]
	if !p.counted {
		left := s.allocator.available(vs.pool, s.use(vs))
		p.counted = true
		p.counters = append(p.counters, left.counters...)
		p.groups = append(p.groups, left.groups...)
	}
	return p
}

// join lets the device join the constraints of the claim that are about the alternative.
func (s *search) join(ctx context.Context, a *alternative, d *device) (bool, error) {
	for _, c := range a.constraints {
		v, found, err := s.attribute(ctx, c, a, d)
		if !found || err != nil {
			return false, err
		}
		common, ok := c.admits(v, s.o.Features.ListTypeAttributes)
		if !ok {
			return false, nil
		}
		s.trail = append(s.trail, undo{kind: undoConstraint, constraint: c, common: c.common})
		c.devices++
		c.common = common
		if c.distinct {
			c.seen = append(c.seen, v)
		}
	}
	return true, nil
}

// own marks the device as taken.
func (s *search) own(a *alternative, vs *viewSlice, d *device, sharing bool) {
	pos := vs.first + d.index
	switch {
	case sharing:
		s.addShare(a, pos, len(d.capacities))
	case a.admin:
		if len(s.admin) == 0 {
			s.admin = cleared(s.admin, s.view.devices)
		}
		s.trail = append(s.trail, undo{kind: undoAdmin, number: pos, before: s.admin[pos]})
		s.admin[pos] = int32(a.claim) + 1
	default:
		s.trail = append(s.trail, undo{kind: undoOwner, number: pos, before: s.owner[pos]})
		s.owner[pos] = int32(a.claim) + 1
	}
}

func (s *search) addShare(a *alternative, pos, capacities int) {
	if s.shares == nil {
		s.shares = map[int]*share{}
	}
	sh := s.shares[pos]
	if sh == nil {
		sh = &share{used: make([]amount, capacities)}
		s.shares[pos] = sh
	}
	u := undo{kind: undoShare, number: pos, admin: a.admin}
	if n := a.need(pos); n != nil && !a.admin {
		u.amounts = n.amounts
	}
	sh.shares++
	if !a.admin {
		sh.charging++
	}
	for i := range u.amounts {
		sh.used[i] = sh.used[i].add(u.amounts[i])
	}
	s.trail = append(s.trail, u)
}
