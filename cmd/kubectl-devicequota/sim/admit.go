package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/webhooks"
)

// route is how an object of a kind comes into the cluster.
type route struct {
	resource string
	// mutate is the path of the mutating webhook, empty when there is none.
	mutate string
	// validate returns the paths of the validating webhooks that are called for the object.
	validate func(obj runtime.Object) []string
	// updates tells that the validating webhooks are called for UPDATE, too.
	updates bool
}

// routeOf returns what config/webhook says of the kind. Source: config/webhook/manifests.yaml.
func routeOf(obj runtime.Object) route {
	to := func(path string) func(runtime.Object) []string {
		return func(runtime.Object) []string { return []string{path} }
	}
	none := func(runtime.Object) []string { return nil }
	switch kindOf(obj) {
	case "ResourceClaim":
		return route{resource: "resourceclaims", mutate: webhooks.PathMutateClaim, validate: to(webhooks.PathValidateClaim)}
	case "ResourceClaimTemplate":
		return route{resource: "resourceclaimtemplates", mutate: webhooks.PathMutateTemplate, validate: to(webhooks.PathValidateTemplate)}
	case "Pod":
		return route{resource: "pods", validate: podWebhooks}
	case "ClusterResourceQuota":
		return route{resource: "clusterresourcequotas", validate: to(webhooks.PathValidateQuota), updates: true}
	}
	return route{resource: resourceOf(kindOf(obj)), validate: none}
}

// podWebhooks evaluates the match conditions of the two pod webhooks.
func podWebhooks(obj runtime.Object) []string {
	pod, ok := obj.(*corev1.Pod)
	switch {
	case !ok:
		return nil
	case asksExtended(pod):
		return []string{webhooks.PathValidatePodExtended}
	case len(pod.Spec.ResourceClaims) > 0:
		return []string{webhooks.PathValidatePodClaims}
	}
	return nil
}

// attempt is one request on its way.
type attempt struct {
	user authenticationv1.UserInfo
	op   admissionv1.Operation
	obj  runtime.Object
	old  runtime.Object
	Result
}

// Create asks for the object's creation as the user, and makes what controllers make of it: the
// pods of a workload, and the claims of pods. A status is ignored, as the API server does. That
// it is refused is no error, but a TooManyPodsError is one. obj is not modified.
func (c *Cluster) Create(ctx context.Context, obj runtime.Object, user authenticationv1.UserInfo) (Result, error) {
	if w, ok, err := c.workloadOf(obj); ok || err != nil {
		if err != nil {
			return Result{}, err
		}
		return c.createWorkload(ctx, obj, w, user)
	}
	a, err := c.create(ctx, obj, user)
	if err != nil {
		return Result{}, err
	}
	return a.Result, c.follow(ctx, a)
}

// create is Create without what follows from it.
func (c *Cluster) create(ctx context.Context, obj runtime.Object, user authenticationv1.UserInfo) (*attempt, error) {
	c.clock.advance(time.Second)
	obj = obj.DeepCopyObject()
	a := &attempt{user: user, op: admissionv1.Create, obj: obj, Result: Result{Object: RefOf(obj), Allowed: true, Code: http.StatusCreated}}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	forget(obj, m)
	if m.GetName() == "" && m.GetGenerateName() != "" {
		c.state.mu.Lock()
		c.state.version++
		m.SetName(fmt.Sprintf("%s%05d", m.GetGenerateName(), c.state.version))
		c.state.mu.Unlock()
		a.Object.Name = m.GetName()
	}
	if c.o.Follow != nil {
		defer c.tell(a.op, obj.DeepCopyObject(), user, &a.Result)
	}
	if err := c.ensureNamespace(m.GetNamespace()); err != nil {
		a.refuse(http.StatusNotFound, metav1.StatusReasonNotFound, err.Error())
		return a, nil
	}
	if problem := validName(m); problem != "" {
		a.refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, problem)
		return a, nil
	}
	if err := c.admit(ctx, a); err != nil || !a.Allowed {
		return a, err
	}
	if c.Exists(a.obj) {
		a.refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%s %q already exists", routeOf(obj).resource, m.GetName()))
		c.clock.advance(2 * time.Minute) // the hold is taken for an object that never comes
		return a, c.settleAll(ctx)
	}
	return a, c.keep(ctx, a)
}

// forget removes what the API server does not take from a request.
func forget(obj runtime.Object, m metav1.Object) {
	m.SetUID("")
	m.SetResourceVersion("")
	m.SetCreationTimestamp(metav1.Time{})
	m.SetDeletionTimestamp(nil)
	m.SetManagedFields(nil)
	switch kindOf(obj) {
	case "Namespace", "Node", "ClusterResourceQuota", "ResourceClaim", "Pod":
		status := reflect.ValueOf(obj).Elem().FieldByName("Status")
		status.SetZero()
	}
}

// admit runs the webhooks for the request; a.obj is then the object to be stored.
func (c *Cluster) admit(ctx context.Context, a *attempt) error {
	r := routeOf(a.obj)
	m, err := meta.Accessor(a.obj)
	if err != nil {
		return err
	}
	if r.mutate != "" && !c.unchanged(a) && !c.exemptObject(m) {
		if err := c.mutate(ctx, a, r); err != nil || !a.Allowed {
			return err
		}
		if m, err = meta.Accessor(a.obj); err != nil {
			return err
		}
	}
	if a.op == admissionv1.Create {
		c.state.mu.Lock()
		c.state.version++
		m.SetUID(uidOf(c.state.version))
		c.state.mu.Unlock()
		m.SetCreationTimestamp(metav1.NewTime(c.clock.Now().Truncate(time.Second)))
	} else if problem := immutable(a); problem != "" {
		a.refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, problem)
		return nil
	}
	if problem := c.adminNamespace(a); problem != "" {
		a.Warnings = append(a.Warnings, problem)
	}
	if a.op == admissionv1.Update && !r.updates || c.exemptObject(m) {
		return nil
	}
	for _, path := range r.validate(a.obj) {
		if err := c.validate(ctx, a, r, path); err != nil || !a.Allowed {
			return err
		}
	}
	return nil
}

// exemptObject tells whether the webhook configuration leaves out the object's namespace.
func (c *Cluster) exemptObject(m metav1.Object) bool {
	return m.GetNamespace() != "" && c.state.exempt[m.GetNamespace()]
}

func (c *Cluster) mutate(ctx context.Context, a *attempt, r route) error {
	req, err := c.request(a, r)
	if err != nil {
		return err
	}
	resp := c.handlers[r.mutate].Handle(ctx, req)
	a.take(resp)
	if !resp.Allowed || len(resp.Patches) == 0 {
		return nil
	}
	patch, err := json.Marshal(resp.Patches)
	if err != nil {
		return err
	}
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return err
	}
	patched, err := decoded.Apply(req.Object.Raw)
	if err != nil {
		return fmt.Errorf("patch of %s %q: %w", a.Object.Kind, a.Object.Name, err)
	}
	next, ok := reflect.New(reflect.TypeOf(a.obj).Elem()).Interface().(runtime.Object)
	if !ok {
		return fmt.Errorf("%T is no object", a.obj)
	}
	if err := json.Unmarshal(patched, next); err != nil {
		return err
	}
	a.obj = next
	return nil
}

// attempts bounds how often a client comes back after a 429. Time is virtual, so that holds
// have aged long before.
const attempts = 60

func (c *Cluster) validate(ctx context.Context, a *attempt, r route, path string) error {
	for range attempts {
		req, err := c.request(a, r)
		if err != nil {
			return err
		}
		c.recorder.charges = nil
		resp := c.handlers[path].Handle(ctx, req)
		if resp.Result != nil && resp.Result.Code == http.StatusTooManyRequests {
			c.clock.advance(time.Second)
			if err := c.settleAll(ctx); err != nil {
				return err
			}
			continue
		}
		a.take(resp)
		if path == webhooks.PathValidateClaim || path == webhooks.PathValidatePodExtended {
			a.charge(c.recorder.charges)
		}
		return nil
	}
	return fmt.Errorf("%s %q: the ledger stays busy", a.Object.Kind, a.Object.Name)
}

// request is the review that the API server would send.
func (c *Cluster) request(a *attempt, r route) (admission.Request, error) {
	raw, err := json.Marshal(a.obj)
	if err != nil {
		return admission.Request{}, err
	}
	m, err := meta.Accessor(a.obj)
	if err != nil {
		return admission.Request{}, err
	}
	gvk := a.obj.GetObjectKind().GroupVersionKind()
	kind := metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
	resource := metav1.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: r.resource}
	dryRun := false
	c.state.mu.Lock()
	c.state.version++
	uid := types.UID("request-" + strconv.FormatUint(c.state.version, 10))
	c.state.mu.Unlock()
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: uid, Kind: kind, Resource: resource, RequestKind: &kind, RequestResource: &resource,
		Name: m.GetName(), Namespace: m.GetNamespace(), Operation: a.op, UserInfo: a.user,
		Object: runtime.RawExtension{Raw: raw}, DryRun: &dryRun,
	}}
	if a.old != nil {
		if req.OldObject.Raw, err = json.Marshal(a.old); err != nil {
			return admission.Request{}, err
		}
	}
	return req, nil
}

// keep stores what was admitted and lets the reconciler see it.
func (c *Cluster) keep(ctx context.Context, a *attempt) error {
	m, err := meta.Accessor(a.obj)
	if err != nil {
		return err
	}
	stored := a.obj.DeepCopyObject()
	if err := c.apply(stored); err != nil {
		return err
	}
	switch a.obj.(type) {
	case *corev1.Pod:
		return c.settleProject(ctx, m.GetNamespace())
	case *quotav1.ClusterResourceQuota:
		_, err := c.settle(ctx, m.GetName())
		return err
	}
	if kindOf(a.obj) == "ResourceClaim" {
		return c.settleProject(ctx, m.GetNamespace())
	}
	if kindOf(a.obj) == "ResourceClaimTemplate" {
		return nil
	}
	return c.settleAll(ctx)
}

// charge notes what the object costs.
func (a *attempt) charge(charges map[string]quota.Charge) {
	for n, charge := range charges {
		if len(charge.Amounts) == 0 {
			continue
		}
		if a.Charge == nil {
			a.Charge = map[string]corev1.ResourceList{}
		}
		a.Charge[n] = quota.Copy(charge.Amounts)
	}
}

// unchanged tells whether an update leaves the spec as it is: then the mutating webhooks are not called.
func (c *Cluster) unchanged(a *attempt) bool {
	return a.op == admissionv1.Update && sameSpec(c.api, a.old, a.obj)
}

// sumCharges adds b to a.
func sumCharges(a, b map[string]corev1.ResourceList) map[string]corev1.ResourceList {
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(a)
	if out == nil {
		out = map[string]corev1.ResourceList{}
	}
	for n, l := range b {
		out[n] = quota.Add(out[n], l)
	}
	return out
}
