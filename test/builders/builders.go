// Package builders makes API objects for tests. Builders return the plain objects: change
// the fields that matter to a test.
package builders

import (
	"fmt"
	"strings"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// UID returns a UID that depends on the words only.
func UID(words ...string) types.UID {
	return types.UID(strings.Join(words, "-") + "-uid")
}

// List returns a resource list from alternating names and quantities. It panics on malformed
// quantities, as do all builders: a test with a typo must not pass.
func List(namesAndValues ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(namesAndValues); i += 2 {
		out[corev1.ResourceName(namesAndValues[i])] = resource.MustParse(namesAndValues[i+1])
	}
	return out
}

// Namespace returns a namespace with labels from alternating keys and values.
func Namespace(name string, labels ...string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: UID("namespace", name), Labels: pairs(labels)}}
}

// Node returns a node with its hostname label and labels from alternating keys and values.
func Node(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: UID("node", name), Labels: pairs(labels)}}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelHostname] = name
	return n
}

func pairs(kv []string) map[string]string {
	if len(kv) == 0 {
		return nil
	}
	out := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = kv[i+1]
	}
	return out
}

// Quota returns a ClusterResourceQuota for the projects with the label team=<name>.
func Quota(name string, hard corev1.ResourceList) *quotav1.ClusterResourceQuota {
	return &quotav1.ClusterResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: UID("quota", name), ResourceVersion: "1"},
		Spec: quotav1.ClusterResourceQuotaSpec{
			Selector: quotav1.ClusterResourceQuotaSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}},
			Quota:    corev1.ResourceQuotaSpec{Hard: hard},
		},
	}
}

// Claim returns an unallocated claim.
func Claim(namespace, name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: UID("claim", namespace, name)},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// Template returns a claim template.
func Template(namespace, name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: UID("template", namespace, name)},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}},
	}
}

// Exactly returns a request for count devices of a class that match all selectors.
func Exactly(name, class string, count int64, selectors ...string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Selectors: Selectors(selectors...),
	}}
}

// All returns a request for all devices of a class that match all selectors.
func All(name, class string, selectors ...string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeAll, Selectors: Selectors(selectors...),
	}}
}

// FirstAvailable returns a request with alternatives.
func FirstAvailable(name string, alternatives ...resourceapi.DeviceSubRequest) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, FirstAvailable: alternatives}
}

// Sub returns an alternative for count devices; a count of 0 means all.
func Sub(name, class string, count int64, selectors ...string) resourceapi.DeviceSubRequest {
	s := resourceapi.DeviceSubRequest{
		Name: name, DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Selectors: Selectors(selectors...),
	}
	if count == 0 {
		s.AllocationMode = resourceapi.DeviceAllocationModeAll
	}
	return s
}

// Selectors returns CEL selectors, nil for none.
func Selectors(expressions ...string) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

// Capacity returns a capacity requirement from alternating names and quantities.
func Capacity(namesAndValues ...string) *resourceapi.CapacityRequirements {
	out := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	for i := 0; i < len(namesAndValues); i += 2 {
		out.Requests[resourceapi.QualifiedName(namesAndValues[i])] = resource.MustParse(namesAndValues[i+1])
	}
	return out
}

// Class returns a device class whose devices match all selectors.
func Class(name string, selectors ...string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: UID("class", name)},
		Spec:       resourceapi.DeviceClassSpec{Selectors: Selectors(selectors...)},
	}
}

// DriverClass returns a class of all devices of a driver.
func DriverClass(name, driver string) *resourceapi.DeviceClass {
	return Class(name, fmt.Sprintf("device.driver == %q", driver))
}

// Device returns a device with capacities from alternating names and quantities.
func Device(name string, capacities ...string) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	for i := 0; i < len(capacities); i += 2 {
		if d.Capacity == nil {
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
		}
		d.Capacity[resourceapi.QualifiedName(capacities[i])] = resourceapi.DeviceCapacity{Value: resource.MustParse(capacities[i+1])}
	}
	return d
}

// Text returns a string attribute.
func Text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

// Consumes returns what a device consumes of a counter set, from alternating names and quantities.
func Consumes(set string, counters ...string) resourceapi.DeviceCounterConsumption {
	return resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: Counters(counters...)}
}

// Counters returns counters from alternating names and quantities.
func Counters(namesAndValues ...string) map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for i := 0; i < len(namesAndValues); i += 2 {
		out[namesAndValues[i]] = resourceapi.Counter{Value: resource.MustParse(namesAndValues[i+1])}
	}
	return out
}

// Slice returns the only slice of a pool that is named after its node.
func Slice(driver, node string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver, UID: UID("slice", node, driver)},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node,
			Pool:    resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices: devices,
		},
	}
}

// Allocate sets the claim's allocation to the devices, each given as request, driver, pool and
// device separated by spaces.
func Allocate(claim *resourceapi.ResourceClaim, results ...string) *resourceapi.ResourceClaim {
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, r := range results {
		f := strings.Fields(r)
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: f[0], Driver: f[1], Pool: f[2], Device: f[3]})
	}
	return claim
}

// OwnedBy makes the pod the claim's controller.
func OwnedBy(claim *resourceapi.ResourceClaim, pod *corev1.Pod) *resourceapi.ResourceClaim {
	yes := true
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes}}
	return claim
}

// ReservedFor adds the pod to those that the claim is reserved for.
func ReservedFor(claim *resourceapi.ResourceClaim, pod *corev1.Pod) *resourceapi.ResourceClaim {
	claim.Status.ReservedFor = append(claim.Status.ReservedFor,
		resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	return claim
}

// Pod returns a pod with the containers.
func Pod(namespace, name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: UID("pod", namespace, name)},
		Spec:       corev1.PodSpec{Containers: containers},
	}
}

// Container returns a container that requests resources, from alternating names and quantities.
func Container(name string, requests ...string) corev1.Container {
	list := List(requests...)
	return corev1.Container{Name: name, Image: "registry.example.com/" + name, Resources: corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}}
}

// Restartable makes an init container a sidecar.
func Restartable(c corev1.Container) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}
