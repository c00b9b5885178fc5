package allocator

import (
	"fmt"
	"slices"
)

// layout numbers the counters of a pool: the counter sets in the order of their slices, each
// with its counters sorted by name.
type layout struct {
	sets     map[string]*counterSet
	names    []string // "set/counter" per counter
	counters []string // the name of each counter alone
	totals   []amount
}

type counterSet struct {
	number   int            // of the set
	counters map[string]int // counter name -> number of the counter in the pool
}

// use is what a device consumes of one counter set.
type use struct {
	set     int
	groups  []string // compatibility groups
	amounts []counterAmount
}

type counterAmount struct {
	counter int
	amount  amount
}

// resolvedUses remembers, for the devices of one slice, their uses in one layout.
type resolvedUses struct {
	layout *layout
	uses   [][]use // by device
}

// checkCounters returns the counters of the slices, nil when there are none, or what is wrong
// with them: a set that is defined twice, or a device that names what is not defined.
func checkCounters(list []*slice, f poolFilter) (l *layout, invalid string) {
	if !f.partitions {
		return nil, ""
	}
	for _, s := range list {
		for i := range s.api.Spec.SharedCounters {
			set := &s.api.Spec.SharedCounters[i]
			if l == nil {
				l = &layout{sets: map[string]*counterSet{}}
			}
			name := s.counterSet(set.Name)
			if l.sets[name] != nil {
				return nil, fmt.Sprintf("duplicate counter set %q", set.Name)
			}
			added := &counterSet{number: len(l.sets), counters: make(map[string]int, len(set.Counters))}
			l.sets[name] = added
			for _, name := range sortedKeys(set.Counters) {
				added.counters[name] = len(l.totals)
				l.names = append(l.names, set.Name+"/"+name)
				l.counters = append(l.counters, name)
				l.totals = append(l.totals, amountOf(set.Counters[name].Value))
			}
		}
	}
	for _, s := range deviceSlices(list, f) {
		if invalid := l.check(s); invalid != "" {
			return nil, invalid
		}
	}
	return l, ""
}

// check returns what is wrong with the consumption of the slice's devices.
func (l *layout) check(s *slice) string {
	if !s.consumes {
		return ""
	}
	for i := range s.devices {
		d := &s.devices[i]
		for j := range d.api.ConsumesCounters {
			c := &d.api.ConsumesCounters[j]
			var set *counterSet
			if l != nil {
				set = l.sets[s.counterSet(c.CounterSet)]
			}
			if set == nil {
				return fmt.Sprintf("device %q consumes of counter set %q, which does not exist", d.api.Name, c.CounterSet)
			}
			for _, name := range sortedKeys(c.Counters) {
				if _, found := set.counters[name]; !found {
					return fmt.Sprintf("device %q consumes counter %q, which counter set %q does not have", d.api.Name, name, c.CounterSet)
				}
			}
		}
	}
	return ""
}

// of returns what the device consumes. A negative consumption counts as none: upstream adds it
// to what is available, but no device can bring counters along.
func (l *layout) of(d *device) []use {
	if l == nil || !d.consumes {
		return nil
	}
	known := d.slice.resolved.Load()
	if known == nil || known.layout != l {
		known = &resolvedUses{layout: l, uses: make([][]use, len(d.slice.devices))}
		for i := range d.slice.devices {
			known.uses[i] = l.resolve(&d.slice.devices[i])
		}
		d.slice.resolved.Store(known)
	}
	return known.uses[d.index]
}

func (l *layout) resolve(d *device) []use {
	uses := make([]use, 0, len(d.api.ConsumesCounters))
	for i := range d.api.ConsumesCounters {
		c := &d.api.ConsumesCounters[i]
		set := l.sets[d.slice.counterSet(c.CounterSet)]
		if set == nil {
			continue // a slice of another view of the pool
		}
		u := use{set: set.number, groups: slices.Compact(slices.Sorted(slices.Values(c.CompatibilityGroups)))}
		for _, name := range sortedKeys(c.Counters) {
			number, found := set.counters[name]
			if a := amountOf(c.Counters[name].Value); found && a.sign() > 0 {
				u.amounts = append(u.amounts, counterAmount{counter: number, amount: a})
			}
		}
		uses = append(uses, u)
	}
	return uses
}

// available is what is left of the counters of a pool, and which compatibility groups the
// allocated devices leave open, before this call allocates anything. It is immutable.
type available struct {
	counters []amount
	groups   []groupState // by counter set
}

// available computes what the devices in use leave. Devices that are no longer published
// consume nothing, as upstream.
func (v *poolView) available(used *poolUse) *available {
	a := &available{counters: slices.Clone(v.layout.totals), groups: make([]groupState, len(v.layout.sets))}
	if used == nil || len(used.devices) == 0 {
		return a
	}
	for _, list := range [][]*slice{v.slices, v.others} {
		for _, s := range list {
			for i := range s.devices {
				d := &s.devices[i]
				if d.consumes && used.of(d.name).allocated() {
					a.subtract(v.layout.of(d))
				}
			}
		}
	}
	return a
}

func (a *available) subtract(uses []use) {
	for i := range uses {
		for _, c := range uses[i].amounts {
			a.counters[c.counter] = a.counters[c.counter].sub(c.amount)
		}
		a.groups[uses[i].set] = a.groups[uses[i].set].add(uses[i].groups)
	}
}

// groupState is the compatibility groups that the devices on one counter set have in common.
// Devices without groups go together only with devices without groups.
//
// Source: KEP-5963, structured/internal/experimental/compatibility_groups.go (v0.37).
type groupState struct {
	members, grouped bool
	common           []string // sorted
}

func (g groupState) admits(groups []string) bool {
	switch {
	case !g.members:
		return true
	case len(groups) == 0 || !g.grouped:
		return len(groups) == 0 && !g.grouped
	}
	return slices.ContainsFunc(groups, func(s string) bool { return slices.Contains(g.common, s) })
}

// add returns the state with one more device. A device that is not admitted, which happens
// when slices change under allocated devices, leaves members of the other kind as they are.
func (g groupState) add(groups []string) groupState {
	switch {
	case !g.members:
		return groupState{members: true, grouped: len(groups) > 0, common: groups}
	case !g.grouped || len(groups) == 0:
		return g
	}
	next := groupState{members: true, grouped: true}
	for _, s := range g.common {
		if slices.Contains(groups, s) {
			next.common = append(next.common, s)
		}
	}
	return next
}
