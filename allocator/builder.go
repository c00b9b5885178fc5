package allocator

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// BuilderOptions of a Builder. The zero value is useful.
type BuilderOptions struct {
	// MaxCost bounds what the selectors of one Inventory.Candidates may cost, in CEL cost
	// units. Zero means DefaultMaxCost.
	MaxCost uint64
}

// Builder collects slices, classes, nodes and taint rules and makes Inventories of them. It
// is not safe for concurrent use; the Inventories are. The objects it is given are kept, not
// copied: they must not be modified afterwards (objects of an informer's store never are).
//
// An Inventory shares all that did not change with the ones before, including what is
// remembered of the selectors, so each event costs time proportional to the change.
type Builder struct {
	o BuilderOptions
}

// NewBuilder returns an empty Builder.
func NewBuilder(o BuilderOptions) *Builder { return &Builder{o: o} }

// SetSlice adds the slice or replaces the one of that name.
func (b *Builder) SetSlice(slice *resourceapi.ResourceSlice) {}

// DeleteSlice removes the slice of that name, if there is one.
func (b *Builder) DeleteSlice(name string) {}

// SetClass adds the class or replaces the one of that name.
func (b *Builder) SetClass(class *resourceapi.DeviceClass) {}

// DeleteClass removes the class of that name, if there is one.
func (b *Builder) DeleteClass(name string) {}

// SetNode adds the node or replaces the one of that name. Nodes are needed for
// Inventory.Candidates (which nodes a node selector reaches) and for Allocator.Nodes;
// Allocator.Allocate goes by the node that it is given.
func (b *Builder) SetNode(node *corev1.Node) {}

// DeleteNode removes the node of that name, if there is one.
func (b *Builder) DeleteNode(name string) {}

// SetTaintRule adds the rule or replaces the one of that name. Its taint counts as a taint of
// each device that its selector names; a rule without selector names none.
//
// Source: k8s.io/dynamic-resource-allocation/resourceslice/tracker (v0.37).
func (b *Builder) SetTaintRule(rule *resourceapi.DeviceTaintRule) {}

// DeleteTaintRule removes the rule of that name, if there is one.
func (b *Builder) DeleteTaintRule(name string) {}

// Snapshot returns the current content. Without a change since the last call it is the same
// Inventory again.
func (b *Builder) Snapshot() *Inventory { return &Inventory{} }
