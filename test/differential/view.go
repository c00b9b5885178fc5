package differential

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// deviceView is a device in its slice and pool.
type deviceView struct {
	key   deviceKey
	dev   *resourceapi.Device
	slice *resourceapi.ResourceSlice
	pool  *poolView
}

// poolView is a pool as it looks from one node.
type poolView struct {
	driver, pool string
	// incomplete: slices are missing. invalid: the content contradicts itself.
	incomplete, invalid bool
	// devices are in slices that target the node, in order of slice name and position.
	devices []*deviceView
	// others are the pool's other devices; filled only if the node's own slices are not the whole pool.
	others  []*deviceView
	sets    map[string]map[string]quantity
	binding bool // some device has binding conditions: such pools come last
}

func (p *poolView) usable() bool { return !p.incomplete && !p.invalid }

func isTrue(b *bool) bool { return b != nil && *b }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// nodeMatches applies one of the three forms of node selection.
func nodeMatches(node *corev1.Node, name string, all bool, selector *corev1.NodeSelector) (bool, error) {
	switch {
	case name != "":
		return node.Name == name, nil
	case all:
		return true, nil
	case selector != nil:
		s, err := nodeaffinity.NewNodeSelector(selector)
		if err != nil {
			return false, err
		}
		return s.Match(node), nil
	}
	return false, nil
}

// targets reports whether the slice has anything for the node; a slice without any
// known form of node selection never has.
func targets(node *corev1.Node, s *resourceapi.ResourceSlice) (bool, error) {
	name := deref(s.Spec.NodeName)
	if name != "" || isTrue(s.Spec.AllNodes) || s.Spec.NodeSelector != nil {
		return nodeMatches(node, name, isTrue(s.Spec.AllNodes), s.Spec.NodeSelector)
	}
	if !isTrue(s.Spec.PerDeviceNodeSelection) {
		return false, nil
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		ok, err := nodeMatches(node, deref(d.NodeName), isTrue(d.AllNodes), d.NodeSelector)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func hasGroups(s *resourceapi.ResourceSlice) bool {
	for _, d := range s.Spec.Devices {
		for _, c := range d.ConsumesCounters {
			if len(c.CompatibilityGroups) > 0 {
				return true
			}
		}
	}
	return false
}

// pools returns the pools that the node sees, in the order in which devices are tried.
func (c *Case) pools(node *corev1.Node, bugs Bugs) ([]*poolView, error) {
	type id struct{ driver, pool string }
	own := map[id][]*resourceapi.ResourceSlice{}
	failed := map[*resourceapi.ResourceSlice]error{}
	for _, local := range []bool{true, false} { // the node's own slices come first
		for _, s := range c.Slices {
			name := deref(s.Spec.NodeName)
			if local != (name != "") || local && name != node.Name {
				continue
			}
			if !c.Features.PartitionableDevices && (s.Spec.PerDeviceNodeSelection != nil || len(s.Spec.SharedCounters) > 0) {
				continue
			}
			if !c.Features.CompatibilityGroups && hasGroups(s) {
				continue
			}
			ok, err := targets(node, s)
			if err != nil {
				failed[s] = fmt.Errorf("node selection of slice %s: %w", s.Name, err)
			}
			if !ok {
				continue
			}
			key := id{s.Spec.Driver, s.Spec.Pool.Name}
			switch known := own[key]; {
			case len(known) == 0 || s.Spec.Pool.Generation > known[0].Spec.Pool.Generation:
				own[key] = []*resourceapi.ResourceSlice{s}
			case s.Spec.Pool.Generation == known[0].Spec.Pool.Generation:
				own[key] = append(known, s)
			}
		}
	}
	for s, err := range failed {
		newest := own[id{s.Spec.Driver, s.Spec.Pool.Name}]
		if bugs.Has(ObsoleteSelector) || len(newest) == 0 || newest[0].Spec.Pool.Generation <= s.Spec.Pool.Generation {
			return nil, err
		}
	}
	var out []*poolView
	for key, known := range own {
		if p := c.poolOf(key.driver, key.pool, known, bugs); p != nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *poolView) int {
		if a.binding != b.binding {
			if a.binding {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.pool, b.pool))
	})
	return out, nil
}

// poolOf assembles a pool from the slices that the node sees; nil if it is obsolete.
func (c *Case) poolOf(driver, name string, own []*resourceapi.ResourceSlice, bugs Bugs) *poolView {
	p := &poolView{driver: driver, pool: name}
	want, generation := own[0].Spec.Pool.ResourceSliceCount, own[0].Spec.Pool.Generation
	var rest []*resourceapi.ResourceSlice
	agree := func(s *resourceapi.ResourceSlice) bool {
		return bugs.Has(I141118) || s.Spec.Pool.ResourceSliceCount == want
	}
	disagree := slices.ContainsFunc(own, func(s *resourceapi.ResourceSlice) bool { return !agree(s) })
	if int64(len(own)) != want || disagree {
		n := 0
		for _, s := range c.Slices {
			if s.Spec.Driver != driver || s.Spec.Pool.Name != name || s.Spec.Pool.Generation < generation {
				continue
			}
			if s.Spec.Pool.Generation > generation {
				return nil
			}
			if !c.Features.CompatibilityGroups && hasGroups(s) {
				continue
			}
			n++
			disagree = disagree || !agree(s)
			if !slices.Contains(own, s) {
				rest = append(rest, s)
			}
		}
		if disagree {
			p.invalid = true
			return p
		}
		if int64(n) != want {
			p.incomplete = true
			return p
		}
	}
	own = slices.Clone(own)
	slices.SortFunc(own, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	p.fill(c, own, rest)
	return p
}

func (p *poolView) fill(c *Case, own, rest []*resourceapi.ResourceSlice) {
	p.sets = map[string]map[string]quantity{}
	add := func(s *resourceapi.ResourceSlice, to *[]*deviceView) {
		if c.Features.PartitionableDevices && len(s.Spec.SharedCounters) > 0 {
			for _, set := range s.Spec.SharedCounters {
				if _, twice := p.sets[set.Name]; twice {
					p.invalid = true
				}
				p.sets[set.Name] = map[string]quantity{}
				for name, counter := range set.Counters {
					p.sets[set.Name][name] = counter.Value.DeepCopy()
				}
			}
			return
		}
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			*to = append(*to, &deviceView{key: deviceKey{p.driver, p.pool, d.Name}, dev: d, slice: s, pool: p})
		}
	}
	for _, s := range own {
		add(s, &p.devices)
	}
	for _, s := range rest {
		add(s, &p.others)
	}
	seen := map[string]bool{}
	for _, d := range p.devices {
		p.invalid = p.invalid || seen[d.dev.Name]
		seen[d.dev.Name] = true
		p.binding = p.binding || d.dev.BindingConditions != nil
	}
	if c.Features.PartitionableDevices {
		for _, d := range slices.Concat(p.devices, p.others) {
			p.invalid = p.invalid || !p.countersExist(d.dev)
		}
	}
	if p.invalid {
		*p = poolView{driver: p.driver, pool: p.pool, invalid: true}
	}
}

func (p *poolView) countersExist(d *resourceapi.Device) bool {
	for _, c := range d.ConsumesCounters {
		set, ok := p.sets[c.CounterSet]
		if !ok {
			return false
		}
		for name := range c.Counters {
			if _, ok := set[name]; !ok {
				return false
			}
		}
	}
	return true
}
