package differential

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Driver is the driver of hand-made cases.
const Driver = "gpu.example.com"

// NewCase returns a case with one node "n0", a class "gpu" that selects everything of
// Driver, and the features; more is added with the methods of Case.
func NewCase(f structured.Features) *Case {
	return (&Case{Features: f}).AddNode("n0").AddClass("gpu", `device.driver == "`+Driver+`"`)
}

// AddNode adds a node with the hostname label.
func (c *Case) AddNode(name string) *Case {
	c.Nodes = append(c.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}})
	return c
}

// AddClass adds a class with the expressions.
func (c *Case) AddClass(name string, expressions ...string) *Case {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, e := range expressions {
		class.Spec.Selectors = append(class.Spec.Selectors, celSelector(e))
	}
	c.Classes = append(c.Classes, class)
	return c
}

// AddPool adds a complete pool of one slice for the node; all nodes if node is empty.
func (c *Case) AddPool(node, pool string, devices ...resourceapi.Device) *Case {
	c.Slices = append(c.Slices, NewSlice(Driver, node, pool, devices...))
	return c
}

// AddCounters adds a slice with counter sets to the pool, which then has one slice more.
func (c *Case) AddCounters(node, pool string, sets ...resourceapi.CounterSet) *Case {
	s := NewSlice(Driver, node, pool)
	s.Name += "-counters"
	s.Spec.SharedCounters = sets
	c.Slices = append(c.Slices, s)
	var of []*resourceapi.ResourceSlice
	for _, other := range c.Slices {
		if other.Spec.Driver == Driver && other.Spec.Pool.Name == pool {
			of = append(of, other)
		}
	}
	for _, other := range of {
		other.Spec.Pool.ResourceSliceCount = int64(len(of))
	}
	return c
}

// NewSlice returns the only slice of a pool.
func NewSlice(driver, node, pool string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s", pool, node)},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1}, Devices: devices,
		},
	}
	if node == "" {
		s.Spec.AllNodes = ptr(true)
	} else {
		s.Spec.NodeName = &node
	}
	return s
}

// AddClaim adds a claim to be allocated.
func (c *Case) AddClaim(requests ...resourceapi.DeviceRequest) *Case {
	n := len(c.Claims)
	c.Claims = append(c.Claims, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("claim%d", n), UID: types.UID(fmt.Sprintf("uid-%d", n))},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	})
	return c
}

// Match makes the last claim require one value of the attribute for the requests; none means all.
func (c *Case) Match(attribute string, requests ...string) *Case {
	return c.constrain(resourceapi.DeviceConstraint{Requests: requests, MatchAttribute: ptr(resourceapi.FullyQualifiedName(attribute))})
}

// Distinct makes the last claim require different values of the attribute.
func (c *Case) Distinct(attribute string, requests ...string) *Case {
	return c.constrain(resourceapi.DeviceConstraint{Requests: requests, DistinctAttribute: ptr(resourceapi.FullyQualifiedName(attribute))})
}

func (c *Case) constrain(d resourceapi.DeviceConstraint) *Case {
	spec := &c.Claims[len(c.Claims)-1].Spec.Devices
	spec.Constraints = append(spec.Constraints, d)
	return c
}

// Hold adds an allocated claim that holds the device; a share of it if consumed is not nil.
func (c *Case) Hold(pool, device string, consumed map[resourceapi.QualifiedName]quantity) *Case {
	n := len(c.Allocated)
	r := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: Driver, Pool: pool, Device: device, ConsumedCapacity: consumed}
	if consumed != nil {
		r.ShareID = ptr(types.UID(fmt.Sprintf("share-%d", n)))
	}
	c.Allocated = append(c.Allocated, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("old%d", n), UID: types.UID(fmt.Sprintf("old-%d", n))},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{Want("r", 1)}}},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}},
	})
	return c
}

// Want returns a request of class "gpu" for count devices; all matching ones if count is zero.
func Want(name string, count int64, expressions ...string) resourceapi.DeviceRequest {
	e := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	if count == 0 {
		e.AllocationMode = resourceapi.DeviceAllocationModeAll
	}
	for _, x := range expressions {
		e.Selectors = append(e.Selectors, celSelector(x))
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: e}
}

// WantAdmin is Want with admin access.
func WantAdmin(name string, count int64, expressions ...string) resourceapi.DeviceRequest {
	r := Want(name, count, expressions...)
	r.Exactly.AdminAccess = ptr(true)
	return r
}

// WantCapacity is Want for one device with an amount of capacity.
func WantCapacity(name, capacity, amount string) resourceapi.DeviceRequest {
	r := Want(name, 1)
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]quantity{resourceapi.QualifiedName(capacity): resource.MustParse(amount)}}
	return r
}

// FirstOf makes alternatives s0, s1, ... of the requests.
func FirstOf(name string, requests ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	out := resourceapi.DeviceRequest{Name: name}
	for i, r := range requests {
		e := r.Exactly
		out.FirstAvailable = append(out.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("s%d", i), DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode, Count: e.Count, Capacity: e.Capacity,
		})
	}
	return out
}

// Dev returns a device with the integer attributes given as name, value pairs.
func Dev(name string, attributes ...any) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	for i := 0; i+1 < len(attributes); i += 2 {
		a := resourceapi.DeviceAttribute{}
		switch v := attributes[i+1].(type) {
		case int:
			a.IntValue = ptr(int64(v))
		case string:
			a.StringValue = &v
		}
		d.Attributes[resourceapi.QualifiedName(attributes[i].(string))] = a
	}
	return d
}

// Consuming adds the consumption of one counter.
func Consuming(d resourceapi.Device, set, counter string, amount int64) resourceapi.Device {
	d.ConsumesCounters = append(d.ConsumesCounters, resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: counters(counter, amount)})
	return d
}

// Set returns a counter set with one counter.
func Set(name, counter string, amount int64) resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: name, Counters: counters(counter, amount)}
}

func counters(name string, amount int64) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{name: {Value: *resource.NewQuantity(amount, resource.DecimalSI)}}
}

// Shared makes the device allow several allocations, with a capacity.
func Shared(d resourceapi.Device, capacity string, amount int64) resourceapi.Device {
	d.AllowMultipleAllocations = ptr(true)
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{resourceapi.QualifiedName(capacity): {Value: *resource.NewQuantity(amount, resource.DecimalSI)}}
	return d
}
