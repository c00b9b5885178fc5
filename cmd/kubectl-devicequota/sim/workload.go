package sim

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/quota"
)

// MaxPods is how many pods one workload may have: more are a mistake in a manifest rather than a question.
const MaxPods = 10_000

// TooManyPodsError tells of a workload with more than MaxPods.
type TooManyPodsError struct {
	Object Ref
	Pods   int64
}

// Error implements error.
func (e *TooManyPodsError) Error() string {
	return fmt.Sprintf("%s has %d pods; at most %d are checked", e.Object, e.Pods, MaxPods)
}

// workload is what pods are made from.
type workload struct {
	template corev1.PodTemplateSpec
	count    int64
	// name of the i-th pod.
	name func(i int) string
	// fixed tells that pods cannot have other names.
	fixed bool
}

// made is a workload that exists.
type made struct {
	// template of its pods, nil when it is not known.
	template *corev1.PodTemplateSpec
	// pods that its controller made, or tried to make, the oldest first.
	pods []string
	// refused are those of them that, or whose claims, were not admitted.
	refused map[string]bool
}

// workloadKey names a workload among all kinds.
func workloadKey(r Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Kind + "/" + r.Namespace, Name: r.Name}
}

// workloadOf returns what the object's controller makes; ok is false when it is no workload.
func (c *Cluster) workloadOf(obj runtime.Object) (w workload, ok bool, err error) {
	ref := RefOf(obj)
	w = workload{name: func(i int) string { return podName(ref.Name, strconv.Itoa(i)) }}
	switch o := obj.(type) {
	case *appsv1.Deployment:
		w.template, w.count = o.Spec.Template, int64(ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.ReplicaSet:
		w.template, w.count = o.Spec.Template, int64(ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.StatefulSet:
		w.template, w.count, w.fixed = o.Spec.Template, int64(ptr.Deref(o.Spec.Replicas, 1)), true
		first := 0
		if o.Spec.Ordinals != nil {
			first = int(o.Spec.Ordinals.Start)
		}
		w.name = func(i int) string { return fmt.Sprintf("%s-%d", ref.Name, first+i) }
	case *appsv1.DaemonSet:
		nodes := c.nodesFor(&o.Spec.Template)
		w.template, w.count = o.Spec.Template, int64(len(nodes))
		w.name = func(i int) string { return podName(ref.Name, nodes[i]) }
	case *batchv1.Job:
		w.template, w.count = o.Spec.Template, jobPods(&o.Spec)
	case *batchv1.CronJob:
		spec := o.Spec.JobTemplate.Spec
		w.template, w.count = spec.Template, jobPods(&spec)
		if ptr.Deref(o.Spec.Suspend, false) {
			w.count = 0
		}
	default:
		return w, false, nil
	}
	if w.count > MaxPods {
		return w, true, &TooManyPodsError{Object: ref, Pods: w.count}
	}
	return w, true, nil
}

// pod returns the i-th pod of the workload.
func (w *workload) pod(ref Ref, n string) *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
	pod.Name, pod.GenerateName, pod.Namespace = n, "", ref.Namespace
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: "workload", Controller: ptr.To(true)}}
	return pod
}

// jobPods returns how many pods a job runs at the same time.
func jobPods(spec *batchv1.JobSpec) int64 {
	if ptr.Deref(spec.Suspend, false) {
		return 0
	}
	n := int64(ptr.Deref(spec.Parallelism, 1))
	if spec.Completions != nil {
		n = min(n, int64(*spec.Completions))
	}
	return n
}

// nodesFor returns the nodes that a DaemonSet's pods go to by node selector and affinity.
func (c *Cluster) nodesFor(template *corev1.PodTemplateSpec) []string {
	wanted := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: template.Spec})
	inventory := c.state.inventory()
	var out []string
	for _, n := range c.nodes {
		if ok, err := wanted.Match(inventory.Node(n)); err == nil && ok {
			out = append(out, n)
		}
	}
	return out
}

// createWorkload makes the workload and its pods, one after the other. All are tried, as their
// controllers do.
func (c *Cluster) createWorkload(ctx context.Context, obj runtime.Object, w workload, user authenticationv1.UserInfo) (Result, error) {
	r, err := c.newWorkload(obj, w)
	if err != nil {
		return r, err
	}
	if c.o.Follow != nil {
		c.tell(admissionv1.Create, obj.DeepCopyObject(), user, &r)
	}
	if !r.Allowed {
		return r, nil
	}
	return r, c.scale(ctx, &r, obj, w, false)
}

// newWorkload makes the workload itself, or refuses it.
func (c *Cluster) newWorkload(obj runtime.Object, w workload) (Result, error) {
	ref := RefOf(obj)
	a := &attempt{Result: Result{Object: ref, Allowed: true, Code: http.StatusCreated, Pods: &Pods{}}}
	m, err := meta.Accessor(obj)
	if err != nil {
		return a.Result, err
	}
	if m.GetName() == "" && m.GetGenerateName() != "" {
		c.state.mu.Lock()
		c.state.version++
		a.Object.Name = fmt.Sprintf("%s%05d", m.GetGenerateName(), c.state.version)
		c.state.mu.Unlock()
		ref = a.Object
		m = &metav1.ObjectMeta{Name: ref.Name}
	}
	if err := c.ensureNamespace(ref.Namespace); err != nil {
		a.refuse(http.StatusNotFound, metav1.StatusReasonNotFound, err.Error())
		return a.Result, nil
	}
	if problem := validName(m); problem != "" {
		a.refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, problem)
		return a.Result, nil
	}
	if c.made[workloadKey(ref)] != nil {
		a.refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%s %q already exists", resourceOf(ref.Kind), ref.Name))
		return a.Result, nil
	}
	c.made[workloadKey(ref)] = &made{template: &w.template, refused: map[string]bool{}}
	return a.Result, nil
}

// Adopt makes existing pods, which are applied, those of a workload: it exists from then on, and
// asking for it again is an Update. The template of its pods counts as the one it had.
func (c *Cluster) Adopt(ref Ref, pods []string) {
	c.made[workloadKey(ref)] = &made{pods: slices.Clone(pods), refused: map[string]bool{}}
}

// updateWorkload makes the pods of a workload what its new spec says. Pods of another template
// are replaced, one after the other, but for those of a ReplicaSet; a CronJob changes its next
// run only.
func (c *Cluster) updateWorkload(ctx context.Context, obj runtime.Object, w workload, user authenticationv1.UserInfo) (Result, error) {
	r, replace := c.changeWorkload(RefOf(obj), &w)
	if c.o.Follow != nil {
		c.tell(admissionv1.Update, obj.DeepCopyObject(), user, &r)
	}
	if !r.Allowed {
		return r, nil
	}
	return r, c.scale(ctx, &r, obj, w, replace)
}

// changeWorkload changes the workload itself, or refuses it; replace tells that its pods are to
// be replaced.
func (c *Cluster) changeWorkload(ref Ref, w *workload) (r Result, replace bool) {
	a := &attempt{Result: Result{Object: ref, Allowed: true, Code: http.StatusOK, Pods: &Pods{}}}
	m := c.made[workloadKey(a.Object)]
	if m == nil {
		a.refuse(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", resourceOf(a.Object.Kind), a.Object.Name))
		return a.Result, false
	}
	replace = m.template != nil && !equality.Semantic.DeepEqual(*m.template, w.template)
	switch {
	case replace && a.Object.Kind == "Job":
		a.refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			fmt.Sprintf("Job.batch %q is invalid: spec.template: Invalid value: field is immutable", a.Object.Name))
		return a.Result, false
	case a.Object.Kind == "CronJob":
		w.count = int64(len(m.pods))
		replace = false
	case a.Object.Kind == "ReplicaSet":
		replace = false
	}
	m.template = &w.template
	return a.Result, replace
}

// scale deletes the pods that are too many and makes those that are missing or were refused
// before; with replace, all.
func (c *Cluster) scale(ctx context.Context, r *Result, obj runtime.Object, w workload, replace bool) error {
	m := c.made[workloadKey(r.Object)]
	count := int(max(w.count, 0))
	for i := len(m.pods) - 1; i >= count; i-- {
		c.deletePod(r.Object.Namespace, m.pods[i])
	}
	m.pods = m.pods[:min(count, len(m.pods))]
	for i := range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i == len(m.pods) {
			n := w.name(i)
			if !w.fixed {
				n = c.freeName(quota.Pods, r.Object.Namespace, n)
			}
			m.pods = append(m.pods, n)
		} else if !replace && !m.refused[m.pods[i]] && c.state.get(quota.Pods, r.Object.Namespace, m.pods[i]) != nil {
			r.Pods.Admitted++
			continue
		} else {
			c.deletePod(r.Object.Namespace, m.pods[i])
		}
		made, err := c.Create(ctx, w.pod(r.Object, m.pods[i]), workloadUser(obj))
		if err != nil {
			return err
		}
		m.refused[m.pods[i]] = !made.Allowed
		r.add(made)
	}
	return c.settleAll(ctx)
}

// workloadUser is the controller that makes the pods of the object.
func workloadUser(obj runtime.Object) authenticationv1.UserInfo {
	switch obj.(type) {
	case *appsv1.StatefulSet:
		return controller("statefulset-controller")
	case *appsv1.DaemonSet:
		return controller("daemon-set-controller")
	case *batchv1.Job, *batchv1.CronJob:
		return controller("job-controller")
	}
	return controller("replicaset-controller")
}

// add counts what a controller made of the object.
func (r *Result) add(made Result) {
	r.Made = append(r.Made, made)
	if made.Allowed {
		r.Charge = sumCharges(r.Charge, made.Charge)
	} else if r.Allowed {
		r.Allowed, r.Code, r.Reason, r.Message = false, made.Code, made.Reason, made.Message
	}
	if made.Object.Kind == "Pod" && r.Pods != nil {
		if made.Allowed {
			r.Pods.Admitted++
		} else {
			r.Pods.Denied++
		}
	}
	for _, w := range made.Warnings {
		if !slices.Contains(r.Warnings, w) {
			r.Warnings = append(r.Warnings, w)
		}
	}
}

// Provide tells that the claim of a pod's entry is asked for by itself: it is not made from the
// template. Both may come first.
func (c *Cluster) Provide(namespace, pod, entry string) {
	c.provided[provided{namespace, pod, entry}] = true
}

// provided is a claim that is not to be made for a pod.
type provided struct{ namespace, pod, entry string }

// podClaim is a claim to be made for a pod.
type podClaim struct {
	pod   *corev1.Pod
	entry corev1.PodResourceClaim
}

// follow makes what controllers make of an admitted object: the claims of a pod, and those that
// waited for a template.
func (c *Cluster) follow(ctx context.Context, a *attempt) error {
	if !a.Allowed {
		if a.Object.Kind == "Pod" {
			a.Pods = &Pods{Denied: 1}
		}
		return nil
	}
	switch o := a.obj.(type) {
	case *corev1.Pod:
		for _, entry := range o.Spec.ResourceClaims {
			if entry.ResourceClaimTemplateName != nil && !c.provided[provided{o.Namespace, o.Name, entry.Name}] {
				if err := c.makeClaim(ctx, podClaim{o, entry}, &a.Result); err != nil {
					return err
				}
			}
		}
		a.Pods = &Pods{Admitted: 1}
		if !a.Allowed {
			a.Pods = &Pods{Denied: 1}
		}
		return nil
	}
	if a.Object.Kind != "ResourceClaimTemplate" || len(c.waiting) == 0 {
		return nil
	}
	waiting := c.waiting
	c.waiting = nil
	for _, w := range waiting {
		if err := c.makeClaim(ctx, w, &a.Result); err != nil {
			return err
		}
	}
	return nil
}

// makeClaim makes a pod's claim from its template, as the claim controller does, or waits for
// the template.
// Source: kubernetes pkg/controller/resourceclaim/controller.go, handleClaim (v1.37).
func (c *Cluster) makeClaim(ctx context.Context, w podClaim, r *Result) error {
	t, err := c.state.Template(ctx, w.pod.Namespace, *w.entry.ResourceClaimTemplateName)
	if err != nil {
		return err
	}
	if t == nil {
		c.waiting = append(c.waiting, w)
		return nil
	}
	claim := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: *t.Spec.ObjectMeta.DeepCopy(), Spec: *t.Spec.Spec.DeepCopy(),
	}
	claim.Name, claim.Namespace = c.freeName(quota.Claims, w.pod.Namespace, podName(w.pod.Name, w.entry.Name)), w.pod.Namespace
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations["resource.kubernetes.io/pod-claim-name"] = w.entry.Name
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: w.pod.Name, UID: w.pod.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
	made, err := c.create(ctx, claim, controller("resource-claim-controller"))
	if err != nil {
		return err
	}
	r.add(made.Result)
	return nil
}
