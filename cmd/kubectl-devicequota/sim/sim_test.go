package sim

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/quota"
)

const (
	devicesKey = "gpu.deviceclass.devicequota.io/devices"
	memoryKey  = "gpu.deviceclass.devicequota.io/capacity.memory"
)

func namespace(n string) *corev1.Namespace {
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"t": "a"}}}
}

func limit(n string, hard ...string) *quotav1.ClusterResourceQuota {
	crq := &quotav1.ClusterResourceQuota{TypeMeta: metav1.TypeMeta{APIVersion: "quota.openshift.io/v1", Kind: "ClusterResourceQuota"},
		ObjectMeta: metav1.ObjectMeta{Name: n}}
	crq.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"t": "a"}}
	crq.Spec.Quota.Hard = corev1.ResourceList{}
	for i := 0; i < len(hard); i += 2 {
		crq.Spec.Quota.Hard[corev1.ResourceName(hard[i])] = resource.MustParse(hard[i+1])
	}
	return crq
}

func claim(n string, count int64) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: n, Namespace: "a"}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", Count: count}}}
	return c
}

// node returns a node and its slice with count devices of 10Gi.
func node(n string, count int) []runtime.Object {
	s := &resourceapi.ResourceSlice{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: n}}
	s.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.example.com", NodeName: &n,
		Pool: resourceapi.ResourcePool{Name: n, Generation: 1, ResourceSliceCount: 1}}
	for i := range count {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: ptr.To("x")}},
			Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("10Gi")}}})
	}
	return []runtime.Object{&corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n}}, s}
}

func class() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"}, ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'gpu.example.com'"}}}}}
}

func newCluster(t testing.TB, objects ...runtime.Object) *Cluster {
	t.Helper()
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), append([]runtime.Object{namespace("a"), class()}, objects...)...); err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t testing.TB, c *Cluster, obj runtime.Object) Result {
	t.Helper()
	r, err := c.Create(t.Context(), obj, User("", nil))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// used returns what is used of the key, and checks the account against a recount from nothing.
func used(t testing.TB, c *Cluster, n, key string) string {
	t.Helper()
	u, err := c.Usage(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	c.state.mu.Lock()
	c.state.recoverLocked()
	c.state.mu.Unlock()
	again, err := c.Usage(t.Context(), n)
	if err != nil || !quota.Equal(u.Used, again.Used) {
		t.Errorf("account %s, recount %s, error %v", quota.Format(u.Used), quota.Format(again.Used), err)
	}
	q := u.Used[corev1.ResourceName(key)]
	return q.String()
}

func TestHoldsEndWhenObjectsAreStored(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 8), limit("q", devicesKey, "5"))...)
	for i := range 7 {
		r := create(t, c, claim(fmt.Sprintf("c%d", i), 1))
		if r.Allowed != (i < 5) {
			t.Errorf("claim %d: %+v", i, r)
		}
	}
	l, err := c.store.Get(t.Context(), "q")
	if err != nil || len(l.Status.Holds) != 0 || l.Status.Rebuilding {
		t.Errorf("want no holds, got %+v, error %v", l, err)
	}
	if got := used(t, c, "q", devicesKey); got != "5" {
		t.Errorf("used %s, want 5", got)
	}
}

func TestAnObjectThatExistsLeavesNoHold(t *testing.T) {
	t.Parallel()
	c := newCluster(t, limit("q", devicesKey, "5"))
	create(t, c, claim("c", 2))
	if r := create(t, c, claim("c", 2)); r.Allowed || r.Reason != "AlreadyExists" || r.Code != 409 {
		t.Errorf("want 409, got %+v", r)
	}
	l, err := c.store.Get(t.Context(), "q")
	if err != nil || len(l.Status.Holds) != 0 {
		t.Errorf("want no holds, got %+v, error %v", l.Status.Holds, err)
	}
	if r := create(t, c, claim("d", 3)); !r.Allowed {
		t.Errorf("the rest does not fit: %s", r.Message)
	}
}

// A quota with an old timestamp is none whose ledger was lost.
func TestObjectsKeepTheirTimestamps(t *testing.T) {
	t.Parallel()
	old := limit("q", devicesKey, "1")
	old.CreationTimestamp = metav1.NewTime(epoch.AddDate(-1, 0, 0))
	old.UID, old.ResourceVersion = "given", "123456789"
	c := newCluster(t, old)
	if r := create(t, c, claim("c", 1)); !r.Allowed {
		t.Errorf("not admitted: %s", r.Message)
	}
	u, err := c.Usage(t.Context(), "q")
	if err != nil || u.CRQ.UID != "given" || !u.CRQ.CreationTimestamp.Equal(&metav1.Time{Time: epoch.AddDate(-1, 0, 0)}) {
		t.Errorf("got %+v, error %v", u.CRQ.ObjectMeta, err)
	}
}

func TestAStatusThatIsCreatedIsIgnored(t *testing.T) {
	t.Parallel()
	c := newCluster(t, limit("q", devicesKey, "5"))
	in := claim("c", 1)
	in.Status.Allocation = &resourceapi.AllocationResult{}
	create(t, c, in)
	if in.Status.Allocation == nil {
		t.Error("the caller's object was modified")
	}
	if got := c.Claims(); len(got) != 1 || got[0].Status.Allocation != nil {
		t.Errorf("want a claim without allocation, got %+v", got)
	}
}

func TestWhatCannotBeAppliedIsNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	d := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "a"}}
	if err := c.Apply(t.Context(), d); err == nil || !strings.Contains(err.Error(), `Deployment "d" cannot be applied`) {
		t.Errorf("got %v", err)
	}
	d.Spec.Replicas = ptr.To(int32(MaxPods + 1))
	_, err := c.Create(t.Context(), d, User("", nil))
	var many *TooManyPodsError
	if !errors.As(err, &many) || many.Pods != MaxPods+1 {
		t.Errorf("want TooManyPodsError, got %v", err)
	}
}

// Whatever happens to claims, namespaces, devices and quotas, the account that follows each
// change equals a recount from nothing.
func TestAccountsFollowEveryChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 4), limit("q", devicesKey, "100", memoryKey, "1Ti"))...)
	step := func(want string) {
		t.Helper()
		if got := used(t, c, "q", memoryKey); got != want {
			t.Errorf("used %s, want %s", got, want)
		}
	}
	create(t, c, claim("one", 1))
	create(t, c, claim("two", 2))
	step("30Gi")
	if _, err := c.Allocate(t.Context()); err != nil {
		t.Fatal(err)
	}
	step("30Gi")
	other := namespace("a")
	other.Labels = nil
	if err := c.Apply(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	step("0")
	if err := c.Apply(t.Context(), namespace("a")); err != nil {
		t.Fatal(err)
	}
	step("30Gi")
	if err := c.Release(t.Context(), types.NamespacedName{Namespace: "a", Name: "two"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), Ref{Kind: "ResourceSlice", Name: "n"}); err != nil {
		t.Fatal(err)
	}
	step("30Gi") // what was known last
	if _, err := c.Delete(t.Context(), Ref{Kind: "ResourceClaim", Namespace: "a", Name: "one"}); err != nil {
		t.Fatal(err)
	}
	step("20Gi")
	if _, err := c.Delete(t.Context(), Ref{Kind: "Namespace", Name: "a"}); err != nil {
		t.Fatal(err)
	}
	step("0")
}

// The scheduler's claim for a pod with extended resources replaces the pod's charge.
func TestAPodsClaimIsChargedInItsStead(t *testing.T) {
	t.Parallel()
	gpu := class()
	gpu.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	c := newCluster(t, append(node("n", 4), gpu, limit("q", devicesKey, "2"))...)
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}}}}
	if r := create(t, c, pod); !r.Allowed {
		t.Fatalf("not admitted: %s", r.Message)
	}
	stored := c.state.get(quota.Pods, "a", "p").pod.DeepCopy()
	made := claim("made", 2)
	made.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: stored.UID, Controller: ptr.To(true)}}
	r, err := c.Create(t.Context(), made, User("system:kube-scheduler", nil))
	if err != nil || !r.Allowed {
		t.Fatalf("the scheduler's claim is not admitted: %s, %v", r.Message, err)
	}
	stored.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made"}
	if err := c.Apply(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	if got := used(t, c, "q", devicesKey); got != "2" {
		t.Errorf("used %s, want 2", got)
	}
	if h := c.Holders("q"); len(h) != 1 || h[0].Object.Kind != "ResourceClaim" || h[0].Owner != "Pod/p" {
		t.Errorf("want the claim as holder, got %+v", h)
	}
	if _, err := c.Delete(t.Context(), Ref{Kind: "Pod", Namespace: "a", Name: "p"}); err != nil {
		t.Fatal(err)
	}
	if got := used(t, c, "q", devicesKey); got != "0" {
		t.Errorf("used %s after the pod is gone, want 0", got)
	}
}

func TestAClaimInUseStaysUntilItsPodIsGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 4), limit("q", devicesKey, "9"))...)
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}}
	create(t, c, pod)
	create(t, c, claim("c", 1))
	key := types.NamespacedName{Namespace: "a", Name: "c"}
	devices := []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"}}
	if err := c.SetAllocation(t.Context(), key, devices, []string{"p"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), Ref{Kind: "ResourceClaim", Namespace: "a", Name: "c"}); err != nil {
		t.Fatal(err)
	}
	if h := c.Holders("q"); len(h) != 1 || h[0].Deleting.IsZero() || !h[0].InUse {
		t.Errorf("want a claim that is being deleted, got %+v", h)
	}
	if _, err := c.Delete(t.Context(), Ref{Kind: "Pod", Namespace: "a", Name: "p"}); err != nil {
		t.Fatal(err)
	}
	if h := c.Holders("q"); len(h) != 0 {
		t.Errorf("want nothing left, got %+v", h)
	}
}

func TestWarningsAreJoinedByReason(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxWarning-len("QuotaExceeded: "))
	got := JoinWarnings([]string{"QuotaExceeded: a", "QuotaExceeded: b", "from: elsewhere", "from: elsewhere", "Mutated: c",
		"QuotaExceeded: " + long, "QuotaExceeded: " + long, "QuotaExceeded: y", "QuotaExceeded: z"})
	want := []string{"QuotaExceeded: a b", "from: elsewhere", "from: elsewhere", "Mutated: c", "QuotaExceeded: " + long + long + "y z"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// 5000 nodes with 8 devices each and 1000 claims must take less than 10 s.
func BenchmarkAdmit1000Claims5000Nodes(b *testing.B) {
	objects := []runtime.Object{limit("q", devicesKey, "4000", memoryKey, "1Pi")}
	for i := range 5000 {
		objects = append(objects, node(fmt.Sprintf("node-%04d", i), 8)...)
	}
	for b.Loop() {
		c := newCluster(b, objects...)
		for i := range 1000 {
			if r := create(b, c, claim(fmt.Sprintf("c-%d", i), 2)); !r.Allowed {
				b.Fatal(r.Message)
			}
		}
	}
}
