package openshift

import (
	"context"
	"fmt"
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
	harness.Eventually(t, "platform", func(ctx context.Context) error {
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
	harness.Eventually(t, "the CRD's own APIService", func(ctx context.Context) error {
		return own.Client.Get(ctx, client.ObjectKeyFromObject(service), service)
	})
	wantPlatform(t, shipped, cluster.Kubernetes)

	t.Run("a Service", func(t *testing.T) {
		harness.Eventually(t, "a Service serves the group", func(ctx context.Context) error { // the APIService's status is written meanwhile
			if err := own.Client.Get(ctx, client.ObjectKeyFromObject(service), service); err != nil {
				return err
			}
			service.SetLabels(nil) // nobody manages it any more
			err := unstructured.SetNestedMap(service.Object, map[string]any{"name": "api", "namespace": "openshift-apiserver"}, "spec", "service")
			if err != nil {
				return err
			}
			if err := unstructured.SetNestedField(service.Object, true, "spec", "insecureSkipTLSVerify"); err != nil {
				return err
			}
			return own.Client.Update(ctx, service)
		})
		wantPlatform(t, shipped, cluster.OpenShift)
		mgr := start(t, own, harness.ManagerOptions{Args: flags("auto"), NotReady: true})
		wantLog(t, mgr, `"platform":"OpenShift"`)
	})
	t.Run("the CRD again", func(t *testing.T) {
		if err := own.Client.Delete(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the CRD is served again", func(ctx context.Context) error {
			return shipped.List(ctx, &quotav1.ClusterResourceQuotaList{})
		})
		wantPlatform(t, shipped, cluster.Kubernetes)
	})
	t.Run("unreadable", func(t *testing.T) { checkUnreadable(t, own) })
}

// checkUnreadable: who may not read the APIService does not guess. He stays up, tells why he is
// not ready, and goes on when he may. A flag helps.
func checkUnreadable(t *testing.T, own *harness.ControlPlane) {
	const blind = "system:serviceaccount:" + harness.Namespace + ":blind"
	bind(t, own, blind, "devicequota", "devicequota-projection-openshift")
	if got, err := cluster.DetectPlatform(t.Context(), clientOf(t, own, blind)); got != "" || err == nil {
		t.Errorf("detected %q, %v", got, err)
	}

	waiting := start(t, own, harness.ManagerOptions{Identity: blind, Args: flags("auto"), NotReady: true})
	const reason = `[-]cluster failed: platform: read of APIService "v1.quota.openshift.io": apiservices.apiregistration.k8s.io "v1.quota.openshift.io" is forbidden`
	harness.Eventually(t, "the reason of not being ready", func(ctx context.Context) error {
		if err := waiting.Readiness(ctx); err == nil || !strings.Contains(err.Error(), reason) {
			return fmt.Errorf("want %s, got %w", reason, err)
		}
		return nil
	})
	told := start(t, own, harness.ManagerOptions{Identity: blind, Args: flags("openshift")})
	wantLog(t, told, `"platform":"OpenShift"`)
	if log := waiting.Log(); strings.Contains(log, `"platform":`) {
		t.Errorf("the manager has decided:\n%s", log)
	}
	bind(t, own, blind, "devicequota-detection")
	wantLog(t, waiting, `"platform":"Kubernetes"`)
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
	harness.Eventually(t, "the manager's log", func(context.Context) error {
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

// bind gives a user ClusterRoles, and what the manager has in its own namespace.
func bind(t *testing.T, own *harness.ControlPlane, user string, roles ...string) {
	t.Helper()
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	err := own.Client.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: "blind"}, Subjects: subjects, RoleRef: ref("Role", "devicequota")})
	if err = client.IgnoreAlreadyExists(err); err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "blind-" + role}, Subjects: subjects, RoleRef: ref("ClusterRole", role)}
		if err := own.Client.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}
