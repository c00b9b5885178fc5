package quota

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Inventory is what charging needs to know of the published devices. Implementations hold
// the last complete content of each pool: a pool whose newest generation is incomplete
// keeps its previous complete content, so that a driver restart changes no charge.
//
// An Inventory is one moment: its answers do not change. All methods are safe for
// concurrent use. Returned pointers and slices belong to the Inventory and are read-only.
type Inventory interface {
	// Revision identifies the content: within one process, equal revisions give equal answers.
	Revision() uint64

	// DeviceClass returns the class of that name, nil when there is none.
	DeviceClass(name string) *resourceapi.DeviceClass

	// DeviceClasses returns the names of all classes, sorted.
	DeviceClasses() []string

	// ExtendedResourceClass returns the class that serves the extended resource, nil when
	// none does: the class whose extendedResourceName it is (newest first, then lower
	// name), or the class that deviceclass.resource.kubernetes.io/<class> names.
	// Source: KEP-5004, k8s.io/dynamic-resource-allocation/deviceclass (v0.37).
	ExtendedResourceClass(resource corev1.ResourceName) *resourceapi.DeviceClass

	// Candidates yields each device that passes the selectors of the class and the given
	// ones, in a fixed order, until yield returns false. A device on which an expression
	// fails to evaluate is no candidate. A class that does not exist has no candidates.
	//
	// nodes are the names of the nodes that reach the device, sorted; nil means every node.
	//
	// withinBudget is false when evaluating the selectors costs more CEL cost units than
	// one question may: the devices yielded until then mean nothing. The sum is the same
	// whether results were remembered or not. The error tells that a selector does not compile.
	Candidates(class string, selectors []resourceapi.DeviceSelector,
		yield func(driver, pool string, device *resourceapi.Device, nodes []string) bool) (withinBudget bool, err error)

	// Device returns a published device, nil when there is none of that name.
	Device(driver, pool, name string) *resourceapi.Device

	// Matches tells whether the CEL device selector is true for the device. It is false for a
	// device that is not published and for one on which the expression fails to evaluate.
	// The error tells that the expression does not compile.
	Matches(expression, driver, pool, name string) (bool, error)
}
