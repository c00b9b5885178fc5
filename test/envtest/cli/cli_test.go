package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	command "github.com/devicequota/devicequota/cmd/kubectl-devicequota/cli"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	gpuKey    = corev1.ResourceName("gpu.nvidia.com.deviceclass.resource.k8s.io/devices")
	quotaName = "team-a"
)

// kd runs the command as the user and returns what it writes and its exit code.
func kd(t *testing.T, user, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	streams, in, stdout, stderr := genericiooptions.NewTestIOStreams()
	in.WriteString(stdin)
	code = command.Run(t.Context(), append(args, "--kubeconfig", kubeconfigs[user]), "v1.2.3", streams)
	return stdout.String(), stderr.String(), code
}

// report is what is looked at of the JSON of check and usage.
type report struct {
	Items []struct {
		Object  struct{ Kind, Name string }
		Allowed bool
		Reason  string
		Message string
		Charge  map[string]corev1.ResourceList
		Pods    *struct{ Admitted, Denied int }
	}
	Usage  []usage
	Quotas []struct {
		usage
		Holders []struct {
			Object struct{ Kind, Namespace, Name string }
			State  string
			Age    string
			Owner  string
		}
	}
}

type usage struct {
	Quota      string
	Hard, Used corev1.ResourceList
	Namespaces []struct {
		Namespace string
		Used      corev1.ResourceList
	}
}

func parse(t *testing.T, out, errs string) report {
	t.Helper()
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in\n%s\n%s", err, out, errs)
	}
	return r
}

func claimOf(namespace, name string, count int64) *resourceapi.ResourceClaim {
	return harness.Claim(namespace, name, "gpu.nvidia.com", count)
}

// newClaim stores a claim of GPUs in the namespace for the time of the test.
func newClaim(t *testing.T, namespace, name string, count int64, change func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	t.Helper()
	c := claimOf(namespace, name, count)
	if change != nil {
		change(c)
	}
	if err := cp.Client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := cp.Client.Get(ctx, client.ObjectKeyFromObject(c), c); err == nil && len(c.Finalizers) > 0 {
			c.Finalizers = nil
			_ = cp.Client.Update(ctx, c) // the check below tells
		}
		if err := cp.Client.Delete(ctx, c); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return c
}

// appliedUsed is what the project is shown of the key.
func appliedUsed(ctx context.Context) (string, error) {
	a := &quotav1.AppliedClusterResourceQuota{}
	err := cp.Client.Get(ctx, client.ObjectKey{Namespace: project, Name: quotaName}, a)
	used := a.Status.Total.Used[gpuKey]
	return used.String(), err
}

// shown waits until the projection of the members' project says what is used of the key.
func shown(t *testing.T, want string) {
	t.Helper()
	harness.Eventually(t, "projection", func(ctx context.Context) error {
		a, err := cp.Ledger(ctx, quotaName)
		if err != nil {
			return err
		}
		if used := a.Status.Used[gpuKey]; used.String() != want || len(a.Status.Holds) > 0 {
			return fmt.Errorf("the ledger says %s and has %d holds, want %s", used.String(), len(a.Status.Holds), want)
		}
		applied, err := appliedUsed(ctx)
		if err == nil && applied != want {
			err = fmt.Errorf("the project is shown %s, want %s", applied, want)
		}
		return err
	})
}

// claimText is a manifest of a claim of GPUs.
func claimText(version, name string, count int) string {
	exactly := fmt.Sprintf("exactly: {deviceClassName: gpu.nvidia.com, count: %d}", count)
	if version == "v1beta1" {
		exactly = fmt.Sprintf("deviceClassName: gpu.nvidia.com, count: %d", count)
	}
	return fmt.Sprintf("apiVersion: resource.k8s.io/%s\nkind: ResourceClaim\nmetadata: {name: %s, namespace: %s}\n"+
		"spec: {devices: {requests: [{name: r0, %s}]}}\n---\n", version, name, project, exactly)
}

// What check --live says of a claim is what the API server says then, whoever asks.
func TestCheckLiveSaysWhatTheClusterWillSay(t *testing.T) {
	shown(t, "0")
	newClaim(t, project, "mine", 1, nil)
	newClaim(t, "team-a-serve", "theirs", 1, nil)
	shown(t, "2")
	for name, c := range map[string]struct {
		user, text string
		code       int
		allowed    []bool
		notes      []string
	}{
		"an administrator, one that fits": {auditor, claimText("v1", "a", 1), command.ExitOK, []bool{true}, nil},
		"an administrator, too much":      {auditor, claimText("v1beta2", "a", 2), command.ExitNo, []bool{false}, nil},
		"an administrator, one after another": {auditor, claimText("v1", "a", 1) + claimText("v1beta1", "b", 1), command.ExitNo,
			[]bool{true, false}, nil},
		"who sees devices": {scientist, claimText("v1", "a", 1) + claimText("v1beta1", "b", 1), command.ExitNo, []bool{true, false},
			[]string{"limits are what project \"team-a-train\" is shown, less what others use"}},
		"a member": {member, claimText("v1", "a", 1) + claimText("v1beta1", "b", 1), command.ExitNo, []bool{true, false},
			[]string{"you may not list DeviceClass, ResourceSlice"}},
		"who sees only the quota":       {guest, claimText("v1", "a", 1) + claimText("v1beta1", "b", 1), command.ExitNo, []bool{true, false}, nil},
		"what exists costs nothing new": {auditor, claimText("v1", "mine", 1), command.ExitOK, []bool{true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, code := kd(t, c.user, c.text, "check", "--live", "-n", project, "-f", "-", "-o", "json")
			if code != c.code {
				t.Fatalf("exit code %d, want %d\n%s%s", code, c.code, out, errs)
			}
			var got []bool
			for _, item := range parse(t, out, errs).Items {
				got = append(got, item.Allowed)
				if !item.Allowed && item.Reason != "QuotaExceeded" {
					t.Errorf("reason %s: %s", item.Reason, item.Message)
				}
			}
			if diff := cmp.Diff(c.allowed, got); diff != "" {
				t.Errorf("allowed (-want +got):\n%s\n%s%s", diff, out, errs)
			}
			for _, note := range c.notes {
				if !strings.Contains(errs, note) {
					t.Errorf("no note %q in\n%s", note, errs)
				}
			}
		})
	}

	// The words, too.
	out, errs, _ := kd(t, auditor, claimText("v1", "a", 2), "check", "--live", "-f", "-", "-o", "json")
	said := parse(t, out, errs).Items[0].Message
	if err := cp.Client.Create(t.Context(), claimOf(project, "a", 2)); err == nil || !strings.HasSuffix(err.Error(), "denied the request: "+said) {
		t.Errorf("the API server says %v\ncheck said %s", err, said)
	}
}

// A workload that runs already is asked for only as far as it grows.
func TestCheckLiveAsksOnlyForNewPods(t *testing.T) {
	shown(t, "0")
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}
	for i := range 2 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: project, Name: fmt.Sprintf("db-%d", i), OwnerReferences: []metav1.OwnerReference{owner}}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		if err := cp.Client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) }) // the next test counts
		newClaim(t, project, pod.Name+"-gpu", 1, func(c *resourceapi.ResourceClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
		})
	}
	shown(t, "2")
	text := func(replicas int) string {
		return fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu, namespace: %[1]s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: %[1]s}
spec:
  replicas: %[2]d
  serviceName: db
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: i}], resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]}
`, project, replicas)
	}
	for replicas, want := range map[int]struct{ code, admitted, denied int }{
		2: {command.ExitOK, 2, 0}, 3: {command.ExitOK, 3, 0}, 5: {command.ExitNo, 3, 2},
	} {
		out, errs, code := kd(t, auditor, text(replicas), "check", "--live", "-f", "-", "-o", "json")
		r := parse(t, out, errs)
		if pods := r.Items[1].Pods; code != want.code || pods.Admitted != want.admitted || pods.Denied != want.denied {
			t.Errorf("%d replicas: exit code %d, pods %+v, want %+v\n%s", replicas, code, pods, want, out)
		}
	}
}

func TestExplainReadsTheCluster(t *testing.T) {
	shown(t, "0")
	newClaim(t, project, "mine", 2, nil)
	shown(t, "2")
	for user, want := range map[string][]string{
		auditor:   {"resourceclaim team-a-train/mine", string(gpuKey) + "   2        2      3      yes", "would be allocated on node"},
		scientist: {"resourceclaim team-a-train/mine", string(gpuKey) + "   2        2      3      yes", "would be allocated on node"},
		member:    {"resourceclaim team-a-train/mine", `there is no DeviceClass "gpu.nvidia.com"`},
	} {
		out, errs, code := kd(t, user, "", "explain", "-n", project, "mine")
		if code != command.ExitOK {
			t.Errorf("%s: exit code %d\n%s", user, code, errs)
		}
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("%s: no %q in\n%s%s", user, text, out, errs)
			}
		}
	}
	if out, errs, code := kd(t, auditor, "", "explain", "-n", project, "nothing"); code != command.ExitBad {
		t.Errorf("a claim that is not there: exit code %d\n%s%s", code, out, errs)
	}
}

func TestUsageShowsWhoHoldsWhat(t *testing.T) {
	shown(t, "0")
	newClaim(t, project, "pending", 1, nil)
	idle := newClaim(t, project, "idle", 1, nil)
	idle.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "r0", Driver: "gpu.nvidia.com", Pool: "gpu-1", Device: "gpu-0"}}}}
	if err := cp.Client.Status().Update(t.Context(), idle); err != nil {
		t.Fatal(err)
	}
	stuck := newClaim(t, "team-a-serve", "stuck", 1, func(c *resourceapi.ResourceClaim) { c.Finalizers = []string{"example.com/never"} })
	if err := cp.Client.Delete(t.Context(), stuck); err != nil {
		t.Fatal(err)
	}
	shown(t, "3")

	states := func(user string, args ...string) (usage, map[string]string) {
		t.Helper()
		out, errs, code := kd(t, user, "", append([]string{"usage", "-o", "json"}, args...)...)
		if code != command.ExitOK {
			t.Fatalf("%s: exit code %d\n%s", user, code, errs)
		}
		r := parse(t, out, errs)
		if len(r.Quotas) != 1 || r.Quotas[0].Quota != quotaName {
			t.Fatalf("%s: want the one quota, got\n%s%s", user, out, errs)
		}
		holders := map[string]string{}
		for _, h := range r.Quotas[0].Holders {
			holders[h.Object.Namespace+"/"+h.Object.Name] = h.State
			if h.Age == "" {
				t.Errorf("%s: no age of %s", user, h.Object.Name)
			}
		}
		return r.Quotas[0].usage, holders
	}
	mine := map[string]string{project + "/pending": "Pending", project + "/idle": "Idle"}
	all := map[string]string{project + "/pending": "Pending", project + "/idle": "Idle", "team-a-serve/stuck": "Deleting"}
	for name, c := range map[string]struct {
		user    string
		args    []string
		holders map[string]string
		// projects is how many are shown.
		projects int
	}{
		"everything":       {auditor, nil, all, 2},
		"all namespaces":   {auditor, []string{"-A"}, all, 2},
		"a quota":          {auditor, []string{quotaName, "-A"}, all, 2},
		"a project":        {auditor, []string{"-n", project}, mine, 1},
		"its member":       {member, []string{"-n", project}, mine, 1},
		"its guest":        {guest, []string{"-n", project}, map[string]string{}, 1},
		"its scientist":    {scientist, []string{quotaName, "-n", project}, mine, 1},
		"as somebody else": {auditor, []string{"--as", "nobody"}, nil, 0},
	} {
		if c.holders == nil {
			if out, errs, code := kd(t, c.user, "", append([]string{"usage"}, c.args...)...); code != command.ExitBad || !strings.Contains(errs, "cannot impersonate") {
				t.Errorf("%s: exit code %d\n%s%s", name, code, out, errs)
			}
			continue
		}
		u, holders := states(c.user, c.args...)
		used, hard := u.Used[gpuKey], u.Hard[gpuKey]
		if diff := cmp.Diff(c.holders, holders); diff != "" || used.String() != "3" || hard.String() != "3" || len(u.Namespaces) != c.projects {
			t.Errorf("%s: used %s of %s in %d projects; holders (-want +got):\n%s", name, used.String(), hard.String(), len(u.Namespaces), diff)
		}
	}
	if out, errs, code := kd(t, stranger, "", "usage", "-n", project); code != command.ExitBad || !strings.Contains(errs, "forbidden") {
		t.Errorf("a stranger: exit code %d\n%s%s", code, out, errs)
	}
	if _, errs, code := kd(t, auditor, "", "usage", "nothing"); code != command.ExitBad || !strings.Contains(errs, `no quota "nothing"`) {
		t.Errorf("no such quota: exit code %d\n%s", code, errs)
	}
	out, _, _ := kd(t, auditor, "", "usage")
	for _, text := range []string{"100%", "Deleting", "Idle", "Pending"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
}

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// --watch shows what changes until it is interrupted, and that is no error.
func TestUsageWatches(t *testing.T) {
	shown(t, "0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, errs := &buffer{}, &buffer{}
	code := make(chan int, 1)
	go func() {
		code <- command.Run(ctx, []string{"usage", quotaName, "-w", "--interval", "1s", "--kubeconfig", kubeconfigs[auditor]}, "v1.2.3",
			genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: errs})
	}()
	wants := func(text string) {
		t.Helper()
		harness.Eventually(t, "output", func(context.Context) error {
			if !strings.Contains(out.String(), text) {
				return fmt.Errorf("no %q in\n%s%s", text, out.String(), errs.String())
			}
			return nil
		})
	}
	wants(string(gpuKey) + "   0      3      3      0%")
	newClaim(t, project, "seen", 2, nil)
	wants("resourceclaim team-a-train/seen   Pending")
	stop()
	select {
	case got := <-code:
		if got != command.ExitOK {
			t.Errorf("exit code %d\n%s", got, errs.String())
		}
	case <-time.After(30 * time.Second):
		t.Error("it does not end")
	}
}

// findings returns what doctor says as "level check object: message", and its exit code.
func findings(t *testing.T, user string) (all []string, code int) {
	t.Helper()
	out, errs, code := kd(t, user, "", "doctor", "-o", "json", "-n", project)
	var r command.DoctorReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in\n%s%s", err, out, errs)
	}
	for _, f := range r.Findings {
		all = append(all, strings.TrimSpace(string(f.Level)+" "+f.Check+" "+f.Object)+": "+f.Message)
	}
	return all, code
}

func has(all []string, prefix, text string) bool {
	return slices.ContainsFunc(all, func(f string) bool { return strings.HasPrefix(f, prefix) && strings.Contains(f, text) })
}

func TestDoctorFindsNothingWrongInAHealthyCluster(t *testing.T) {
	shown(t, "0")
	all, code := findings(t, auditor)
	if code != command.ExitOK {
		t.Errorf("exit code %d: %q", code, all)
	}
	for prefix, text := range map[string]string{
		"info version kube-apiserver":  "v1.",
		"info version resource.k8s.io": "v1",
		"info platform":                "Kubernetes",
		"info certificate":             "valid until",
		"info flowschema":              `FlowSchema "devicequota" is in force`,
		"info webhook dry run":         "you may not create ResourceClaims here",
	} {
		if !has(all, prefix, text) {
			t.Errorf("no %s with %q in %q", prefix, text, all)
		}
	}
	for _, f := range all {
		if !strings.HasPrefix(f, "info") {
			t.Errorf("finding %s", f)
		}
	}
	// Who may ask is answered, too.
	if all, code := findings(t, admin); code != command.ExitOK || !has(all, "info webhook dry run", "answered") {
		t.Errorf("an administrator: exit code %d, %q", code, all)
	}
	// Whoever may not look is told so.
	all, code = findings(t, member)
	if code != command.ExitOK || !has(all, "info webhook", "you may not look") || !has(all, "info flowschema", "you may not look") ||
		!has(all, "info ledger", "cannot be read") {
		t.Errorf("a member: exit code %d, %q", code, all)
	}
}

// On OpenShift a member is shown AppliedDeviceQuotas, which count devices as we do.
func TestMembersReadAppliedDeviceQuotas(t *testing.T) {
	const namespace = "shift"
	ctx := t.Context()
	a := &v1alpha1.AppliedDeviceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "team-s"}}
	a.Spec.Quota.Hard = corev1.ResourceList{gpuKey: resource.MustParse("4")}
	a.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "s"}}
	a.Status.Total = corev1.ResourceQuotaStatus{Hard: a.Spec.Quota.Hard, Used: corev1.ResourceList{gpuKey: resource.MustParse("3")}}
	a.Status.Namespaces = quotav1.ResourceQuotasStatusByNamespace{{Namespace: namespace, Status: corev1.ResourceQuotaStatus{
		Hard: a.Spec.Quota.Hard, Used: corev1.ResourceList{gpuKey: resource.MustParse("1")}}}}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, a,
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: member},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: member}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: member}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: member}, Rules: memberRules()},
	} {
		if err := cp.Client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	newClaim(t, namespace, "mine", 1, nil)
	var out, errs string
	var code int
	harness.Eventually(t, "the member's rights", func(context.Context) error {
		if out, errs, code = kd(t, member, "", "usage", "-n", namespace, "-o", "json"); code != command.ExitOK {
			return fmt.Errorf("exit code %d\n%s", code, errs)
		}
		return nil
	})
	r := parse(t, out, errs)
	if len(r.Quotas) != 1 || r.Quotas[0].Quota != "team-s" || len(r.Quotas[0].Holders) != 1 {
		t.Fatalf("want team-s and one holder, got\n%s", out)
	}
	if used := r.Quotas[0].Used[gpuKey]; used.String() != "3" {
		t.Errorf("want 3 used, got\n%s", out)
	}
	text := strings.ReplaceAll(claimText("v1", "a", 1)+claimText("v1", "b", 1), project, namespace)
	out, errs, code = kd(t, member, text, "check", "--live", "-n", namespace, "-f", "-", "-o", "json")
	r = parse(t, out, errs)
	if code != command.ExitNo || !r.Items[0].Allowed || r.Items[1].Allowed {
		t.Errorf("exit code %d, want one that fits and one that does not\n%s%s", code, out, errs)
	}
}

// It breaks the installation, and mends it.
func TestDoctorFindsWhatIsBroken(t *testing.T) {
	shown(t, "0")
	ctx := t.Context()
	first := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "greedy"}, Spec: flowcontrolv1.FlowSchemaSpec{MatchingPrecedence: 100,
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:      []flowcontrolv1.Subject{{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "system:serviceaccounts"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true}}}}}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "half"}, Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", AllNodes: ptr.To(true),
		Pool: resourceapi.ResourcePool{Name: "half", Generation: 1, ResourceSliceCount: 2}, Devices: []resourceapi.Device{{Name: "x"}}}}
	for _, o := range []client.Object{first, slice} {
		if err := cp.Client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cp.Client.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
	}
	all, code := findings(t, auditor)
	if code != command.ExitOK || !has(all, "warning flowschema", `FlowSchema "greedy" (precedence 100) catches the manager's writes before "devicequota"`) ||
		!has(all, "warning pool gpu.nvidia.com/half", "1 of 2 slices") {
		t.Errorf("exit code %d, want warnings about the FlowSchema and the pool in %q", code, all)
	}

	// Nobody answers, and the ledger says what is not so.
	if err := manager.Stop(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := startManager(context.Background()); err != nil {
			t.Error(err)
		}
	})
	harness.Eventually(t, "a changed ledger", func(ctx context.Context) error {
		l, err := cp.Ledger(ctx, quotaName)
		if err != nil {
			return err
		}
		l.Status.Used = corev1.ResourceList{gpuKey: resource.MustParse("2")}
		return cp.Client.Update(ctx, l)
	})
	all, code = findings(t, admin)
	if code != command.ExitNo || !has(all, "error ledger deviceledger team-a", "a recount comes to") || !has(all, "error webhook dry run", "failed calling webhook") ||
		!has(all, "info certificate 127.0.0.1", "cannot be seen from here") {
		t.Errorf("exit code %d, want errors about the ledger and the webhooks in %q", code, all)
	}
	if err := cp.UninstallWebhooks(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.InstallWebhooks(context.Background()); err != nil {
			t.Error(err)
		}
	})
	all, code = findings(t, auditor)
	if code != command.ExitNo || !has(all, "error webhook ValidatingWebhookConfiguration", "no webhook calls /validate-resourceclaim") {
		t.Errorf("exit code %d, want errors about webhooks in %q", code, all)
	}
}

// Whatever the users ask, and whether they may see it or not, nothing is written.
func TestNothingIsWritten(t *testing.T) {
	shown(t, "0")
	newClaim(t, project, "mine", 1, nil)
	shown(t, "1")
	for _, user := range users {
		for _, args := range [][]string{{"check", "--live", "-f", "-"}, {"explain", "mine"}, {"usage"}, {"doctor"}} {
			if out, errs, _ := kd(t, user, claimText("v1", "a", 1), append(args, "-n", project)...); out+errs == "" {
				t.Errorf("%s: %q says nothing", user, args)
			}
		}
	}
	asked, err := audit.Events()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range asked {
		e := &asked[i]
		seen[e.User.Username] = true
		dryRun := e.Verb == "create" && strings.Contains(e.RequestURI, "dryRun=All")
		if !slices.Contains([]string{"get", "list"}, e.Verb) && !dryRun {
			t.Errorf("%s: %s %s", e.User.Username, e.Verb, e.RequestURI)
		}
	}
	for _, user := range users {
		if !seen[user] {
			t.Errorf("%s is not in the audit log", user)
		}
	}
}
