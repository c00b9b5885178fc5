package allocator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	driverA = "driver-a.example.com"
	driverB = "driver-b.example.com"
	classA  = "class-a"
	node1   = "node-1"
	node2   = "node-2"
)

func class(name, driver string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if driver != "" {
		c.Spec.Selectors = selectors(fmt.Sprintf("device.driver == %q", driver))
	}
	return c
}

func selectors(expressions ...string) (list []resourceapi.DeviceSelector) {
	for _, e := range expressions {
		list = append(list, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return list
}

func node(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		n.Labels[k] = v
	}
	return n
}

// slice is a slice of driver A for node 1 in a pool "pool" of one slice; opts change that.
func sliceOf(name string, devices []resourceapi.Device, opts ...func(*resourceapi.ResourceSlice)) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:   driverA,
			Pool:     resourceapi.ResourcePool{Name: "pool", Generation: 1, ResourceSliceCount: 1},
			NodeName: ptr.To(node1),
			Devices:  devices,
		},
	}
	for _, o := range opts {
		o(s)
	}
	return s
}

func inPool(driver, pool string, generation, count int64) func(*resourceapi.ResourceSlice) {
	return func(s *resourceapi.ResourceSlice) {
		s.Spec.Driver = driver
		s.Spec.Pool = resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count}
	}
}

func onNode(name string) func(*resourceapi.ResourceSlice) {
	return func(s *resourceapi.ResourceSlice) { s.Spec.NodeName = ptr.To(name) }
}

func onAllNodes(s *resourceapi.ResourceSlice) { s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true) }

func perDevice(s *resourceapi.ResourceSlice) {
	s.Spec.NodeName, s.Spec.PerDeviceNodeSelection = nil, ptr.To(true)
}

func onLabel(key string, values ...string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{labelTerm(key, values...)}}
}

func labelTerm(key string, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
		Key: key, Operator: corev1.NodeSelectorOpIn, Values: values,
	}}}
}

func counterSets(sets ...resourceapi.CounterSet) func(*resourceapi.ResourceSlice) {
	return func(s *resourceapi.ResourceSlice) { s.Spec.SharedCounters = sets }
}

func counterSetOf(name string, counters ...string) resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: name, Counters: counterMap(counters)}
}

func counterMap(counters []string) map[string]resourceapi.Counter {
	m := map[string]resourceapi.Counter{}
	for _, c := range counters {
		k, v, _ := strings.Cut(c, "=")
		m[k] = resourceapi.Counter{Value: resource.MustParse(v)}
	}
	return m
}

func dev(name string, opts ...func(*resourceapi.Device)) resourceapi.Device {
	d := resourceapi.Device{Name: name}
	for _, o := range opts {
		o(&d)
	}
	return d
}

func devs(prefix string, n int, opts ...func(*resourceapi.Device)) (list []resourceapi.Device) {
	for i := range n {
		list = append(list, dev(fmt.Sprintf("%s-%d", prefix, i), opts...))
	}
	return list
}

func attr(name string, v any) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		if d.Attributes == nil {
			d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		}
		a := resourceapi.DeviceAttribute{}
		switch v := v.(type) {
		case string:
			a.StringValue = &v
		case int:
			a.IntValue = ptr.To(int64(v))
		case bool:
			a.BoolValue = &v
		case []string:
			a.StringValues = v
		}
		d.Attributes[resourceapi.QualifiedName(name)] = a
	}
}

func capacityOf(name, v string, policy ...*resourceapi.CapacityRequestPolicy) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		if d.Capacity == nil {
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
		}
		c := resourceapi.DeviceCapacity{Value: resource.MustParse(v)}
		if len(policy) > 0 {
			c.RequestPolicy = policy[0]
		}
		d.Capacity[resourceapi.QualifiedName(name)] = c
	}
}

func multi(d *resourceapi.Device) { d.AllowMultipleAllocations = ptr.To(true) }

func consumes(set string, counters ...string) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		d.ConsumesCounters = append(d.ConsumesCounters, resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: counterMap(counters)})
	}
}

func tainted(key string, effect resourceapi.DeviceTaintEffect) func(*resourceapi.Device) {
	return func(d *resourceapi.Device) {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: key, Effect: effect})
	}
}

type reqOpt = func(*resourceapi.DeviceRequest)

func req(name string, count int64, opts ...reqOpt) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: classA, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
	for _, o := range opts {
		o(&r)
	}
	return r
}

func all(r *resourceapi.DeviceRequest) {
	r.Exactly.AllocationMode, r.Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
}

func admin(r *resourceapi.DeviceRequest) { r.Exactly.AdminAccess = ptr.To(true) }

func ofClass(name string) reqOpt {
	return func(r *resourceapi.DeviceRequest) { r.Exactly.DeviceClassName = name }
}

func selecting(expressions ...string) reqOpt {
	return func(r *resourceapi.DeviceRequest) { r.Exactly.Selectors = selectors(expressions...) }
}

func wanting(name, v string) reqOpt {
	return func(r *resourceapi.DeviceRequest) {
		if r.Exactly.Capacity == nil {
			r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		r.Exactly.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(v)
	}
}

// first is a request whose alternatives are the given ones.
func first(name string, alternatives ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, a := range alternatives {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: a.Name, DeviceClassName: a.Exactly.DeviceClassName, Selectors: a.Exactly.Selectors,
			AllocationMode: a.Exactly.AllocationMode, Count: a.Exactly.Count,
			Tolerations: a.Exactly.Tolerations, Capacity: a.Exactly.Capacity,
		})
	}
	return r
}

func claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

func matching(c *resourceapi.ResourceClaim, attribute string, requests ...string) *resourceapi.ResourceClaim {
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{
		Requests: requests, MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(attribute)),
	})
	return c
}

func distinct(c *resourceapi.ResourceClaim, attribute string, requests ...string) *resourceapi.ResourceClaim {
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{
		Requests: requests, DistinctAttribute: ptr.To(resourceapi.FullyQualifiedName(attribute)),
	})
	return c
}

// holding is a claim to which the devices "pool/name" of driver A are allocated; "pool/name#"
// is a share, with capacities "name=value" after it.
func holding(name string, held ...string) *resourceapi.ResourceClaim {
	c := claim(name)
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, h := range held {
		h, capacities, shared := strings.Cut(h, "#")
		pool, dev, _ := strings.Cut(h, "/")
		r := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driverA, Pool: pool, Device: dev}
		if shared {
			r.ShareID = ptr.To(types.UID("share-" + name))
		}
		for _, kv := range strings.Fields(capacities) {
			k, v, _ := strings.Cut(kv, "=")
			if r.ConsumedCapacity == nil {
				r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
			}
			r.ConsumedCapacity[resourceapi.QualifiedName(k)] = resource.MustParse(v)
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
	return c
}

// scenario is a cluster with one class for all devices of driver A on node 1.
type scenario struct {
	features *Features // nil: the defaults
	classes  []*resourceapi.DeviceClass
	slices   []*resourceapi.ResourceSlice
	rules    []*resourceapi.DeviceTaintRule
	held     []*resourceapi.ResourceClaim
	node     *corev1.Node
	claims   []*resourceapi.ResourceClaim
	o        Options
}

func (s *scenario) allocator(t testing.TB) *Allocator {
	t.Helper()
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	for _, c := range s.classes {
		b.SetClass(c)
	}
	for _, sl := range s.slices {
		b.SetSlice(sl)
	}
	for _, r := range s.rules {
		b.SetTaintRule(r)
	}
	if s.node == nil {
		s.node = node(node1)
	}
	b.SetNode(s.node)
	if s.o.Features == (Features{}) {
		s.o.Features = DefaultFeatures()
	}
	if s.features != nil {
		s.o.Features = *s.features
	}
	a, err := New(b.Snapshot(), StateOf(s.held, s.o.Features), s.o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (s *scenario) allocate(t testing.TB) (Result, error) {
	t.Helper()
	a := s.allocator(t)
	before := make([]*resourceapi.ResourceClaim, len(s.claims))
	for i, c := range s.claims {
		before[i] = c.DeepCopy()
	}
	r, err := a.Allocate(t.Context(), s.node, s.claims)
	if diff := cmp.Diff(before, s.claims, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("claims were modified (-before +after):\n%s", diff)
	}
	return r, err
}

// got is the outcome in short: "request=device ..." per claim, joined with "; ", or "unfit".
func (s *scenario) got(t testing.TB) string {
	t.Helper()
	r, err := s.allocate(t)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case r.Unfit != nil:
		return "unfit"
	}
	return short(r.Allocations)
}

func short(list []resourceapi.AllocationResult) string {
	claims := make([]string, len(list))
	for i := range list {
		var devices []string
		for _, d := range list[i].Devices.Results {
			devices = append(devices, d.Request+"="+d.Device)
		}
		claims[i] = strings.Join(devices, " ")
	}
	return strings.Join(claims, "; ")
}
