package allocator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Inventory is one moment of the published devices: slices, device classes, nodes and taint
// rules. It is immutable, comes from Builder.Snapshot and is safe for concurrent use.
// Returned pointers and slices belong to the Inventory and are read-only.
//
// Allocation uses the current slices, by upstream's rules for incomplete and invalid pools.
// The methods of this type answer what charging needs and go by the last complete content of
// each pool: a pool whose newest generation is incomplete or invalid keeps its previous
// complete content.
type Inventory struct {
	revision uint64
	maxCost  uint64
	engine   *engine

	pools    *tree[*pool]    // by poolKey
	local    *tree[[]string] // node name -> sorted keys of pools with slices of that name
	spanning *tree[struct{}] // keys of pools with slices that name no node
	classes  *tree[*resourceapi.DeviceClass]
	extended *tree[*resourceapi.DeviceClass] // by extendedResourceName
	nodes    *tree[*corev1.Node]

	views [4]views // by poolFilter.number
	reach sync.Map // *reach -> []string: node names
}

// Revision identifies the content: within one process, equal revisions give equal answers.
func (inv *Inventory) Revision() uint64 { return inv.revision }

// DeviceClass returns the class of that name, nil when there is none.
func (inv *Inventory) DeviceClass(name string) *resourceapi.DeviceClass {
	class, _ := inv.classes.get(name)
	return class
}

// DeviceClasses returns the names of all classes, sorted.
func (inv *Inventory) DeviceClasses() []string { return keysOf(inv.classes) }

// ExtendedResourceClass returns the class that serves the extended resource, nil when none
// does: the class whose extendedResourceName it is (newest first, then lower name), or the
// class that deviceclass.resource.kubernetes.io/<class> names.
//
// Source: KEP-5004, k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache (v0.37).
func (inv *Inventory) ExtendedResourceClass(resource corev1.ResourceName) *resourceapi.DeviceClass {
	if class, found := inv.extended.get(string(resource)); found {
		return class
	}
	if name, ok := strings.CutPrefix(string(resource), resourceapi.ResourceDeviceClassPrefix); ok {
		return inv.DeviceClass(name)
	}
	return nil
}

// Candidates yields each device that passes the selectors of the class and the given ones,
// ordered by driver, pool, slice name and place in the slice, until yield returns false. A
// device on which an expression fails is no candidate. A class that does not exist has none.
//
// nodes are the names of the nodes that reach the device, sorted; nil means every node. Node
// selectors are evaluated against the nodes that the Builder knows.
//
// withinBudget is false when evaluating the selectors costs more than BuilderOptions.MaxCost:
// the devices yielded until then mean nothing. The sum counts remembered results, too, so it
// does not depend on what was asked before. The error tells that a selector does not compile.
func (inv *Inventory) Candidates(class string, selectors []resourceapi.DeviceSelector,
	yield func(driver, pool string, device *resourceapi.Device, nodes []string) bool) (withinBudget bool, err error) {
	c := inv.DeviceClass(class)
	programs, err := inv.programs(c, selectors)
	if err != nil || c == nil {
		return true, err
	}
	withinBudget = true
	var cost uint64
	inv.pools.all(func(_ string, p *pool) bool {
		if p.complete == nil {
			return true
		}
		for _, s := range deviceSlices(p.complete.slices, poolFilter{partitions: true, groups: true}) {
			for i := range s.devices {
				d := &s.devices[i]
				matches, used := inv.selected(d, programs)
				if cost += used; cost > inv.maxCost {
					withinBudget = false
					return false
				}
				if matches && !yield(p.driver, p.name, d.api, inv.nodesOf(d)) {
					return false
				}
			}
		}
		return true
	})
	return withinBudget, nil
}

// programs compiles the selectors of the class, which may be nil, and the request.
func (inv *Inventory) programs(class *resourceapi.DeviceClass, selectors []resourceapi.DeviceSelector) ([]*program, error) {
	var programs []*program
	add := func(what string, list []resourceapi.DeviceSelector) error {
		for i := range list {
			if list[i].CEL == nil {
				return fmt.Errorf("%sselectors[%d]: no CEL expression", what, i)
			}
			p := inv.engine.selector(list[i].CEL.Expression)
			if p.err != nil {
				return fmt.Errorf("%sselectors[%d]: %w", what, i, p.err)
			}
			programs = append(programs, p)
		}
		return nil
	}
	if class != nil {
		if err := add(fmt.Sprintf("class %q: ", class.Name), class.Spec.Selectors); err != nil {
			return nil, err
		}
	}
	return programs, add("", selectors)
}

// selected tells whether all programs are true for the device, and what evaluating them costs.
func (inv *Inventory) selected(d *device, programs []*program) (matches bool, cost uint64) {
	for _, p := range programs {
		o, err := d.slice.outcomesOf(p).on(context.Background(), d)
		cost += o.cost()
		if err != nil || o.kind() != outcomeTrue {
			return false, cost
		}
	}
	return true, cost
}

// nodesOf returns the nodes that reach the device, nil for all.
func (inv *Inventory) nodesOf(d *device) []string {
	r := &d.slice.reach
	if r.perNode {
		r = d.reach
	}
	switch {
	case r.all:
		return nil
	case r.nodeName != "":
		return []string{r.nodeName}
	case r.selector == nil:
		return []string{}
	}
	if known, found := inv.reach.Load(r); found {
		return known.([]string)
	}
	names := []string{}
	inv.nodes.all(func(name string, node *corev1.Node) bool {
		if r.selector.Match(node) {
			names = append(names, name)
		}
		return true
	})
	inv.reach.Store(r, names)
	return names
}

// Device returns a published device, nil when there is none of that name.
func (inv *Inventory) Device(driver, pool, name string) *resourceapi.Device {
	if d := inv.device(driver, pool, name); d != nil {
		return d.api
	}
	return nil
}

// device looks at the complete content, then at the others, newest first.
func (inv *Inventory) device(driver, pool, name string) *device {
	p, found := inv.pools.get(poolKey(driver, pool))
	if !found {
		return nil
	}
	if p.complete != nil {
		if d := p.complete.device(name); d != nil {
			return d
		}
	}
	for _, c := range p.generations {
		if d := c.device(name); d != nil {
			return d
		}
	}
	return nil
}

// Matches tells whether the CEL device selector is true for the device. It is false for a
// device that is not published and for one on which the expression fails. The error tells
// that the expression does not compile.
func (inv *Inventory) Matches(expression, driver, pool, name string) (bool, error) {
	p := inv.engine.selector(expression)
	if p.err != nil {
		return false, p.err
	}
	d := inv.device(driver, pool, name)
	if d == nil {
		return false, nil
	}
	matches, _ := inv.selected(d, []*program{p})
	return matches, nil
}

// Node returns the node of that name as the Builder knows it, nil when there is none.
func (inv *Inventory) Node(name string) *corev1.Node {
	node, _ := inv.nodes.get(name)
	return node
}

// Nodes returns the names of all nodes, sorted.
func (inv *Inventory) Nodes() []string { return keysOf(inv.nodes) }

func keysOf[V any](t *tree[V]) []string {
	keys := make([]string, 0, t.len())
	t.all(func(key string, _ V) bool {
		keys = append(keys, key)
		return true
	})
	return keys
}

// nodeView is all pools that a node sees, in the order in which devices are tried.
type nodeView struct {
	labels map[string]string
	// selective: the view depends on the labels.
	selective bool
	pools     []*poolView
	// slices are those of the usable pools, first the position of each one's first device.
	slices  []viewSlice
	devices int
}

// add appends the pool with its devices.
func (v *nodeView) add(pv *poolView) {
	for _, s := range pv.slices {
		v.slices = append(v.slices, viewSlice{slice: s, pool: pv, poolNumber: len(v.pools), first: v.devices})
		v.devices += len(s.devices)
	}
	v.pools = append(v.pools, pv)
}

// position numbers the place, which may be one behind the last device of a slice.
func (v *nodeView) position(at place) int {
	if at.slice >= len(v.slices) {
		return v.devices
	}
	return v.slices[at.slice].first + at.device
}

type viewSlice struct {
	*slice
	pool       *poolView
	poolNumber int // in nodeView.pools
	first      int
}

// views are the nodeViews of one poolFilter by node name.
type views struct {
	mu     sync.RWMutex // protects following
	byNode map[string]*nodeView
}

// view returns what the node sees, remembered as long as its labels are the same.
//
// Source: structured/internal/experimental/pools_experimental.go, GatherPools (v0.37).
func (inv *Inventory) view(node *corev1.Node, f poolFilter) (*nodeView, error) {
	known := &inv.views[f.number()]
	known.mu.RLock()
	v := known.byNode[node.Name]
	known.mu.RUnlock()
	if v != nil && (!v.selective || sameLabels(v.labels, node.Labels)) {
		return v, nil
	}
	v, err := inv.newView(node, f)
	if err != nil {
		return nil, err
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.byNode == nil {
		known.byNode = map[string]*nodeView{}
	}
	known.byNode[node.Name] = v
	return v, nil
}

func (inv *Inventory) newView(node *corev1.Node, f poolFilter) (*nodeView, error) {
	v := &nodeView{labels: node.Labels}
	keys, _ := inv.local.get(node.Name)
	var list []*poolView
	for _, key := range merged(keys, keysOf(inv.spanning)) {
		p, _ := inv.pools.get(key)
		v.selective = v.selective || p.selective()
		pv, err := p.view(node, f)
		if err != nil {
			return nil, err
		}
		if pv != nil {
			list = append(list, pv)
		}
	}
	slices.SortStableFunc(list, func(a, b *poolView) int { return int(flags(a.binding)) - int(flags(b.binding)) })
	for _, pv := range list {
		v.add(pv)
	}
	return v, nil
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, found := b[k]; !found || w != v {
			return false
		}
	}
	return true
}

// merged merges two sorted lists without duplicates.
func merged(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	list := slices.Concat(a, b)
	slices.Sort(list)
	return slices.Compact(list)
}
