package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
)

// pool is what is published of one pool. It is immutable.
type pool struct {
	key          string // poolKey
	driver, name string
	// generations are the contents by generation, newest first.
	generations []*content
	// complete is the last complete and valid content, for charging; nil when there never was one.
	complete *content
}

// content is all slices of one generation of a pool, sorted by name.
type content struct {
	generation int64
	slices     []*slice
	// byNode are the slices with a node name (nil when there are few slices), shared the others.
	byNode map[string][]*slice
	shared []*slice
	// facts by poolFilter.
	facts [4]atomic.Pointer[facts]
	index atomic.Pointer[map[string]*device]
}

// poolFilter are the features that decide which slices of a pool count.
type poolFilter struct{ partitions, groups bool }

func (f Features) poolFilter() poolFilter {
	return poolFilter{partitions: f.PartitionableDevices, groups: f.CompatibilityGroups}
}

// number is below 4.
func (f poolFilter) number() byte { return flags(f.partitions, f.groups) }

// visible tells whether the slice is looked at for a node.
func (f poolFilter) visible(s *slice) bool {
	if !f.partitions && (s.api.Spec.PerDeviceNodeSelection != nil || len(s.api.Spec.SharedCounters) > 0) {
		return false
	}
	return (f.groups || !s.groups) && !s.reach.unknown
}

// counts tells whether the slice counts towards completeness once all nodes are looked at.
func (f poolFilter) counts(s *slice) bool { return f.groups || !s.groups }

// facts are what is the same for all nodes, for one filter.
type facts struct {
	count   int // slices that count towards completeness
	wanted  int64
	layout  *layout
	invalid string // why counters make the content invalid on every node
}

// newPool groups the slices, which are in any order. complete is what charging went by so far.
func newPool(key string, all []*slice, complete *content, old *pool) *pool {
	p := &pool{key: key, driver: all[0].api.Spec.Driver, name: all[0].api.Spec.Pool.Name, complete: complete}
	byGeneration := map[int64][]*slice{}
	for _, s := range all {
		g := s.api.Spec.Pool.Generation
		byGeneration[g] = append(byGeneration[g], s)
	}
	generations := sortedKeys(byGeneration)
	slices.Reverse(generations)
	for _, g := range generations {
		p.generations = append(p.generations, old.contentOf(g, byGeneration[g]))
	}
	if newest := p.generations[0]; newest.usable() {
		p.complete = newest
	}
	return p
}

// contentOf returns the pool's content of the generation if the slices are the same, with all
// that it remembers, else a new one. p may be nil.
func (p *pool) contentOf(generation int64, list []*slice) *content {
	slices.SortFunc(list, func(a, b *slice) int { return cmp.Compare(a.api.Name, b.api.Name) })
	if p != nil {
		for _, c := range p.generations {
			if c.generation == generation && slices.Equal(c.slices, list) {
				return c
			}
		}
	}
	c := &content{generation: generation, slices: list}
	const few = 4
	for _, s := range list {
		if len(list) <= few || s.reach.nodeName == "" {
			c.shared = append(c.shared, s)
			continue
		}
		if c.byNode == nil {
			c.byNode = map[string][]*slice{}
		}
		c.byNode[s.reach.nodeName] = append(c.byNode[s.reach.nodeName], s)
	}
	return c
}

// usable tells whether charging may go by the content: complete, and valid everywhere.
func (c *content) usable() bool {
	f := poolFilter{partitions: true, groups: true}
	facts := c.factsFor(f)
	if int64(facts.count) != facts.wanted || facts.invalid != "" {
		return false
	}
	_, twice := duplicateDevice(deviceSlices(c.slices, f))
	return !twice
}

// factsFor returns the facts, computed once.
func (c *content) factsFor(f poolFilter) *facts {
	i := f.number()
	if known := c.facts[i].Load(); known != nil {
		return known
	}
	var counting []*slice
	for _, s := range c.slices {
		if f.counts(s) {
			counting = append(counting, s)
		}
	}
	result := &facts{count: len(counting), wanted: wantedSlices(counting)}
	result.layout, result.invalid = checkCounters(counting, f)
	c.facts[i].Store(result)
	return result
}

// wantedSlices returns how many slices the pool shall have; -1 when the slices disagree, which
// is never complete. (Upstream goes by the first slice of an unsorted list; it rejects such
// pools after 1.37.)
func wantedSlices(list []*slice) int64 {
	if len(list) == 0 {
		return -1
	}
	wanted := list[0].api.Spec.Pool.ResourceSliceCount
	for _, s := range list[1:] {
		if s.api.Spec.Pool.ResourceSliceCount != wanted {
			return -1
		}
	}
	return wanted
}

// deviceSlices returns those slices whose devices can be allocated: a slice with shared
// counters only defines these.
func deviceSlices(list []*slice, f poolFilter) []*slice {
	if !f.partitions || !slices.ContainsFunc(list, hasCounterSets) {
		return list
	}
	var result []*slice
	for _, s := range list {
		if !hasCounterSets(s) {
			result = append(result, s)
		}
	}
	return result
}

// hasCounterSets tells whether the slice defines counter sets and nothing else that counts.
func hasCounterSets(s *slice) bool { return len(s.api.Spec.SharedCounters) > 0 && !s.beside }

// duplicateDevice returns a device name that occurs twice, if there is one.
func duplicateDevice(list []*slice) (name string, found bool) {
	n := 0
	for _, s := range list {
		n += len(s.devices)
	}
	seen := make(map[string]struct{}, n)
	for _, s := range list {
		for i := range s.devices {
			name := s.devices[i].name
			if _, found := seen[name]; found {
				return name, true
			}
			seen[name] = struct{}{}
		}
	}
	return "", false
}

// selective tells whether a node selector decides which nodes see the pool.
func (p *pool) selective() bool {
	return slices.ContainsFunc(p.generations, func(c *content) bool {
		return slices.ContainsFunc(c.shared, func(s *slice) bool { return s.reach.selector != nil || s.reach.err != nil || s.reach.perNode })
	})
}

// poolView is a pool as one node sees it.
type poolView struct {
	*pool
	// slices have the devices that may be for the node, sorted by name.
	slices []*slice
	// others are the device slices that are not for the node. They matter for counters only.
	others []*slice
	layout *layout
	// obstacle is why no device of the pool can be allocated; invalid tells that the pool is
	// not just incomplete.
	obstacle string
	invalid  bool
	binding  bool
}

// view returns the pool as the node sees it, nil when nothing of it is for the node.
//
// Source: structured/internal/experimental/pools_experimental.go, GatherPools (v0.37).
func (p *pool) view(node *corev1.Node, f poolFilter) (*poolView, error) {
	for _, c := range p.generations {
		relevant, err := c.relevant(node, f)
		if err != nil {
			return nil, fmt.Errorf("pool \"%s/%s\": %w", p.driver, p.name, err)
		}
		if len(relevant) > 0 {
			return p.viewOf(c, relevant, f), nil
		}
	}
	return nil, nil
}

func (p *pool) viewOf(c *content, relevant []*slice, f poolFilter) *poolView {
	v := &poolView{pool: p}
	wanted := wantedSlices(relevant)
	if int64(len(relevant)) == wanted {
		v.fill(relevant, nil, nil, f)
		return v
	}
	if p.generations[0] != c {
		return nil // a driver is replacing it: obsolete
	}
	all := c.factsFor(f)
	if wanted < 0 || all.wanted < 0 {
		v.reject("slices disagree about the number of slices")
		return v
	}
	if int64(all.count) != wanted {
		v.obstacle = fmt.Sprintf("%d of %d slices are published", all.count, wanted)
		return v
	}
	v.fill(relevant, c, all, f)
	return v
}

// fill checks the slices and takes them over. With all nil the relevant slices are the whole
// pool, else c is.
func (v *poolView) fill(relevant []*slice, c *content, all *facts, f poolFilter) {
	v.slices = deviceSlices(relevant, f)
	if name, twice := duplicateDevice(v.slices); twice {
		v.reject(fmt.Sprintf("duplicate device name %q", name))
		return
	}
	var invalid string
	if all == nil {
		v.layout, invalid = checkCounters(relevant, f)
	} else {
		v.layout, invalid = all.layout, all.invalid
		v.others = irrelevant(c.slices, relevant, f)
	}
	if invalid != "" {
		v.reject(invalid)
		return
	}
	v.binding = slices.ContainsFunc(v.slices, func(s *slice) bool { return s.binding })
}

func (v *poolView) reject(why string) {
	v.slices, v.others, v.layout = nil, nil, nil
	v.invalid, v.obstacle = true, why
}

// irrelevant returns the device slices of all that count and are not among the relevant ones.
func irrelevant(all, relevant []*slice, f poolFilter) []*slice {
	if !slices.ContainsFunc(all, func(s *slice) bool { return s.consumes }) {
		return nil // nobody asks
	}
	known := make(map[*slice]struct{}, len(relevant))
	for _, s := range relevant {
		known[s] = struct{}{}
	}
	var others []*slice
	for _, s := range all {
		if _, found := known[s]; !found && f.counts(s) && !(f.partitions && hasCounterSets(s)) {
			others = append(others, s)
		}
	}
	return others
}

// relevant returns the slices with something for the node, sorted by name.
func (c *content) relevant(node *corev1.Node, f poolFilter) ([]*slice, error) {
	var result []*slice
	if node != nil {
		result = f.visibleOf(c.byNode[node.Name])
	}
	merge := len(result) > 0
	for _, s := range c.shared {
		if !f.visible(s) {
			continue
		}
		matches, err := s.matches(node)
		if err != nil {
			return nil, fmt.Errorf("slice %q: node selector: %w", s.api.Name, err)
		}
		if matches {
			result = append(result, s)
		}
	}
	if merge {
		slices.SortFunc(result, func(a, b *slice) int { return cmp.Compare(a.api.Name, b.api.Name) })
	}
	return result, nil
}

func (f poolFilter) visibleOf(list []*slice) []*slice {
	var result []*slice
	for _, s := range list {
		if f.visible(s) {
			result = append(result, s)
		}
	}
	return result
}

// matches tells whether the slice, or with node selection per device one of its devices, is
// for the node.
func (s *slice) matches(node *corev1.Node) (bool, error) {
	if !s.reach.perNode {
		return s.reach.matches(node)
	}
	for i := range s.devices {
		matches, err := s.devices[i].reach.matches(node)
		if matches || err != nil {
			return matches, err
		}
	}
	return false, nil
}

// device returns the first device of that name, nil when there is none.
func (c *content) device(name string) *device {
	index := c.index.Load()
	if index == nil {
		m := map[string]*device{}
		for _, s := range c.slices {
			for i := range s.devices {
				if _, found := m[s.devices[i].api.Name]; !found {
					m[s.devices[i].api.Name] = &s.devices[i]
				}
			}
		}
		index = &m
		c.index.Store(index)
	}
	return (*index)[name]
}
