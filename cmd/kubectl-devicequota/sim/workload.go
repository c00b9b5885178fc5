package sim

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
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
	names    func(i int) string
}

// expand returns the pods that controllers would make for the object; ok is false when it is no
// workload.
func (c *Cluster) expand(obj runtime.Object) (pods []*corev1.Pod, ok bool, err error) {
	ref := RefOf(obj)
	w := workload{names: func(i int) string { return fmt.Sprintf("%s-%d", ref.Name, i) }}
	var nodes []string
	switch o := obj.(type) {
	case *appsv1.Deployment:
		w.template, w.count = o.Spec.Template, int64(ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.ReplicaSet:
		w.template, w.count = o.Spec.Template, int64(ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.StatefulSet:
		w.template, w.count = o.Spec.Template, int64(ptr.Deref(o.Spec.Replicas, 1))
		first := int32(0)
		if o.Spec.Ordinals != nil {
			first = o.Spec.Ordinals.Start
		}
		w.names = func(i int) string { return fmt.Sprintf("%s-%d", ref.Name, int(first)+i) }
	case *appsv1.DaemonSet:
		w.template = o.Spec.Template
		nodes = c.nodesFor(&o.Spec.Template)
		w.count = int64(len(nodes))
		w.names = func(i int) string { return ref.Name + "-" + nodes[i] }
	case *batchv1.Job:
		w.template, w.count = o.Spec.Template, jobPods(&o.Spec)
	case *batchv1.CronJob:
		spec := o.Spec.JobTemplate.Spec
		w.template, w.count = spec.Template, jobPods(&spec)
	default:
		return nil, false, nil
	}
	if w.count > MaxPods {
		return nil, true, &TooManyPodsError{Object: ref, Pods: w.count}
	}
	for i := range int(max(w.count, 0)) {
		pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
		pod.Name, pod.GenerateName, pod.Namespace = w.names(i), "", ref.Namespace
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: "workload", Controller: ptr.To(true)}}
		pods = append(pods, pod)
	}
	return pods, true, nil
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

// createWorkload creates the pods of a workload, one after the other. All are tried, as their
// controllers do.
func (c *Cluster) createWorkload(ctx context.Context, obj runtime.Object, pods []*corev1.Pod) (Result, error) {
	ref := RefOf(obj)
	r := Result{Object: ref, Allowed: true, Code: 201, Pods: &Pods{}}
	key := types.NamespacedName{Namespace: ref.Kind + "/" + ref.Namespace, Name: ref.Name}
	c.made[key] = nil
	for _, pod := range pods {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		made, err := c.Create(ctx, pod, workloadUser(obj))
		if err != nil {
			return r, err
		}
		c.made[key] = append(c.made[key], made.Object.Name)
		r.add(made)
	}
	return r, nil
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
			if entry.ResourceClaimTemplateName != nil {
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
	claim.Name, claim.Namespace = w.pod.Name+"-"+w.entry.Name, w.pod.Namespace
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
