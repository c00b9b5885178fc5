package sim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/quota"
)

// template returns one whose claims have count devices.
func template(n string, count int64) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: n, Namespace: "a"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim("x", count).Spec}}
}

// podOf returns a template of pods that use claims of the template.
func podOf(t string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "g", ResourceClaimTemplateName: &t}}}}
}

func header(kind, n string) (metav1.TypeMeta, metav1.ObjectMeta) {
	version := "apps/v1"
	if strings.HasSuffix(kind, "Job") {
		version = "batch/v1"
	}
	return metav1.TypeMeta{APIVersion: version, Kind: kind}, metav1.ObjectMeta{Name: n, Namespace: "a"}
}

func deployment(n, t string, replicas int32) *appsv1.Deployment {
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Template: podOf(t)}}
	d.TypeMeta, d.ObjectMeta = header("Deployment", n)
	return d
}

func replicaSet(n, t string, replicas int32) *appsv1.ReplicaSet {
	r := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Template: podOf(t)}}
	r.TypeMeta, r.ObjectMeta = header("ReplicaSet", n)
	return r
}

func job(n, t string, pods int32) *batchv1.Job {
	j := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: &pods, Template: podOf(t)}}
	j.TypeMeta, j.ObjectMeta = header("Job", n)
	return j
}

func cronJob(n, t string, pods int32, suspend bool) *batchv1.CronJob {
	j := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Suspend: &suspend, JobTemplate: batchv1.JobTemplateSpec{Spec: job("x", t, pods).Spec}}}
	j.TypeMeta, j.ObjectMeta = header("CronJob", n)
	return j
}

// step is a request and what comes of it: its pods, and the devices that are used then.
type step struct {
	do      string // create, update or delete
	obj     runtime.Object
	pods    *Pods
	reason  string
	devices string
}

func (s *step) take(t *testing.T, c *Cluster) {
	t.Helper()
	var r Result
	var err error
	switch s.do {
	case "create":
		r, err = c.Create(t.Context(), s.obj, User("", nil))
	case "update":
		r, err = c.Update(t.Context(), s.obj, User("", nil))
	case "delete":
		r, err = c.Delete(t.Context(), RefOf(s.obj))
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.pods, r.Pods); diff != "" || r.Reason != s.reason || r.Allowed != (s.reason == "") {
		t.Errorf("%s of %s: reason %q, want %q, message %q; pods (-want +got):\n%s", s.do, r.Object, r.Reason, s.reason, r.Message, diff)
	}
	if got := used(t, c, "q", devicesKey); got != s.devices {
		t.Errorf("%s of %s: %s devices are used, want %s", s.do, r.Object, got, s.devices)
	}
}

func TestWorkloadsFollowTheirSpec(t *testing.T) {
	t.Parallel()
	cases := map[string][]step{
		"replicas": {
			{"create", deployment("d", "one", 2), &Pods{Admitted: 2}, "", "2"},
			{"update", deployment("d", "one", 4), &Pods{Admitted: 4}, "", "4"},
			{"update", deployment("d", "one", 1), &Pods{Admitted: 1}, "", "1"},
			{"delete", deployment("d", "one", 1), nil, "", "0"},
			{"delete", deployment("d", "one", 1), nil, "NotFound", "0"},
		},
		"another template replaces the pods": {
			{"create", deployment("d", "one", 3), &Pods{Admitted: 3}, "", "3"},
			{"update", deployment("d", "two", 3), &Pods{Admitted: 2, Denied: 1}, "QuotaExceeded", "4"},
			{"update", deployment("d", "one", 3), &Pods{Admitted: 3}, "", "3"},
		},
		"refused pods are tried again": {
			{"create", deployment("d", "one", 3), &Pods{Admitted: 3}, "", "3"},
			{"create", deployment("e", "one", 2), &Pods{Admitted: 1, Denied: 1}, "QuotaExceeded", "4"},
			{"delete", deployment("d", "one", 3), nil, "", "1"},
			{"update", deployment("e", "one", 2), &Pods{Admitted: 2}, "", "2"},
		},
		"the pods of a ReplicaSet keep their template": {
			{"create", replicaSet("r", "one", 1), &Pods{Admitted: 1}, "", "1"},
			{"update", replicaSet("r", "two", 2), &Pods{Admitted: 2}, "", "3"},
		},
		"the template of a Job cannot change": {
			{"create", job("j", "one", 1), &Pods{Admitted: 1}, "", "1"},
			{"update", job("j", "two", 1), &Pods{}, "Invalid", "1"},
			{"update", job("j", "one", 2), &Pods{Admitted: 2}, "", "2"},
		},
		"a CronJob changes its next run": {
			{"create", cronJob("c", "one", 2, false), &Pods{Admitted: 2}, "", "2"},
			{"update", cronJob("c", "two", 1, false), &Pods{Admitted: 2}, "", "2"},
			{"delete", cronJob("c", "two", 1, false), nil, "", "0"},
		},
		"a suspended CronJob does not run": {
			{"create", cronJob("c", "one", 2, true), &Pods{}, "", "0"},
		},
		"one name, several kinds": {
			{"create", deployment("x", "one", 1), &Pods{Admitted: 1}, "", "1"},
			{"create", job("x", "one", 2), &Pods{Admitted: 2}, "", "3"},
			{"create", job("x", "one", 2), &Pods{}, "AlreadyExists", "3"},
			{"delete", deployment("x", "one", 1), nil, "", "2"},
		},
		"an update of nothing": {
			{"update", deployment("d", "one", 1), &Pods{}, "NotFound", "0"},
		},
		"a namespace takes its workloads along": {
			{"create", deployment("d", "one", 1), &Pods{Admitted: 1}, "", "1"},
			{"delete", namespace("a"), nil, "", "0"},
			{"create", namespace("a"), nil, "", "0"},
			{"create", template("one", 1), nil, "", "0"},
			{"create", deployment("d", "one", 2), &Pods{Admitted: 2}, "", "2"},
		},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, append(node("n", 8), limit("q", devicesKey, "4"), template("one", 1), template("two", 2))...)
			for i := range steps {
				steps[i].take(t, c)
			}
		})
	}
}

func TestWorkloadsThatCannotBe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, limit("q", devicesKey, "4"))
	for name, change := range map[string]func(d *appsv1.Deployment){
		"Invalid":  func(d *appsv1.Deployment) { d.Name = "D" },
		"NotFound": func(d *appsv1.Deployment) { d.Namespace = "nowhere" },
	} {
		d := deployment("d", "one", 1)
		change(d)
		if r := create(t, c, d); r.Allowed || r.Reason != name || len(r.Made) > 0 {
			t.Errorf("want reason %s and no pods, got %+v", name, r)
		}
	}
	d := deployment("", "one", 1)
	d.GenerateName = "d-"
	if r := create(t, c, d); !r.Allowed || !strings.HasPrefix(r.Object.Name, "d-0") {
		t.Errorf("want a name made of generateName, got %+v", r)
	}
}

// What runs already is not asked for again.
func TestAdoptedPodsAreNotMadeAgain(t *testing.T) {
	t.Parallel()
	mine := claim("mine", 1)
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "web-7d9f-x2b4c", Namespace: "a"}}
	c := newCluster(t, append(node("n", 8), limit("q", devicesKey, "2"), template("one", 1), pod, mine)...)
	d := deployment("web", "one", 2)
	c.Adopt(RefOf(d), []string{pod.Name})
	if !c.Exists(d) {
		t.Fatal("an adopted workload does not exist")
	}
	s := step{"update", d, &Pods{Admitted: 2}, "", "2"}
	s.take(t, c)
}

// A pod whose claim is asked for by itself does not make it again.
func TestProvidedClaimsAreNotMade(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 8), limit("q", devicesKey, "9"), template("one", 1))...)
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}, Spec: podOf("one").Spec}
	c.Provide("a", "p", "g")
	(&step{"create", pod, &Pods{Admitted: 1}, "", "0"}).take(t, c)
	other := pod.DeepCopy()
	other.Name = "other"
	(&step{"create", other, &Pods{Admitted: 1}, "", "1"}).take(t, c)
}

// Claims of pods have names that are free, whatever pods and claims are called.
func TestMadeNamesAreFree(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 8), limit("q", devicesKey, "9"), template("one", 1))...)
	create(t, c, claim("p-g", 1))
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}, Spec: podOf("one").Spec}
	(&step{"create", pod, &Pods{Admitted: 1}, "", "2"}).take(t, c)
	long := deployment(strings.Repeat("d", 250), "one", 2)
	(&step{"create", long, &Pods{Admitted: 2}, "", "4"}).take(t, c)
}

func TestWhatExistsIsNotCreatedAgain(t *testing.T) {
	t.Parallel()
	objects := node("n", 1)
	rule := &resourceapi.DeviceTaintRule{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceTaintRule"}, ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	c := newCluster(t, append(objects, rule, limit("q", devicesKey, "9"))...)
	for _, o := range append(objects, rule, class(), namespace("a"), limit("q", devicesKey, "9")) {
		o = o.DeepCopyObject()
		if r := create(t, c, o); r.Allowed || r.Reason != "AlreadyExists" {
			t.Errorf("%s: want AlreadyExists, got %+v", r.Object, r)
		}
		if r, err := c.Update(t.Context(), o, User("", nil)); err != nil || !r.Allowed {
			t.Errorf("update of %s: %+v, %v", r.Object, r, err)
		}
	}
	gone := Ref{Kind: "DeviceTaintRule", Name: "r"}
	for _, want := range []bool{true, false} {
		if r, err := c.Delete(t.Context(), gone); err != nil || r.Allowed != want {
			t.Errorf("delete of %s: %+v, %v", gone, r, err)
		}
	}
}

// The API server wants a label on namespaces with adminAccess; the webhooks do not.
func TestAdminAccessInANamespaceWithoutTheLabelIsAWarning(t *testing.T) {
	t.Parallel()
	spy := claim("spy", 1)
	spy.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	c := newCluster(t, limit("q", devicesKey, "0"))
	const warning = `namespace "a" has the label resource.kubernetes.io/admin-access=true`
	if r := create(t, c, spy); !r.Allowed || !strings.Contains(strings.Join(r.Warnings, "\n"), warning) {
		t.Errorf("got %+v", r)
	}
	labelled := namespace("a")
	labelled.Labels[resourceapi.DRAAdminNamespaceLabelKey] = "true"
	if err := c.Apply(t.Context(), labelled); err != nil {
		t.Fatal(err)
	}
	spy.Name = "labelled"
	if r := create(t, c, spy); !r.Allowed || strings.Contains(strings.Join(r.Warnings, "\n"), warning) {
		t.Errorf("got %+v", r)
	}
}

// A claim that comes with its allocation is its pod's, though the pod has another UID here.
func TestAStatusFindsItsPodByName(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 4), limit("q", devicesKey, "9"))...)
	create(t, c, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}})
	mine := claim("c", 1)
	mine.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "elsewhere", Controller: ptr.To(true)}}
	mine.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "many", DeviceClassName: "gpu", Count: 3}, {Name: "one", DeviceClassName: "gpu", Count: 1}}}}
	create(t, c, mine)
	if got := used(t, c, "q", devicesKey); got != "3" {
		t.Errorf("used %s before the allocation, want 3", got)
	}
	status := resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r/one", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"}}}},
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "elsewhere"}},
	}
	if err := c.SetStatus(t.Context(), types.NamespacedName{Namespace: "a", Name: "c"}, status); err != nil {
		t.Fatal(err)
	}
	if got := used(t, c, "q", devicesKey); got != "1" {
		t.Errorf("used %s after it, want 1", got)
	}
	if o := c.state.get(quota.Claims, "a", "c"); o.claim.OwnerReferences[0].UID == "elsewhere" {
		t.Error("the owner is not the pod that is here")
	}
}

// Devices stay when only the pods are named that use them.
func TestReservationsKeepTheDevices(t *testing.T) {
	t.Parallel()
	c := newCluster(t, append(node("n", 4), limit("q", devicesKey, "9"))...)
	key := types.NamespacedName{Namespace: "a", Name: "c"}
	create(t, c, claim("c", 1))
	if err := c.SetAllocation(t.Context(), key, nil, nil); err == nil {
		t.Error("want an error for a claim without devices")
	}
	if diff := cmp.Diff([]types.NamespacedName{key}, c.Pending()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	if _, err := c.Allocate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.SetAllocation(t.Context(), key, nil, nil); err != nil || c.Claim(key).Status.Allocation == nil || len(c.Pending()) > 0 {
		t.Errorf("the devices are gone: %+v, %v", c.Claim(key).Status, err)
	}
}

func TestWhoAsksIsNobodyButWhoIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user   string
		groups []string
		want   string
	}{
		"nobody named": {"", nil, "kubernetes-admin in system:masters system:authenticated"},
		"groups alone": {"", []string{"devs"}, "somebody in devs system:authenticated"},
		"a user":       {"alice", nil, "alice in system:authenticated"},
	} {
		u := User(c.user, c.groups)
		if got := u.Username + " in " + strings.Join(u.Groups, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
