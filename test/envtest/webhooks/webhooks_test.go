package webhooks

import (
	"context"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
	"github.com/devicequota/devicequota/test/harness"
	"github.com/devicequota/devicequota/webhooks"
)

func TestAMemberLearnsTheReasonOfARefusal(t *testing.T) {
	p := newProject(t, nil, devicesKey, "4")
	create(t, p.member, p.claim("three", builders.Exactly("r", "gpu", 3)))
	wantDenied(t, p.member.Create(t.Context(), p.claim("two", builders.Exactly("r", "gpu", 2))), "QuotaExceeded",
		"denied the request: exceeded quota: "+p.name+", requested: "+devicesKey+"=2, used: "+devicesKey+"=3, limited: "+devicesKey+"=4")
	wantDenied(t, p.member.Create(t.Context(), p.claim("precious", builders.Exactly("r", "precious", 1))), "QuotaRequired", `DeviceClass "precious"`)
	create(t, p.member, p.claim("none", builders.Exactly("r", "missing", 1)))
	create(t, p.member, p.claim("h100", builders.Exactly("r", "gpu", 1, `device.attributes["gpu.example.com"].model == "h100"`)))
	for _, reason := range []string{"UnknownClass", "NoMatchingDevice"} {
		if !p.warnings.has(reason) {
			t.Errorf("no %s warning in %q", reason, p.warnings.list)
		}
	}
}

func TestATemplateThatCanNeverFitIsRefused(t *testing.T) {
	p := newProject(t, nil, devicesKey, "4")
	wantDenied(t, p.member.Create(t.Context(), p.template("five", builders.Exactly("r", "gpu", 5))), "QuotaExceeded", "exceeded quota: "+p.name)
	create(t, p.member, p.claim("three", builders.Exactly("r", "gpu", 3)))
	create(t, p.member, p.template("two", builders.Exactly("r", "gpu", 2)))
	if !p.warnings.has("QuotaExceeded") {
		t.Errorf("no warning that the template does not fit now: %q", p.warnings.list)
	}
}

func TestOfTenPodsAtALimitOfFourFourAreAdmitted(t *testing.T) {
	p := newProject(t, nil, devicesKey, "4")
	create(t, p.member, p.template("one", builders.Exactly("r", "gpu", 1)))
	cc, _ := as(t, controller, "system:serviceaccounts")
	allowEverything(t, "controller", controller)
	admitted := 0
	for i := range 10 {
		pod := p.pod(fmt.Sprintf("p%d", i), fromTemplate("one"))
		if err := p.member.Create(t.Context(), pod); err != nil {
			wantDenied(t, err, "QuotaExceeded", "exceeded quota: "+p.name)
			continue
		}
		admitted++
		// The claim controller makes the claim: what the pod's check holds is not held back from it.
		c := p.claim(pod.Name, builders.Exactly("r", "gpu", 1))
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		create(t, cc, c)
	}
	if admitted != 4 {
		t.Errorf("%d pods were admitted, want 4", admitted)
	}
	wantDenied(t, p.member.Create(t.Context(), p.claim("more", builders.Exactly("r", "gpu", 1))), "QuotaExceeded", "used: "+devicesKey+"=4")
}

func TestPodsWithExtendedResourcesAreChargedAndTheirClaimIsNotChargedAgain(t *testing.T) {
	p := newProject(t, nil, devicesKey, "4")
	pod := p.pod("three", extended("3"))
	create(t, p.member, pod)
	wantDenied(t, p.member.Create(t.Context(), p.pod("two", extended("2"))), "QuotaExceeded", "requested: "+devicesKey+"=2, used: "+devicesKey+"=3")
	made := p.claim("made", builders.Exactly("container-0-request-0", "gpu", 3))
	made.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	made.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	wantDenied(t, p.member.Create(t.Context(), made.DeepCopy()), "QuotaExceeded", "requested: "+devicesKey+"=3")
	sched, _ := as(t, scheduler)
	allowEverything(t, "scheduler", scheduler)
	create(t, sched, made)
	second := made.DeepCopy()
	second.Name, second.ResourceVersion, second.UID = "second", "", ""
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"}}}
	if err := cp.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	wantDenied(t, sched.Create(t.Context(), second), "QuotaExceeded", "requested: "+devicesKey+"=3")
}

func TestAdminAccessNeedsTheRight(t *testing.T) {
	p := newProject(t, nil)
	ns := &corev1.Namespace{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: p.name}, ns); err != nil {
		t.Fatal(err)
	}
	ns.Labels["resource.kubernetes.io/admin-access"] = "true"
	if err := cp.Client.Update(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	monitor := func(name string) *resourceapi.ResourceClaim {
		c := p.claim(name, builders.All("all", "gpu"))
		c.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
		return c
	}
	wantDenied(t, p.member.Create(t.Context(), monitor("no")), "AdminAccessForbidden", `the verb "use" on adminaccess.devicequota.io`)
	template := p.template("no")
	template.Spec.Spec = monitor("x").Spec
	wantDenied(t, p.member.Create(t.Context(), template), "AdminAccessForbidden", p.name)
	create(t, cp.Client, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: p.name, Name: "admin-access"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"devicequota.io"}, Resources: []string{"adminaccess"}, Verbs: []string{"use"}}}})
	create(t, cp.Client, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: p.name, Name: "admin-access"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "admin-access"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: p.name}}})
	harness.Eventually(t, "the right is seen", func(context.Context) error { return p.member.Create(t.Context(), monitor("yes")) })
}

func TestQuotasAreJudgedWithWarnings(t *testing.T) {
	admin, w := as(t, "quota-admin", "system:masters")
	bad := newQuota("judged", devicesKey, "-1")
	err := admin.Create(t.Context(), bad)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.quota.hard["+devicesKey+"]") {
		t.Errorf("want 422 that names the field, got %v", err)
	}
	good := newQuota("judged", devicesKey, "4", "pods", "3", "missing.deviceclass.devicequota.io/devices", "1")
	create(t, admin, good)
	t.Cleanup(func() { _ = admin.Delete(context.Background(), good) }) // it may be gone
	for _, reason := range []string{"UnenforcedKey", "UnknownClass", "AliasedKey"} {
		if !w.has(reason) {
			t.Errorf("no %s warning in %q", reason, w.list)
		}
	}
}

func TestModesDoNotRefuse(t *testing.T) {
	p := newProject(t, nil, devicesKey, "1")
	p.patchQuota(`{"metadata":{"annotations":{"` + quota.EnforcementAnnotation + `":"Warn"}}}`)
	i := 0
	harness.Eventually(t, "the mode is seen", func(context.Context) error {
		i++
		return p.member.Create(t.Context(), p.claim(fmt.Sprintf("two-%d", i), builders.Exactly("r", "gpu", 2)))
	})
	if !p.warnings.has("QuotaExceeded") {
		t.Errorf("no warning in %q", p.warnings.list)
	}
}

func TestAShapedClaimCanBeAppliedAgain(t *testing.T) {
	p := newProject(t, map[string]string{webhooks.DefaultClassAnnotation: "gpu", webhooks.DeviceSelectorAnnotation: "1 > 0", webhooks.PrioritizedListAnnotation: "Fit"}, devicesKey, "4")
	written := func(version string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "resource.k8s.io/" + version, "kind": "ResourceClaim",
			"metadata": map[string]any{"namespace": p.name, "name": "shaped-" + version},
			"spec": map[string]any{"devices": map[string]any{"requests": []any{
				map[string]any{"name": "list", "firstAvailable": []any{
					map[string]any{"name": "big", "deviceClassName": "gpu", "count": int64(8)},
					map[string]any{"name": "small", "deviceClassName": "gpu", "count": int64(1)}}},
			}}},
		}}
		request := map[string]any{"name": "one", "exactly": map[string]any{"count": int64(1)}}
		if version == "v1beta1" {
			request = map[string]any{"name": "one", "count": int64(1)}
		}
		devices := u.Object["spec"].(map[string]any)["devices"].(map[string]any)
		devices["requests"] = append(devices["requests"].([]any), request)
		return u
	}
	for _, version := range []string{"v1", "v1beta1"} {
		for _, how := range []string{"create", "apply", "apply", "put"} {
			u := written(version)
			var err error
			switch how {
			case "create":
				if version == "v1" {
					continue // created by apply
				}
				err = p.member.Create(t.Context(), u)
			case "apply":
				err = p.member.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("tests"), client.ForceOwnership)
			case "put":
				stored := &unstructured.Unstructured{}
				stored.SetGroupVersionKind(u.GroupVersionKind())
				if err = p.member.Get(t.Context(), client.ObjectKeyFromObject(u), stored); err == nil {
					u.SetResourceVersion(stored.GetResourceVersion())
					err = p.member.Update(t.Context(), u)
				}
			}
			if err != nil {
				t.Fatalf("%s, %s: %v", version, how, err)
			}
		}
		got := &resourceapi.ResourceClaim{}
		if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: p.name, Name: "shaped-" + version}, got); err != nil {
			t.Fatal(err)
		}
		list, one := got.Spec.Devices.Requests[0], got.Spec.Devices.Requests[1]
		if len(list.FirstAvailable) != 1 || list.FirstAvailable[0].Name != "small" || len(list.FirstAvailable[0].Selectors) != 1 {
			t.Errorf("%s: alternatives are %+v", version, list.FirstAvailable)
		}
		if one.Exactly == nil || one.Exactly.DeviceClassName != "gpu" || len(one.Exactly.Selectors) != 1 {
			t.Errorf("%s: request is %+v", version, one.Exactly)
		}
		if err := p.member.Delete(t.Context(), got); err != nil {
			t.Fatal(err)
		}
	}
	if !p.warnings.has("Mutated") {
		t.Errorf("no warning in %q", p.warnings.list)
	}
}

func TestStatusFinalizersAndDeletionAreNeverBlocked(t *testing.T) {
	p := newProject(t, map[string]string{webhooks.DefaultClassAnnotation: "gpu"}, devicesKey, "4")
	c := p.claim("c", builders.Exactly("r", "gpu", 4))
	create(t, p.member, c)
	p.patchQuota(`{"spec":{"quota":{"hard":{"` + devicesKey + `":"0"}}}}`)
	patch := func(body string) {
		t.Helper()
		if err := cp.Client.Patch(t.Context(), c, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"metadata":{"finalizers":["example.com/test"],"labels":{"a":"b"}}}`)
	if err := p.member.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	patch(`{"metadata":{"finalizers":null}}`)
}

// allowEverything makes the user a cluster admin.
func allowEverything(t *testing.T, name, user string) {
	t.Helper()
	b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "everything-" + name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}
	if err := cp.Client.Create(t.Context(), b); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	c, _ := as(t, user)
	harness.Eventually(t, "rights of "+user, func(ctx context.Context) error {
		return c.List(ctx, &v1alpha1.DeviceLedgerList{})
	})
}

// It stops the manager, so it has to run after the others that need it: it starts another.
func TestWithTheManagerDownOnlyWhatItMustJudgeIsRefused(t *testing.T) {
	p := newProject(t, nil, devicesKey, "4")
	create(t, p.member, p.template("one", builders.Exactly("r", "gpu", 1)))
	if err := manager.Stop(); err != nil {
		t.Fatal(err)
	}
	manager = nil
	create(t, p.member, p.pod("plain"))
	create(t, p.member, p.pod("claims-only", fromTemplate("one")))
	create(t, cp.Client, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.name, Name: "lease"}})
	create(t, cp.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.name + "-x"}})
	exempt := p.claim("exempt", builders.Exactly("r", "gpu", 1))
	exempt.Namespace = "kube-public"
	create(t, cp.Client, exempt)
	create(t, cp.Client, newQuota(p.name+"-q", devicesKey, "1"))
	for what, o := range map[string]client.Object{"claim": p.claim("c", builders.Exactly("r", "gpu", 1)), "template": p.template("t", builders.Exactly("r", "gpu", 1)), "pod": p.pod("extended", extended("1"))} {
		if err := p.member.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("%s: want the API server's message, got %v", what, err)
		}
	}
	if err := startManager(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "everything works again", func(ctx context.Context) error {
		return p.member.Create(ctx, p.claim("c", builders.Exactly("r", "gpu", 1)))
	})
}
