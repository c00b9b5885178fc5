package allocator

import (
	"cmp"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// BuilderOptions of a Builder. The zero value is useful.
type BuilderOptions struct {
	// MaxCost bounds what the selectors of one Inventory.Candidates may cost, in CEL cost
	// units. Zero means DefaultMaxCost.
	MaxCost uint64
	// CountersBesideDevices: a slice may define counter sets beside the devices that consume them,
	// for these only, as in Kubernetes 1.33 and 1.34. Later versions accept no such slices, and
	// their schedulers do not look at the devices in them.
	CountersBesideDevices bool
}

// revisions numbers the Inventories of the process, so that those of two Builders differ.
var revisions atomic.Uint64

// Builder collects slices, classes, nodes and taint rules and makes Inventories of them. It
// is not safe for concurrent use; the Inventories are. The objects it is given are kept, not
// copied: they must not be modified afterwards (objects of an informer's store never are).
//
// An Inventory shares all that did not change with the ones before, including what is
// remembered of the selectors, so each event costs time proportional to the change.
type Builder struct {
	maxCost uint64
	beside  bool // see BuilderOptions.CountersBesideDevices
	engine  *engine

	pools    *tree[*pool]
	local    *tree[[]string]
	spanning *tree[struct{}]
	classes  *tree[*resourceapi.DeviceClass]
	extended *tree[*resourceapi.DeviceClass]
	nodes    *tree[*corev1.Node]
	rules    *tree[*resourceapi.DeviceTaintRule]

	slices   map[string]*slice                              // by name
	byPool   map[string]map[string]*slice                   // poolKey -> slice name
	named    map[string]map[string]int                      // poolKey -> node name ("" for none) -> slices
	claiming map[string]map[string]*resourceapi.DeviceClass // extendedResourceName -> class name

	dirty   map[string]struct{} // poolKeys whose slices changed
	changed bool
	last    *Inventory
}

// NewBuilder returns an empty Builder.
func NewBuilder(o BuilderOptions) *Builder {
	if o.MaxCost == 0 {
		o.MaxCost = DefaultMaxCost
	}
	return &Builder{
		maxCost:  o.MaxCost,
		beside:   o.CountersBesideDevices,
		engine:   newEngine(),
		slices:   map[string]*slice{},
		byPool:   map[string]map[string]*slice{},
		named:    map[string]map[string]int{},
		claiming: map[string]map[string]*resourceapi.DeviceClass{},
		dirty:    map[string]struct{}{},
	}
}

// SetSlice adds the slice or replaces the one of that name.
func (b *Builder) SetSlice(api *resourceapi.ResourceSlice) {
	if old := b.slices[api.Name]; old != nil {
		if old.api == api {
			return
		}
		b.DeleteSlice(api.Name)
	}
	b.add(newSlice(api, b.rulesFor(api), b.beside))
}

func (b *Builder) add(s *slice) {
	key := s.key()
	b.slices[s.api.Name] = s
	if b.byPool[key] == nil {
		b.byPool[key] = map[string]*slice{}
	}
	b.byPool[key][s.api.Name] = s
	b.dirty[key] = struct{}{}
	b.reference(key, s.reach.nodeName, 1)
}

// DeleteSlice removes the slice of that name, if there is one.
func (b *Builder) DeleteSlice(name string) {
	s := b.slices[name]
	if s == nil {
		return
	}
	key := s.key()
	delete(b.slices, name)
	delete(b.byPool[key], name)
	b.dirty[key] = struct{}{}
	b.reference(key, s.reach.nodeName, -1)
}

// reference keeps the index from node names to pools. "" stands for slices without node name.
func (b *Builder) reference(key, node string, by int) {
	if b.named[key] == nil {
		b.named[key] = map[string]int{}
	}
	before := b.named[key][node]
	after := before + by
	b.named[key][node] = after
	if after == 0 {
		delete(b.named[key], node)
	}
	if (before == 0) == (after == 0) {
		return
	}
	if node == "" {
		if after > 0 {
			b.spanning = b.spanning.set(key, struct{}{})
		} else {
			b.spanning = b.spanning.remove(key)
		}
		return
	}
	keys, _ := b.local.get(node)
	i, _ := slices.BinarySearch(keys, key)
	if after > 0 {
		keys = slices.Insert(slices.Clone(keys), i, key)
	} else {
		keys = slices.Delete(slices.Clone(keys), i, i+1)
	}
	if len(keys) == 0 {
		b.local = b.local.remove(node)
	} else {
		b.local = b.local.set(node, keys)
	}
}

// SetClass adds the class or replaces the one of that name.
func (b *Builder) SetClass(class *resourceapi.DeviceClass) {
	if old, found := b.classes.get(class.Name); found {
		if old == class {
			return
		}
		b.DeleteClass(class.Name)
	}
	b.classes = b.classes.set(class.Name, class)
	b.changed = true
	if resource := class.Spec.ExtendedResourceName; resource != nil {
		if b.claiming[*resource] == nil {
			b.claiming[*resource] = map[string]*resourceapi.DeviceClass{}
		}
		b.claiming[*resource][class.Name] = class
		b.elect(*resource)
	}
}

// DeleteClass removes the class of that name, if there is one.
func (b *Builder) DeleteClass(name string) {
	class, found := b.classes.get(name)
	if !found {
		return
	}
	b.classes = b.classes.remove(name)
	b.changed = true
	if resource := class.Spec.ExtendedResourceName; resource != nil {
		delete(b.claiming[*resource], name)
		b.elect(*resource)
	}
}

// elect decides which class serves the extended resource: the newest, then the lower name.
func (b *Builder) elect(resource string) {
	var best *resourceapi.DeviceClass
	for _, class := range b.claiming[resource] {
		if best == nil || cmp.Or(
			best.CreationTimestamp.Time.Compare(class.CreationTimestamp.Time),
			cmp.Compare(class.Name, best.Name)) < 0 {
			best = class
		}
	}
	if best == nil {
		delete(b.claiming, resource)
		b.extended = b.extended.remove(resource)
		return
	}
	b.extended = b.extended.set(resource, best)
}

// SetNode adds the node or replaces the one of that name. Nodes are needed for
// Inventory.Candidates (which nodes a node selector reaches) and for Allocator.Nodes;
// Allocator.Allocate goes by the node that it is given.
func (b *Builder) SetNode(node *corev1.Node) {
	b.nodes = b.nodes.set(node.Name, node)
	b.changed = true
}

// DeleteNode removes the node of that name, if there is one.
func (b *Builder) DeleteNode(name string) {
	if _, found := b.nodes.get(name); found {
		b.nodes = b.nodes.remove(name)
		b.changed = true
	}
}

// SetTaintRule adds the rule or replaces the one of that name. Its taint counts as a taint of
// each device that its selector names; a rule without selector names none. It costs time
// proportional to the number of slices, if it may be about many pools.
//
// Source: k8s.io/dynamic-resource-allocation/resourceslice/tracker (v0.37).
func (b *Builder) SetTaintRule(rule *resourceapi.DeviceTaintRule) {
	old, found := b.rules.get(rule.Name)
	b.rules = b.rules.set(rule.Name, rule)
	if found {
		b.taint(old)
	}
	b.taint(rule)
}

// DeleteTaintRule removes the rule of that name, if there is one.
func (b *Builder) DeleteTaintRule(name string) {
	if rule, found := b.rules.get(name); found {
		b.rules = b.rules.remove(name)
		b.taint(rule)
	}
}

// taint prepares the slices again that the rule may be about.
func (b *Builder) taint(rule *resourceapi.DeviceTaintRule) {
	s := rule.Spec.DeviceSelector
	switch {
	case s == nil:
		return
	case s.Driver != nil && s.Pool != nil:
		b.taintPool(poolKey(*s.Driver, *s.Pool))
		return
	}
	for key, list := range b.byPool {
		for _, any := range list {
			if ruleApplies(rule, any.api.Spec.Driver, any.api.Spec.Pool.Name) {
				b.taintPool(key)
			}
			break
		}
	}
}

func (b *Builder) taintPool(key string) {
	for name, s := range b.byPool[key] {
		next := newSlice(s.api, b.rulesFor(s.api), b.beside)
		next.outcomes.Store(s.outcomes.Load()) // selectors do not see taints
		b.slices[name] = next
		b.byPool[key][name] = next
		b.dirty[key] = struct{}{}
	}
}

// rulesFor returns the rules that may be about devices of the slice, sorted by name.
func (b *Builder) rulesFor(api *resourceapi.ResourceSlice) []*resourceapi.DeviceTaintRule {
	var rules []*resourceapi.DeviceTaintRule
	b.rules.all(func(_ string, rule *resourceapi.DeviceTaintRule) bool {
		if ruleApplies(rule, api.Spec.Driver, api.Spec.Pool.Name) {
			rules = append(rules, rule)
		}
		return true
	})
	return rules
}

// Snapshot returns the current content. Without a change since the last call it is the same
// Inventory again.
func (b *Builder) Snapshot() *Inventory {
	if b.last != nil && !b.changed && len(b.dirty) == 0 {
		return b.last
	}
	for key := range b.dirty {
		b.rebuild(key)
	}
	clear(b.dirty)
	b.changed = false
	b.last = &Inventory{
		revision: revisions.Add(1),
		maxCost:  b.maxCost,
		engine:   b.engine,
		pools:    b.pools,
		local:    b.local,
		spanning: b.spanning,
		classes:  b.classes,
		extended: b.extended,
		nodes:    b.nodes,
	}
	return b.last
}

func (b *Builder) rebuild(key string) {
	if len(b.byPool[key]) == 0 {
		delete(b.byPool, key)
		delete(b.named, key)
		b.pools = b.pools.remove(key)
		return
	}
	all := make([]*slice, 0, len(b.byPool[key]))
	for _, s := range b.byPool[key] {
		all = append(all, s)
	}
	old, _ := b.pools.get(key)
	var complete *content
	if old != nil {
		complete = old.complete
	}
	b.pools = b.pools.set(key, newPool(key, all, complete, old))
}
