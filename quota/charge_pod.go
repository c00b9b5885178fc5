package quota

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Terminal returns true if the pod has ended: it uses nothing any more.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Pod returns what a pod's extended resources that a DeviceClass backs cost the quota, as the
// scheduler will claim them, plus the one claim object. A pod without any, or a terminal one,
// costs nothing. On a node where a device plugin serves the resource no claim is ever made:
// that is not known at admission, and the charge stays.
func (c *Charger) Pod(pod *corev1.Pod, q *Quota) (Charge, error) {
	if Terminal(pod) {
		return Charge{Amounts: corev1.ResourceList{}}, nil
	}
	spec := c.PodClaim(pod)
	if spec == nil {
		return Charge{Amounts: corev1.ResourceList{}}, nil
	}
	return c.Requested(spec, q)
}

// CountPod returns what an existing pod counts for in the recount. A pod whose claim is
// Recognised and observed counts nothing: the claim is charged in its stead. computed is as
// Claim's; it is false, too, when no class serves the pod's resources, so that it counts as remembered.
func (c *Charger) CountPod(pod *corev1.Pod, q *Quota, remembered corev1.ResourceList) (charge corev1.ResourceList, computed bool) {
	if Terminal(pod) {
		return corev1.ResourceList{}, true
	}
	spec := c.PodClaim(pod)
	if spec == nil {
		return Copy(remembered), false
	}
	return c.Claim(&resourceapi.ResourceClaim{Spec: *spec}, q, remembered)
}

// Recognised returns true if the claim is the one that the scheduler made for the pod's
// extended resources: the pod's status names it, and the claim's controller reference is the
// pod. Tenants can write the annotation, owner references and, through templates, both, but
// not a pod's status.
func Recognised(claim *resourceapi.ResourceClaim, pod *corev1.Pod) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	owner := podOwner(claim)
	return s != nil && owner != nil && claim.Namespace == pod.Namespace &&
		s.ResourceClaimName == claim.Name && owner.UID == pod.UID && owner.Name == pod.Name
}

// ExtendedResourceOwner returns the name and UID of the pod that a claim says it was made for
// by the scheduler; ok is false for other claims. It proves nothing: see Recognised.
func ExtendedResourceOwner(claim *resourceapi.ResourceClaim) (pod corev1.ObjectReference, ok bool) {
	owner := podOwner(claim)
	if owner == nil || claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" {
		return corev1.ObjectReference{}, false
	}
	return corev1.ObjectReference{Kind: "Pod", Namespace: claim.Namespace, Name: owner.Name, UID: owner.UID}, true
}

// PodClaim returns the spec of the claim that the scheduler makes for a pod's extended
// resources on a node without a device plugin for them; nil when no class serves any.
//
// Long-lived containers (regular and restartable init containers) have a request each. Init
// containers run one after the other: each uses the devices of the long-lived containers that
// start after it, and what the largest needs beyond that is one request more.
// Source: createRequestsAndMappings in pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go (v1.37).
func (c *Charger) PodClaim(pod *corev1.Pod) *resourceapi.ResourceClaimSpec {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	names := map[corev1.ResourceName]string{} // extended resource -> class
	for i := range containers {
		for name := range requestsOf(&containers[i]) {
			if _, done := names[name]; done {
				continue
			}
			if _, ours, err := ParseKey(requestsPrefix + name); !ours || err != nil {
				continue
			}
			if class := c.inv.ExtendedResourceClass(name); class != nil {
				names[name] = class.Name
			}
		}
	}
	var spec resourceapi.ResourceClaimSpec
	for _, name := range SortedKeys(asList(names)) {
		spec.Devices.Requests = append(spec.Devices.Requests, resourceRequests(containers, len(pod.Spec.InitContainers), name, names[name])...)
	}
	if len(spec.Devices.Requests) == 0 {
		return nil
	}
	slices.SortStableFunc(spec.Devices.Requests, func(a, b resourceapi.DeviceRequest) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return &spec
}

func asList(m map[corev1.ResourceName]string) corev1.ResourceList {
	out := make(corev1.ResourceList, len(m))
	for k := range m {
		out[k] = quantity(0)
	}
	return out
}

// resourceRequests returns the requests for one extended resource. The first inits containers are init containers.
func resourceRequests(containers []corev1.Container, inits int, name corev1.ResourceName, class string) []resourceapi.DeviceRequest {
	var out []resourceapi.DeviceRequest
	largest, largestAt := int64(0), -1
	later := int64(0) // devices of the long-lived containers from here on
	for i := len(containers) - 1; i >= 0; i-- {
		count := devicesOf(&containers[i], name)
		if i >= inits || restartable(&containers[i]) {
			later = saturate(later, count)
			if count > 0 {
				out = append(out, podRequest(&containers[i], i, name, class, count))
			}
			continue
		}
		// Of equal ones the first is taken.
		if extra := count - min(count, later); extra > 0 && extra >= largest {
			largest, largestAt = extra, i
		}
	}
	if largestAt >= 0 {
		out = append(out, podRequest(&containers[largestAt], largestAt, name, class, largest))
	}
	return out
}

func restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// requestsOf returns what a container requests: its limits where it does not say, as the API
// server defaults it.
func requestsOf(c *corev1.Container) corev1.ResourceList {
	out := c.Resources.Requests
	for name, limit := range c.Resources.Limits {
		if _, ok := out[name]; ok {
			continue
		}
		if len(out) == len(c.Resources.Requests) {
			out = Copy(out)
		}
		out[name] = limit
	}
	return out
}

// devicesOf returns how many of the extended resource a container requests.
func devicesOf(c *corev1.Container, name corev1.ResourceName) int64 {
	q, ok := requestsOf(c)[name]
	if !ok || q.Sign() <= 0 {
		return 0
	}
	if n, ok := q.AsInt64(); ok {
		return n
	}
	if q.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return q.Value()
}

func saturate(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// podRequest names the request as the scheduler does.
func podRequest(c *corev1.Container, index int, name corev1.ResourceName, class string, count int64) resourceapi.DeviceRequest {
	at := slices.Index(SortedKeys(requestsOf(c)), name)
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", index, at),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		},
	}
}
