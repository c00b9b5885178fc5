package cluster

import (
	"fmt"
	"slices"
	"strings"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
)

// indexTarget feeds one component into the index.
type indexTarget struct {
	x         *index
	component quota.Component
}

func (t indexTarget) Set(obj client.Object, version uint64) {
	t.x.mu.Lock()
	defer t.x.mu.Unlock()
	t.x.advance(t.component, version, t.x.set(obj, version))
}

func (t indexTarget) Delete(obj client.Object, version uint64) {
	t.x.mu.Lock()
	defer t.x.mu.Unlock()
	t.x.advance(t.component, version, t.x.remove(obj))
}

func (t indexTarget) Bookmark(version uint64) {
	t.x.mu.Lock()
	defer t.x.mu.Unlock()
	t.x.advance(t.component, version, false)
}

func (t indexTarget) Replace(objs []client.Object, version uint64) {
	x := t.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.component == quota.Pods {
		clear(x.others)
	}
	listed := make(map[string]bool, len(objs))
	for _, obj := range objs {
		listed[obj.GetNamespace()+"/"+obj.GetName()] = true
		v, err := quota.ParseVersion(obj.GetResourceVersion())
		if err != nil {
			continue // the feed has parsed it
		}
		if x.set(obj, v) {
			x.recorded[t.component] = max(x.recorded[t.component], v)
		}
	}
	x.removeUnlisted(t.component, listed)
	x.advance(t.component, version, false)
}

// set takes over one object; it returns false if nothing changed that charging reads.
func (x *index) set(obj client.Object, version uint64) bool {
	switch o := obj.(type) {
	case *resourceapi.ResourceClaim:
		return x.setObject(&object{name: objectName{quota.Claims, o.Namespace, o.Name}, uid: o.UID, version: version, claim: o})
	case *corev1.Pod:
		if !usesDevices(o) {
			x.others[o.UID] = struct{}{}
			return false
		}
		return x.setObject(&object{name: objectName{quota.Pods, o.Namespace, o.Name}, uid: o.UID, version: version, pod: o})
	case *metav1.PartialObjectMetadata:
		x.setProject(o, version)
	case *quotav1.ClusterResourceQuota:
		return x.setQuota(o)
	}
	return true
}

// remove forgets one object; it returns false if the object did not matter for charging.
func (x *index) remove(obj client.Object) bool {
	switch o := obj.(type) {
	case *resourceapi.ResourceClaim:
		x.removeUID(o)
	case *corev1.Pod:
		if _, other := x.others[o.UID]; other {
			delete(x.others, o.UID)
			return false
		}
		x.removeUID(o)
	case *metav1.PartialObjectMetadata:
		if p := x.projects[o.Name]; p != nil {
			x.removeProject(p)
		}
	case *quotav1.ClusterResourceQuota:
		x.removeQuota(o.Name)
	}
	return true
}

// removeUID forgets a claim or pod. Also one that was never seen alive is gone for good.
func (x *index) removeUID(obj client.Object) {
	if o := x.objects[obj.GetUID()]; o != nil {
		x.removeObject(o)
		return
	}
	x.noteGone(obj.GetUID())
}

// removeUnlisted forgets what a full list does not have.
func (x *index) removeUnlisted(c quota.Component, listed map[string]bool) {
	switch c {
	case quota.Claims, quota.Pods:
		for name, o := range x.names {
			if name.component == c && !listed[name.namespace+"/"+name.name] {
				x.removeObject(o)
			}
		}
	case quota.Namespaces:
		for name, p := range x.projects {
			if p.known && !listed["/"+name] {
				x.removeProject(p)
			}
		}
	case quota.Quotas:
		for name := range x.accounts {
			if !listed["/"+name] {
				x.removeQuota(name)
			}
		}
	}
}

// podOf keeps of a pod what charging reads.
func podOf(obj runtime.Object) (client.Object, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("received a %T", obj)
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	out.Spec.InitContainers, out.Spec.Containers = stripContainers(pod.Spec.InitContainers), stripContainers(pod.Spec.Containers)
	out.Spec.Overhead, out.Spec.Resources, out.Spec.ResourceClaims = pod.Spec.Overhead, pod.Spec.Resources, pod.Spec.ResourceClaims
	out.Spec.NodeName = pod.Spec.NodeName
	out.Status.Phase = pod.Status.Phase
	out.Status.ExtendedResourceClaimStatus = pod.Status.ExtendedResourceClaimStatus
	out.Status.ResourceClaimStatuses = pod.Status.ResourceClaimStatuses
	return out, nil
}

func stripContainers(cs []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, 0, len(cs))
	for _, c := range cs {
		out = append(out, corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return out
}

// usesDevices tells whether a pod may be charged or may have a hold. What it depends on is
// immutable, so that a pod is always one or the other.
func usesDevices(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || asksExtended(pod)
}

// asksExtended tells whether a container asks for what may be an extended resource.
func asksExtended(pod *corev1.Pod) bool {
	uses := func(c corev1.Container) bool { return extended(c.Resources.Requests) || extended(c.Resources.Limits) }
	return slices.ContainsFunc(pod.Spec.Containers, uses) || slices.ContainsFunc(pod.Spec.InitContainers, uses)
}

// extended tells whether a resource in the list may be one that devices serve.
func extended(l corev1.ResourceList) bool {
	for name := range l {
		domain, _, qualified := strings.Cut(string(name), "/")
		if qualified && domain != "kubernetes.io" {
			return true
		}
	}
	return false
}

// equalClaims tells whether two versions of a claim cost the same.
func equalClaims(a, b *resourceapi.ResourceClaim) bool {
	return equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		equality.Semantic.DeepEqual(a.Status.Allocation, b.Status.Allocation) &&
		equality.Semantic.DeepEqual(a.Status.ReservedFor, b.Status.ReservedFor) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

func sortedAccounts(accounts map[string]*account) []*account {
	out := make([]*account, 0, len(accounts))
	for _, a := range accounts {
		out = append(out, a)
	}
	slices.SortFunc(out, compareAccounts)
	return out
}
