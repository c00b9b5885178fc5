package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	draapiv1beta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	draapiv1beta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/test/builders"
)

const (
	project = "team-a"
	driver  = "gpu.example.com"
	devices = "gpu.deviceclass.devicequota.io/devices"
	memory  = "gpu.deviceclass.devicequota.io/capacity.memory"
)

// world is what handlers ask, in memory. It decides like the ledger does when nobody else
// is there, and remembers what it was asked.
type world struct {
	inventory   *allocator.Inventory
	charger     *quota.Charger
	quotas      []*quota.Quota
	used        map[string]corev1.ResourceList // quota -> used
	annotations map[string]string              // of the project
	templates   map[string]*resourceapi.ResourceClaimTemplate
	claims      map[string]*resourceapi.ResourceClaim
	pods        map[string]*corev1.Pod
	mayAdmin    bool

	busy    string // why, if busy
	failure error
	panics  bool

	mu       sync.Mutex // protects following
	admitted []ledger.Request
	checked  []ledger.Request
	reviews  int
}

// newWorld has one node with four 40Gi GPUs of class "gpu", one of which can be shared and
// gives no memory by default, reached by "shared" and "any", and the quotas.
func newWorld(t testing.TB, quotas ...*quotav1.ClusterResourceQuota) *world {
	t.Helper()
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	b.SetNode(builders.Node("n1"))
	gpu := builders.Class("gpu", `device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a100"`)
	gpu.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	required := builders.Class("precious", `device.driver == "gpu.example.com"`)
	required.Annotations = map[string]string{quota.RequireQuotaAnnotation: "true"}
	for _, c := range []*resourceapi.DeviceClass{gpu, required, builders.Class("none", `device.driver == "none.example.com"`)} {
		b.SetClass(c)
	}
	var gpus []resourceapi.Device
	for _, name := range []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"} {
		d := builders.Device(name, "memory", "40Gi")
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": builders.Text("a100")}
		gpus = append(gpus, d)
	}
	b.SetSlice(builders.Slice(driver, "n1", gpus...))
	nic := builders.Device("nic-0", "bandwidth", "10G")
	nic.AllowMultipleAllocations = ptr.To(true)
	nic.Capacity["bandwidth"] = resourceapi.DeviceCapacity{Value: resource.MustParse("10G"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: ptr.To(resource.MustParse("0")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("0"))}}}
	b.SetSlice(builders.Slice("nic.example.com", "n1", nic))
	b.SetClass(builders.Class("nic", `device.driver == "nic.example.com"`))
	w := &world{inventory: b.Snapshot(), used: map[string]corev1.ResourceList{}, mayAdmin: false}
	w.charger = quota.NewCharger(w.inventory)
	for _, crq := range quotas {
		q, _ := quota.Parse(crq, quota.ParseOptions{})
		w.quotas = append(w.quotas, q)
	}
	return w
}

func (w *world) deps() Deps {
	return Deps{Admitter: w, Coverage: w, Devices: w, Objects: w, Usage: w, Access: w,
		Explainer: NewDeviceExplainer(func() *allocator.Inventory { return w.inventory }),
		Now:       func() time.Time { return time.Unix(1000, 0) }}
}

func (w *world) Charger() *quota.Charger { return w.charger }

func (w *world) Covering(context.Context, string) ([]*quota.Quota, error) {
	if w.panics {
		panic("broken")
	}
	return w.quotas, w.failure
}

func (w *world) Used(_ context.Context, name string) (corev1.ResourceList, bool) {
	l, ok := w.used[name]
	return l, ok
}

func (w *world) NamespaceAnnotations(context.Context, string) (map[string]string, error) {
	return w.annotations, w.failure
}

func (w *world) Template(_ context.Context, _, name string) (*resourceapi.ResourceClaimTemplate, error) {
	return w.templates[name], w.failure
}

func (w *world) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	return w.claims[name], w.failure
}

func (w *world) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return w.pods[name], w.failure
}

func (w *world) MayUseAdminAccess(context.Context, authenticationv1.UserInfo, string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reviews++
	return w.mayAdmin, w.failure
}

func (w *world) Admit(_ context.Context, r ledger.Request) (ledger.Decision, error) {
	w.mu.Lock()
	w.admitted = append(w.admitted, r)
	w.mu.Unlock()
	if w.panics {
		panic("broken")
	}
	d, err := w.decide(r)
	if len(d.NotNow) > 0 {
		d.Denials, d.NotNow = sorted(append(d.Denials, d.NotNow...)), nil
		d.Verdict = ledger.Denied
	}
	if w.busy != "" {
		d = ledger.Decision{Verdict: ledger.Busy, Busy: w.busy, RetryAfter: 1500 * time.Millisecond}
	}
	return d, err
}

func (w *world) Check(_ context.Context, r ledger.Request) (ledger.Decision, error) {
	w.mu.Lock()
	w.checked = append(w.checked, r)
	w.mu.Unlock()
	return w.decide(r)
}

func (w *world) decide(r ledger.Request) (ledger.Decision, error) {
	d := ledger.Decision{Charges: map[string]quota.Charge{}}
	if w.failure != nil {
		return d, w.failure
	}
	for _, q := range w.quotas {
		charge, err := r.Charge(q)
		if err != nil {
			return d, err
		}
		d.Charges[q.Name] = charge
		used := w.used[q.Name]
		alone := quota.Exceeding(charge.Amounts, q.Hard)
		now := quota.Exceeding(quota.Add(used, charge.Amounts), q.Hard)
		unknown := len(charge.Unknown) > 0 && q.UnknownFootprint == quota.DenyUnknown
		if len(now) == 0 && !unknown {
			continue
		}
		denial := quota.Deny(q.Name, now, charge, used, q.Hard, used, quota.Add(used, used))
		if unknown {
			denial.Unknown = charge.Unknown
		}
		switch {
		case q.Enforcement == quota.Warn:
			d.Warned = append(d.Warned, denial)
		case q.Enforcement == quota.Audit:
			d.Audited = append(d.Audited, denial)
		case len(alone) > 0 || unknown:
			d.Denials = append(d.Denials, denial)
			d.Verdict = ledger.Denied
		default:
			d.NotNow = append(d.NotNow, denial)
		}
	}
	return d, nil
}

var errDown = errors.New("connection refused")

// request returns a review of a create of the object, in its own version.
func request(t testing.TB, obj runtime.Object) admission.Request {
	t.Helper()
	return requestIn(t, versionV1, obj)
}

// requestIn returns a review of a create of the object in a version of resource.k8s.io.
func requestIn(t testing.TB, version string, obj runtime.Object) admission.Request {
	t.Helper()
	var gvk schema.GroupVersionKind
	plural := ""
	switch o := obj.(type) {
	case *resourceapi.ResourceClaim:
		gvk, plural = schema.GroupVersionKind{Group: resourceapi.GroupName, Version: version, Kind: claimKind}, "resourceclaims"
		obj = inVersion(t, version, o)
	case *resourceapi.ResourceClaimTemplate:
		gvk, plural = schema.GroupVersionKind{Group: resourceapi.GroupName, Version: version, Kind: templateKind}, "resourceclaimtemplates"
		obj = templateInVersion(t, version, o)
	case *corev1.Pod:
		gvk, plural = corev1.SchemeGroupVersion.WithKind(podKind), "pods"
	case *quotav1.ClusterResourceQuota:
		gvk, plural = quotav1.GroupVersion.WithKind(quotaKind), "clusterresourcequotas"
	default:
		t.Fatalf("no request for a %T", obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	m := obj.(metav1.Object)
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "review", Operation: admissionv1.Create, Namespace: m.GetNamespace(), Name: m.GetName(),
		Kind:     metav1.GroupVersionKind(gvk),
		Resource: metav1.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: plural},
		UserInfo: authenticationv1.UserInfo{Username: "alice", Groups: []string{"system:authenticated"}},
		Object:   runtime.RawExtension{Raw: raw},
	}}
}

func inVersion(t testing.TB, version string, c *resourceapi.ResourceClaim) runtime.Object {
	t.Helper()
	c = c.DeepCopy()
	var err error
	switch version {
	case versionV1beta1:
		out := &resourcev1beta1.ResourceClaim{}
		err = draapiv1beta1.Convert_v1_ResourceClaim_To_v1beta1_ResourceClaim(c, out, nil)
		if err == nil {
			return out
		}
	case versionV1beta2:
		out := &resourcev1beta2.ResourceClaim{}
		err = draapiv1beta2.Convert_v1_ResourceClaim_To_v1beta2_ResourceClaim(c, out, nil)
		if err == nil {
			return out
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func templateInVersion(t testing.TB, version string, c *resourceapi.ResourceClaimTemplate) runtime.Object {
	t.Helper()
	c = c.DeepCopy()
	var err error
	switch version {
	case versionV1beta1:
		out := &resourcev1beta1.ResourceClaimTemplate{}
		err = draapiv1beta1.Convert_v1_ResourceClaimTemplate_To_v1beta1_ResourceClaimTemplate(c, out, nil)
		if err == nil {
			return out
		}
	case versionV1beta2:
		out := &resourcev1beta2.ResourceClaimTemplate{}
		err = draapiv1beta2.Convert_v1_ResourceClaimTemplate_To_v1beta2_ResourceClaimTemplate(c, out, nil)
		if err == nil {
			return out
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// raw returns a review of a create of a claim with the JSON of its spec.
func raw(spec string) func(testing.TB) admission.Request {
	return func(t testing.TB) admission.Request {
		req := request(t, builders.Claim(project, "c"))
		req.Object.Raw = []byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"c","namespace":"team-a","uid":"u"},"spec":` + spec + `}`)
		return req
	}
}

// creates returns the review of a create.
func review(obj runtime.Object, change ...func(*admission.Request)) func(testing.TB) admission.Request {
	return func(t testing.TB) admission.Request {
		req := request(t, obj)
		for _, f := range change {
			f(&req)
		}
		return req
	}
}

func by(user string) func(*admission.Request) {
	return func(r *admission.Request) { r.UserInfo.Username = user }
}

func dry(r *admission.Request) { r.DryRun = ptr.To(true) }

func changed[T any](o T, f func(T)) T {
	f(o)
	return o
}

// pathOf returns the path that serves the request; extended pods are the caller's to tell.
func pathOf(req admission.Request) string {
	return map[string]string{"resourceclaims": PathValidateClaim, "resourceclaimtemplates": PathValidateTemplate,
		"pods": PathValidatePodClaims, "clusterresourcequotas": PathValidateQuota}[req.Resource.Resource]
}

// mustPanicNever is the recorder of tests that look at metrics.
type counts struct {
	mu        sync.Mutex
	decisions []string
	reasons   []Reason
	panics    int
	inFlight  int
}

func (c *counts) Admission(_, decision string, reasons []Reason, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decisions = append(c.decisions, decision)
	c.reasons = append(c.reasons, reasons...)
	slices.Sort(c.reasons)
}

func (c *counts) InFlight(_ string, delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight += delta
}

func (c *counts) Panic(string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.panics++
}
