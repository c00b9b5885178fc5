package differential

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"
)

// groupState is what the devices on one counter set have in common.
type groupState struct {
	members bool
	none    bool // all declare no groups
	common  map[string]bool
}

func (g groupState) admits(groups []string) bool {
	if !g.members {
		return true
	}
	if len(groups) == 0 || g.none {
		return len(groups) == 0 && g.none
	}
	for _, name := range groups {
		if g.common[name] {
			return true
		}
	}
	return false
}

func (g groupState) with(groups []string) groupState {
	if g.members && (g.none || len(groups) == 0) {
		return g
	}
	set := map[string]bool{}
	for _, name := range groups {
		if !g.members || g.common[name] {
			set[name] = true
		}
	}
	return groupState{members: true, none: len(groups) == 0, common: set}
}

// roomFor reports whether the capacity that is left suffices for the request.
func (e *enumeration) roomFor(a *alternative, d *deviceView) (bool, error) {
	if !e.c.Features.ConsumableCapacity {
		return true, nil
	}
	take, ok, err := amounts(a.capacity, d.dev, e.c.Features.FractionalCapacityRange)
	if !ok || err != nil {
		return false, err
	}
	if a.admin && !e.bugs.Has(P4Capacity) {
		return true, nil
	}
	for name, amount := range take {
		sum := amount.DeepCopy()
		for _, s := range e.use.shares[d.key] {
			sum.Add(s.consumed[name])
		}
		if q, ok := e.shared[d.key][name]; ok {
			sum.Add(q)
		}
		capacity := d.dev.Capacity[name].Value
		if sum.Cmp(capacity) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// place takes the device if nothing speaks against it; undo gives it back.
func (e *enumeration) place(a *alternative, d *deviceView) (bool, func(), error) {
	if e.taken(a, d) {
		return false, nil, nil
	}
	if !featuresAllow(e.c, e.node, d) {
		return false, nil, nil
	}
	charged := len(d.dev.ConsumesCounters) > 0 && (!a.admin || e.bugs.Has(P4))
	if _, again := e.shared[d.key]; multiple(e.c, d) && (again || len(e.use.shares[d.key]) > 0) {
		charged = false
	}
	if charged && (!e.groupsAdmit(d) || !e.countersSuffice(d)) {
		return false, nil, nil
	}
	if !a.tolerated(e.c, d) {
		return false, nil, nil
	}
	result := append(e.results[a.claim][:len(e.results[a.claim]):len(e.results[a.claim])], chosen{a, d})
	constraints := e.c.Claims[a.claim].Spec.Devices.Constraints
	for i := range constraints {
		ok, err := satisfied(e.c, &constraints[i], result)
		if err != nil {
			return false, nil, err
		}
		if !ok {
			return false, nil, e.unsatisfied(a)
		}
	}
	if ok, err := e.roomFor(a, d); !ok || err != nil {
		return false, nil, err
	}
	return true, e.take(a, d, charged, result), nil
}

// unsatisfied is the error that a violated constraint is for "All" requests, if any.
func (e *enumeration) unsatisfied(a *alternative) error {
	if a.mode != resourceapi.DeviceAllocationModeAll {
		return nil
	}
	if a.parent == "" && e.bugs.Has(P1) || a.parent != "" && e.bugs.Has(P2) {
		return errAllConstraint
	}
	return nil
}

// take changes the state and returns the way back.
func (e *enumeration) take(a *alternative, d *deviceView, charged bool, result []chosen) func() {
	before := e.results[a.claim]
	e.results[a.claim] = result
	pool := d.pool.driver + "/" + d.pool.pool
	oldUsed, oldRolling, oldShared := e.used[pool], e.rolling[pool], e.shared[d.key]
	if charged {
		e.used[pool] = withConsumption(oldUsed, d.dev, 1, e.bugs)
		e.rolling[pool] = e.withGroups(d)
	}
	several := multiple(e.c, d)
	if several {
		if !a.admin || e.bugs.Has(P4Capacity) {
			e.shared[d.key] = e.withShare(a, d)
		}
	} else {
		e.inflight[d.key] = append(e.inflight[d.key], chosen{a, d})
	}
	return func() {
		e.results[a.claim] = before
		e.used[pool], e.rolling[pool] = oldUsed, oldRolling
		if several {
			if oldShared == nil {
				delete(e.shared, d.key)
			} else {
				e.shared[d.key] = oldShared
			}
		} else {
			e.inflight[d.key] = e.inflight[d.key][:len(e.inflight[d.key])-1]
		}
	}
}

func (e *enumeration) withShare(a *alternative, d *deviceView) map[resourceapi.QualifiedName]quantity {
	take, _, _ := amounts(a.capacity, d.dev, e.c.Features.FractionalCapacityRange) // checked by roomFor
	out := map[resourceapi.QualifiedName]quantity{}
	for name, amount := range take {
		sum := amount.DeepCopy()
		if q, ok := e.shared[d.key][name]; ok {
			sum.Add(q)
		}
		out[name] = sum
	}
	return out
}

// withConsumption adds, or takes away, what the device consumes. A negative consumption
// is none, but for the bug.
func withConsumption(used map[string]map[string]quantity, d *resourceapi.Device, sign int, bugs Bugs) map[string]map[string]quantity {
	out := map[string]map[string]quantity{}
	for set, counters := range used {
		out[set] = counters
	}
	for _, c := range d.ConsumesCounters {
		counters := maps.Clone(out[c.CounterSet])
		if counters == nil {
			counters = map[string]quantity{}
		}
		for name, counter := range c.Counters {
			sum := counters[name].DeepCopy()
			if counter.Value.Sign() < 0 && !bugs.Has(I141216) {
				counter.Value = quantity{}
			}
			if sign < 0 {
				sum.Sub(counter.Value)
			} else {
				sum.Add(counter.Value)
			}
			counters[name] = sum
		}
		out[c.CounterSet] = counters
	}
	return out
}

func (e *enumeration) withGroups(d *deviceView) map[string]groupState {
	pool := d.pool.driver + "/" + d.pool.pool
	out := maps.Clone(e.rolling[pool])
	if out == nil {
		out = map[string]groupState{}
	}
	for _, c := range d.dev.ConsumesCounters {
		out[c.CounterSet] = e.groupsOn(d.pool, c.CounterSet).with(c.CompatibilityGroups)
	}
	return out
}

func (e *enumeration) groupsAdmit(d *deviceView) bool {
	if !e.c.Features.CompatibilityGroups {
		return true
	}
	for _, c := range d.dev.ConsumesCounters {
		if !e.groupsOn(d.pool, c.CounterSet).admits(c.CompatibilityGroups) {
			return false
		}
	}
	return true
}

// groupsOn is the state of a counter set: of this search, else of the allocated devices.
func (e *enumeration) groupsOn(p *poolView, set string) groupState {
	pool := p.driver + "/" + p.pool
	if g, ok := e.rolling[pool][set]; ok {
		return g
	}
	if known, ok := e.groups[pool]; ok && e.bugs.Has(CounterCache) {
		return known[set]
	}
	base := map[string]groupState{}
	for _, list := range [][]*deviceView{p.devices, p.others} {
		for _, d := range list {
			if !e.use.held(d.key) {
				continue
			}
			for _, c := range d.dev.ConsumesCounters {
				base[c.CounterSet] = base[c.CounterSet].with(c.CompatibilityGroups)
			}
		}
	}
	e.groups[pool] = base
	return base[set]
}

// countersSuffice compares what is left with what this search took and the device needs.
func (e *enumeration) countersSuffice(d *deviceView) bool {
	left := e.available(d.pool)
	pool := d.pool.driver + "/" + d.pool.pool
	after := withConsumption(e.used[pool], d.dev, 1, e.bugs)
	if e.bugs.Has(P5) {
		for set, counters := range left {
			for name, have := range counters {
				if have.Cmp(after[set][name]) < 0 {
					return false
				}
			}
		}
		return true
	}
	for _, c := range d.dev.ConsumesCounters {
		for name, counter := range c.Counters {
			have := left[c.CounterSet][name]
			if counter.Value.Sign() > 0 && have.Cmp(after[c.CounterSet][name]) < 0 {
				return false
			}
		}
	}
	return true
}

// available are the pool's counters minus what allocated devices consume.
func (e *enumeration) available(p *poolView) map[string]map[string]quantity {
	pool := p.driver + "/" + p.pool
	if known, ok := e.counters[pool]; ok && e.bugs.Has(CounterCache) {
		return known
	}
	left := p.sets
	for _, list := range [][]*deviceView{p.devices, p.others} {
		for _, d := range list {
			if e.use.held(d.key) {
				left = withConsumption(left, d.dev, -1, e.bugs)
			}
		}
	}
	e.counters[pool] = left
	return left
}
