package allocator

import (
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
}

// Revision identifies the content: within one process, equal revisions give equal answers.
func (inv *Inventory) Revision() uint64 { return inv.revision }

// DeviceClass returns the class of that name, nil when there is none.
func (inv *Inventory) DeviceClass(name string) *resourceapi.DeviceClass { return nil }

// DeviceClasses returns the names of all classes, sorted.
func (inv *Inventory) DeviceClasses() []string { return nil }

// ExtendedResourceClass returns the class that serves the extended resource, nil when none
// does: the class whose extendedResourceName it is (newest first, then lower name), or the
// class that deviceclass.resource.kubernetes.io/<class> names.
//
// Source: KEP-5004, k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache (v0.37).
func (inv *Inventory) ExtendedResourceClass(resource corev1.ResourceName) *resourceapi.DeviceClass {
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
	return true, nil
}

// Device returns a published device, nil when there is none of that name.
func (inv *Inventory) Device(driver, pool, name string) *resourceapi.Device { return nil }

// Matches tells whether the CEL device selector is true for the device. It is false for a
// device that is not published and for one on which the expression fails. The error tells
// that the expression does not compile.
func (inv *Inventory) Matches(expression, driver, pool, name string) (bool, error) {
	return false, nil
}

// Node returns the node of that name as the Builder knows it, nil when there is none.
func (inv *Inventory) Node(name string) *corev1.Node { return nil }

// Nodes returns the names of all nodes, sorted.
func (inv *Inventory) Nodes() []string { return nil }
