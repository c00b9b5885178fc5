package sim

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
)

// Update asks for the object's replacement as the user. The status stays what it is.
func (c *Cluster) Update(ctx context.Context, obj runtime.Object, user authenticationv1.UserInfo) (Result, error) {
	if w, ok, err := c.workloadOf(obj); ok || err != nil {
		if err != nil {
			return Result{}, err
		}
		return c.updateWorkload(ctx, obj, w, user)
	}
	c.clock.advance(time.Second)
	ref := RefOf(obj)
	a := &attempt{user: user, op: admissionv1.Update, Result: Result{Object: ref, Allowed: true, Code: http.StatusOK}}
	if c.o.Follow != nil {
		defer c.tell(a.op, obj.DeepCopyObject(), user, &a.Result)
	}
	old := c.stored(ref)
	if old == nil {
		a.refuse(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resourceOf(ref.Kind), ref.Name))
		return a.Result, nil
	}
	var err error
	if a.obj, err = inV1(c.api, obj); err != nil {
		return Result{}, err
	}
	a.old = old.DeepCopyObject()
	gvk := a.obj.GetObjectKind().GroupVersionKind()
	a.old.GetObjectKind().SetGroupVersionKind(gvk)
	if err := inherit(a.obj, a.old); err != nil {
		return Result{}, err
	}
	if err := c.admit(ctx, a); err != nil || !a.Allowed {
		return a.Result, err
	}
	return a.Result, c.keep(ctx, a)
}

// inV1 returns claims and templates in v1, with defaults, and anything else as it is.
func inV1(api *devices.API, obj runtime.Object) (runtime.Object, error) {
	switch kindOf(obj) {
	case "ResourceClaim":
		claim, err := api.Claim(obj)
		if err != nil {
			return nil, err
		}
		claim.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"))
		return claim, nil
	case "ResourceClaimTemplate":
		t, err := api.Template(obj)
		if err != nil {
			return nil, err
		}
		t.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"))
		return t, nil
	}
	return obj, nil
}

// inherit sets what an update cannot change.
func inherit(obj, old runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	before, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	m.SetUID(before.GetUID())
	m.SetCreationTimestamp(before.GetCreationTimestamp())
	m.SetDeletionTimestamp(before.GetDeletionTimestamp())
	m.SetResourceVersion(before.GetResourceVersion())
	switch o := obj.(type) {
	case *resourceapi.ResourceClaim:
		if was, ok := old.(*resourceapi.ResourceClaim); ok {
			o.Status = *was.Status.DeepCopy()
			o.Finalizers = was.Finalizers
		}
	case *corev1.Pod:
		if was, ok := old.(*corev1.Pod); ok {
			o.Status = *was.Status.DeepCopy()
		}
	}
	return nil
}

// claimSpecOf returns the spec of a claim, or of the claims of a template; nil for others.
func claimSpecOf(obj runtime.Object) *resourceapi.ResourceClaimSpec {
	switch o := obj.(type) {
	case *resourceapi.ResourceClaim:
		return &o.Spec
	case *resourceapi.ResourceClaimTemplate:
		return &o.Spec.Spec
	}
	return nil
}

func sameSpec(api *devices.API, a, b runtime.Object) bool {
	x, err := inV1(api, a.DeepCopyObject())
	if err != nil {
		return false
	}
	y, err := inV1(api, b.DeepCopyObject())
	if err != nil {
		return false
	}
	return equality.Semantic.DeepEqual(claimSpecOf(x), claimSpecOf(y))
}

// Delete removes an object as the user, and what belongs to it: the pods of a workload, the
// claims made for a pod, all of a namespace. A claim that pods use stays until they are gone.
func (c *Cluster) Delete(ctx context.Context, ref Ref) (r Result, err error) {
	if c.o.Follow != nil {
		defer func() { c.tell(admissionv1.Delete, nil, User("", nil), &r) }()
	}
	c.clock.advance(time.Second)
	r = Result{Object: ref, Allowed: true, Code: http.StatusOK}
	if m := c.made[workloadKey(ref)]; m != nil {
		delete(c.made, workloadKey(ref))
		for _, pod := range m.pods {
			c.deletePod(ref.Namespace, pod)
		}
		return r, c.settleAll(ctx)
	}
	if !c.remove(ref) {
		r.Allowed, r.Code, r.Reason = false, http.StatusNotFound, string(metav1.StatusReasonNotFound)
		r.Message = fmt.Sprintf("%s %q not found", resourceOf(ref.Kind), ref.Name)
		return r, nil
	}
	if ref.Kind == "ClusterResourceQuota" {
		if _, _, err := c.ledger.Remove(ctx, ref.Name); err != nil {
			return r, err
		}
	}
	return r, c.settleAll(ctx)
}

// remove forgets the object; false when there is none.
func (c *Cluster) remove(ref Ref) bool {
	switch ref.Kind {
	case "Pod":
		return c.deletePod(ref.Namespace, ref.Name)
	case "ResourceClaim":
		return c.deleteClaim(ref.Namespace, ref.Name)
	}
	s := c.state
	if c.stored(ref) == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch ref.Kind {
	case "Namespace":
		s.deleteNamespaceLocked(ref.Name)
		maps.DeleteFunc(c.made, func(key types.NamespacedName, _ *made) bool {
			_, namespace, _ := strings.Cut(key.Namespace, "/")
			return namespace == ref.Name
		})
		c.waiting = slices.DeleteFunc(c.waiting, func(w podClaim) bool { return w.pod.Namespace == ref.Name })
	case "ClusterResourceQuota":
		s.changedLocked(quota.Quotas)
		delete(s.crqs, ref.Name)
		delete(s.accounts, ref.Name)
	case "DeviceClass":
		s.changedLocked(quota.Classes)
		s.builder.DeleteClass(ref.Name)
	case "ResourceSlice":
		s.changedLocked(quota.Slices)
		s.builder.DeleteSlice(ref.Name)
		delete(s.slices, ref.Name)
	case "DeviceTaintRule":
		s.changedLocked(quota.Slices)
		s.builder.DeleteTaintRule(ref.Name)
		delete(s.rules, ref.Name)
	case "Node":
		s.changedLocked(quota.Nodes)
		s.builder.DeleteNode(ref.Name)
		c.nodes = slices.DeleteFunc(c.nodes, func(n string) bool { return n == ref.Name })
	case "ResourceClaimTemplate":
		delete(s.templates, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	default:
		return false
	}
	return true
}

func (s *state) deleteNamespaceLocked(n string) {
	p := s.projects[n]
	for _, uid := range slices.Sorted(maps.Keys(p.objects)) {
		s.removeObjectLocked(p.objects[uid])
	}
	s.changedLocked(quota.Namespaces)
	delete(s.projects, n)
	for key := range s.templates {
		if key.Namespace == n {
			delete(s.templates, key)
		}
	}
	s.recoverLocked()
}

// deletePod removes a pod, its claims, and its reservations of others.
func (c *Cluster) deletePod(namespace, n string) bool {
	o := c.state.get(quota.Pods, namespace, n)
	if o == nil {
		return false
	}
	c.state.mu.Lock()
	c.state.removeObjectLocked(o)
	var mine []*resourceapi.ResourceClaim
	for _, other := range c.state.projectLocked(namespace).objects {
		if other.claim != nil {
			mine = append(mine, other.claim)
		}
	}
	c.state.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(w podClaim) bool { return w.pod.UID == o.uid })
	slices.SortFunc(mine, func(a, b *resourceapi.ResourceClaim) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, claim := range mine {
		uses := func(r resourceapi.ResourceClaimConsumerReference) bool { return r.Resource == "pods" && r.UID == o.uid }
		if slices.ContainsFunc(claim.Status.ReservedFor, uses) {
			claim = claim.DeepCopy()
			claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, uses)
			c.setClaim(claim)
		}
		owner := metav1.GetControllerOfNoCopy(claim)
		if owner != nil && owner.UID == o.uid || claim.DeletionTimestamp != nil {
			c.deleteClaim(namespace, claim.Name)
		}
	}
	return true
}

// deleteClaim removes a claim, or marks it as being deleted while pods use it.
func (c *Cluster) deleteClaim(namespace, n string) bool {
	o := c.state.get(quota.Claims, namespace, n)
	if o == nil {
		return false
	}
	if len(o.claim.Status.ReservedFor) == 0 {
		c.state.mu.Lock()
		defer c.state.mu.Unlock()
		c.state.removeObjectLocked(o)
		return true
	}
	claim := o.claim.DeepCopy()
	now := metav1.NewTime(c.clock.Now())
	claim.DeletionTimestamp = &now
	c.setClaim(claim)
	return true
}

func (c *Cluster) setClaim(claim *resourceapi.ResourceClaim) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.setClaimLocked(claim)
}
