package scenarios

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/scenario"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
)

// world is the API server during one scenario. It plays the controllers, too: what the
// offline run's controllers asked for is asked for again, and what they took away is taken away.
type world struct {
	*server
	openshift bool
	// created are all claims in the order of their creation, which their timestamps do not tell.
	created []types.NamespacedName
}

// beside is a scenario.Beside: it returns how the API server differs from the cluster.
func (w *world) beside(ctx context.Context, c *sim.Cluster, step *scenario.Step, requests []sim.Request) (lines []string, err error) {
	switch {
	case step.Verb() == "apply":
		err = w.apply(ctx, step)
	case step.Allocate != nil && step.Allocate.Claim == "":
		lines, err = w.allocate(ctx, c)
	case step.Usage != nil:
		lines, err = w.usage(ctx, c, step.Usage)
	}
	if err != nil || len(lines) > 0 {
		return lines, err
	}
	var versions quota.Vector
	for i := range requests {
		found, err := w.request(ctx, c, &requests[i], &versions)
		if err != nil || len(found) > 0 {
			r := &requests[i]
			return append([]string{fmt.Sprintf("%s %s as %s, offline (-) and on the API server (+):", r.Operation, r.Result.Object, r.User.Username)}, found...), err
		}
	}
	if err := w.control(ctx, c); err != nil {
		return nil, fmt.Errorf("controllers: %w", err)
	}
	if versions != (quota.Vector{}) {
		if err := seen(ctx, versions); err != nil {
			return nil, err
		}
	} else if step.Verb() != "apply" {
		return nil, nil
	}
	return w.settled(ctx, c)
}

// apply makes the step's objects what exists. Unlike offline this is a request of an
// administrator, which the webhooks must not refuse.
func (w *world) apply(ctx context.Context, step *scenario.Step) error {
	var versions quota.Vector
	for _, d := range step.Objects() {
		u, err := asUnstructured(d.Object)
		if err != nil {
			return err
		}
		status, hasStatus, err := statusOf(d.Object)
		if err != nil {
			return err
		}
		old := empty(u)
		err = cp.Client.Get(ctx, client.ObjectKeyFromObject(u), old)
		switch {
		case apierrors.IsNotFound(err):
			err = cp.Client.Create(ctx, u)
		case err == nil:
			u.SetResourceVersion(old.GetResourceVersion())
			u.SetFinalizers(old.GetFinalizers())
			keepNamespace(u, old)
			err = onceMore(ctx, u, func() error { return cp.Client.Update(ctx, u) })
		}
		if err == nil && hasStatus {
			u.Object["status"] = status
			err = onceMore(ctx, u, func() error { return cp.Client.Status().Update(ctx, u) })
		}
		if err != nil {
			return fmt.Errorf("apply of %s: %w", sim.RefOf(d.Object), err)
		}
		if u.GetKind() == "ResourceClaim" {
			w.created = append(w.created, types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()})
		}
		if err := note(&versions, u.GetKind(), u.GetResourceVersion()); err != nil {
			return err
		}
	}
	return seen(ctx, versions)
}

// keepNamespace keeps the finalizer of a namespace, which is in its spec.
func keepNamespace(u, old *unstructured.Unstructured) {
	if u.GetKind() == "Namespace" {
		u.Object["spec"] = old.Object["spec"]
	}
}

// statusOf returns the status that the object has in its file.
func statusOf(obj runtime.Object) (any, bool, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, false, err
	}
	zero, err := runtime.DefaultUnstructuredConverter.ToUnstructured(newOf(obj))
	if err != nil {
		return nil, false, err
	}
	return content["status"], !equality.Semantic.DeepEqual(content["status"], zero["status"]), nil
}

// empty returns an object of the kind of u.
func empty(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(u.GroupVersionKind())
	return out
}

// request makes one request again and returns what differs.
func (w *world) request(ctx context.Context, c *sim.Cluster, r *sim.Request, versions *quota.Vector) ([]string, error) {
	u, err := w.object(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := w.makeRoom(ctx, r, u); err != nil {
		return nil, err
	}
	got, id, err := w.ask(ctx, r, u)
	if err != nil {
		return nil, err
	}
	want := r.Result
	if got.Message == serversOwn && !want.Allowed {
		want.Message = serversOwn
	}
	lines := differences(&want, &got)
	if r.Operation == admissionv1.Create && slices.Contains([]string{"Pod", "ResourceClaim"}, got.Object.Kind) {
		charge, err := audit.charge(ctx, id)
		if err != nil {
			return nil, err
		}
		lines = append(lines, compare("charge", chargeText(want.Charge), charge)...)
	}
	if len(lines) > 0 || !got.Allowed || r.Operation == admissionv1.Delete {
		return lines, nil
	}
	if got.Object.Kind == "ResourceClaim" {
		key := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
		if r.Operation == admissionv1.Create {
			w.created = append(w.created, key)
		}
		return w.stored(ctx, c, key)
	}
	return nil, note(versions, u.GetKind(), u.GetResourceVersion())
}

// makeRoom takes away what had the name before: controllers replace pods, and their claims.
func (w *world) makeRoom(ctx context.Context, r *sim.Request, u *unstructured.Unstructured) error {
	if r.Operation != admissionv1.Create || r.Result.Reason == string(metav1.StatusReasonAlreadyExists) {
		return nil
	}
	key := client.ObjectKeyFromObject(u)
	switch u.GetKind() {
	case "Pod":
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		return client.IgnoreNotFound(cp.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	case "ResourceClaim":
		claim := &resourceapi.ResourceClaim{}
		if err := cp.Client.Get(ctx, key, claim); err != nil {
			return client.IgnoreNotFound(err)
		}
		return remove(ctx, claim)
	}
	return nil
}

// object returns what to ask for, with the names and UIDs that things have on the API server.
func (w *world) object(ctx context.Context, r *sim.Request) (*unstructured.Unstructured, error) {
	if r.Operation == admissionv1.Delete {
		u := &unstructured.Unstructured{}
		gvk, err := gvkOf(r.Result.Object)
		if err != nil {
			return nil, err
		}
		u.SetGroupVersionKind(gvk)
		u.SetNamespace(r.Result.Object.Namespace)
		u.SetName(r.Result.Object.Name)
		return u, nil
	}
	u, err := asUnstructured(r.Object)
	if err != nil {
		return nil, err
	}
	u.SetName(r.Result.Object.Name) // the offline run's choice where a name is generated
	u.SetGenerateName("")
	owners := u.GetOwnerReferences()
	for i := range owners {
		if owners[i].UID, err = w.uidOf(ctx, u.GetNamespace(), &owners[i]); err != nil {
			return nil, err
		}
	}
	if len(owners) > 0 {
		u.SetOwnerReferences(owners)
	}
	if r.Operation == admissionv1.Update {
		old := empty(u)
		if err := cp.Client.Get(ctx, client.ObjectKeyFromObject(u), old); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		u.SetResourceVersion(old.GetResourceVersion())
		u.SetFinalizers(old.GetFinalizers())
	}
	return u, nil
}

// uidOf returns the UID of the owner on the API server; the offline run has others.
func (w *world) uidOf(ctx context.Context, namespace string, owner *metav1.OwnerReference) (types.UID, error) {
	m := &metav1.PartialObjectMetadata{}
	m.APIVersion, m.Kind = owner.APIVersion, owner.Kind
	err := cp.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, m)
	if apierrors.IsNotFound(err) {
		return owner.UID, nil
	}
	return m.UID, err
}

// stored compares a claim that was admitted as it is stored: what the webhooks made of it.
func (w *world) stored(ctx context.Context, c *sim.Cluster, key types.NamespacedName) ([]string, error) {
	got := &resourceapi.ResourceClaim{}
	if err := cp.Client.Get(ctx, key, got); err != nil {
		return nil, err
	}
	want := c.Claim(key)
	if want == nil {
		return nil, nil // gone again in the same step
	}
	lines := compare("spec", want.Spec, got.Spec)
	lines = append(lines, compare("labels", want.Labels, got.Labels)...)
	return append(lines, compare("annotations", want.Annotations, got.Annotations)...), nil
}

// control plays the scheduler and the controllers: objects that the offline run's cluster has
// no longer go, and claims get the status that they have there.
func (w *world) control(ctx context.Context, c *sim.Cluster) error {
	var pods corev1.PodList
	if err := cp.Client.List(ctx, &pods); err != nil {
		return err
	}
	uids := map[types.NamespacedName]types.UID{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		uids[client.ObjectKeyFromObject(pod)] = pod.UID
		if !c.Exists(pod) {
			if err := cp.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
				return err
			}
		}
	}
	var claims resourceapi.ResourceClaimList
	if err := cp.Client.List(ctx, &claims); err != nil {
		return err
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if err := w.follow(ctx, claim, c.Claim(client.ObjectKeyFromObject(claim)), uids); err != nil {
			return fmt.Errorf("resourceclaim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return nil
}

// follow makes one claim what the offline run has, nil for nothing.
func (w *world) follow(ctx context.Context, claim, want *resourceapi.ResourceClaim, uids map[types.NamespacedName]types.UID) error {
	if want == nil {
		return remove(ctx, claim)
	}
	status := want.Status.DeepCopy()
	for i := range status.ReservedFor {
		r := &status.ReservedFor[i]
		r.UID = cmp.Or(uids[types.NamespacedName{Namespace: claim.Namespace, Name: r.Name}], r.UID)
	}
	if !slices.Equal(claim.Finalizers, want.Finalizers) && status.Allocation != nil {
		claim.Finalizers = want.Finalizers
		if err := cp.Client.Update(ctx, claim); err != nil {
			return err
		}
	}
	if !equality.Semantic.DeepEqual(&claim.Status, status) {
		claim.Status = *status
		if err := cp.Client.Status().Update(ctx, claim); err != nil {
			return err
		}
	}
	if !slices.Equal(claim.Finalizers, want.Finalizers) {
		claim.Finalizers = want.Finalizers
		return cp.Client.Update(ctx, claim)
	}
	return nil
}

// remove deletes a claim as the claim controller does: without devices first.
func remove(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if claim.DeletionTimestamp == nil {
		if err := cp.Client.Delete(ctx, claim); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	err := cp.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if claim.Status.Allocation != nil {
		claim.Status = resourceapi.ResourceClaimStatus{}
		if err := cp.Client.Status().Update(ctx, claim); err != nil {
			return err
		}
	}
	claim.Finalizers = nil
	return client.IgnoreNotFound(cp.Client.Update(ctx, claim))
}
