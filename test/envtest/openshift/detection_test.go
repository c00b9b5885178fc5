package openshift

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/test/harness"
)

// ownPlane starts a control plane that the test may turn upside down.
func ownPlane(t *testing.T) *harness.ControlPlane {
	t.Helper()
	own, err := harness.Start(harness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	return own
}

// wantPlatform waits until the shipped identity detects the platform.
func wantPlatform(t *testing.T, c client.Client, want cluster.Platform) {
	t.Helper()
	eventually(t, "platform", func(ctx context.Context) error {
		got, err := cluster.DetectPlatform(ctx, c)
		if err == nil && got != want {
			err = fmt.Errorf("detected %q, want %q", got, want)
		}
		return err
	})
}

func TestPlatformIsDetectedByWhoServesTheQuotaGroup(t *testing.T) {
	own := ownPlane(t)
	if got, err := cluster.DetectPlatform(t.Context(), own.Client); got != cluster.Kubernetes || err != nil {
		t.Errorf("no such group: %q, %v", got, err)
	}
	if err := install(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	shipped := clientOf(t, own, identity)
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	service.SetName("v1." + quotav1.GroupName)
	eventually(t, "the CRD's own APIService", func(ctx context.Context) error {
		return own.Client.Get(ctx, client.ObjectKeyFromObject(service), service)
	})
	wantPlatform(t, shipped, cluster.Kubernetes)

	t.Run("a Service", func(t *testing.T) {
		service.SetLabels(nil) // nobody manages it any more
		err := unstructured.SetNestedMap(service.Object, map[string]any{"name": "api", "namespace": "openshift-apiserver"}, "spec", "service")
		if err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(service.Object, true, "spec", "insecureSkipTLSVerify"); err != nil {
			t.Fatal(err)
		}
		if err := own.Client.Update(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		wantPlatform(t, shipped, cluster.OpenShift)
		mgr := start(t, own, harness.ManagerOptions{Args: flags("auto"), NotReady: true})
		wantLog(t, mgr, `"platform":"OpenShift"`)
	})
	t.Run("the CRD again", func(t *testing.T) {
		if err := own.Client.Delete(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the CRD is served again", func(ctx context.Context) error {
			return shipped.List(ctx, &quotav1.ClusterResourceQuotaList{})
		})
		wantPlatform(t, shipped, cluster.Kubernetes)
	})
	t.Run("unreadable", func(t *testing.T) { checkUnreadable(t, own) })
}

// checkUnreadable: who may not read the APIService does not guess; a flag helps.
func checkUnreadable(t *testing.T, own *harness.ControlPlane) {
	const blind = "system:serviceaccount:" + harness.Namespace + ":blind"
	bindWithout(t, own, blind, "apiservices")
	if got, err := cluster.DetectPlatform(t.Context(), clientOf(t, own, blind)); got != "" || err == nil {
		t.Errorf("detected %q, %v", got, err)
	}

	mgr := start(t, own, harness.ManagerOptions{Identity: blind, Args: flags("auto"), NotReady: true})
	if err := mgr.WaitReady(t.Context()); err == nil {
		t.Error("the manager is ready though it cannot know the platform")
	}
	wantLog(t, mgr, `platform: read of APIService "v1.quota.openshift.io": apiservices.apiregistration.k8s.io "v1.quota.openshift.io" is forbidden`)
	if log := mgr.Log(); strings.Contains(log, `"platform":"Kubernetes"`) {
		t.Errorf("the manager takes it for plain Kubernetes:\n%s", log)
	}

	mgr = start(t, own, harness.ManagerOptions{Identity: blind, Args: flags("openshift")})
	wantLog(t, mgr, `"platform":"OpenShift"`)
}

func start(t *testing.T, own *harness.ControlPlane, o harness.ManagerOptions) *harness.Manager {
	t.Helper()
	mgr, err := own.StartManager(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mgr.Kill)
	return mgr
}

func wantLog(t *testing.T, mgr *harness.Manager, text string) {
	t.Helper()
	eventually(t, "the manager's log", func(context.Context) error {
		if !strings.Contains(mgr.Log(), text) {
			return fmt.Errorf("no %s in:\n%s", text, mgr.LogTail(20))
		}
		return nil
	})
}

func clientOf(t *testing.T, own *harness.ControlPlane, user string) client.Client {
	t.Helper()
	cfg, _, err := own.User(user, "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: own.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// bindWithout gives a user what the shipped identity has on OpenShift but for one resource.
func bindWithout(t *testing.T, own *harness.ControlPlane, user, resource string) {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	err := own.Client.Get(t.Context(), client.ObjectKey{Name: "devicequota"}, role)
	all := len(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
	if len(role.Rules) == all {
		t.Fatalf("the shipped role has no rule for %s: %v", resource, err)
	}
	role.ObjectMeta = metav1.ObjectMeta{Name: "blind"}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	err = errors.Join(err,
		own.Client.Create(t.Context(), role),
		own.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "blind"}, Subjects: subjects, RoleRef: ref("ClusterRole", "blind")}),
		own.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "blind-projection"}, Subjects: subjects, RoleRef: ref("ClusterRole", "devicequota-projection-openshift")}),
		own.Client.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: "blind"}, Subjects: subjects, RoleRef: ref("Role", "devicequota")}),
	)
	if err != nil {
		t.Fatal(err)
	}
}
