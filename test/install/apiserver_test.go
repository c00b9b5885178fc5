package install

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/devicequota/devicequota/test/harness"
)

// serviceRange is on the loopback device: the API server calls a webhook at its Service's
// address, and the test's manager can listen there.
const serviceRange = "127.100.0.0/24"

// startAPIServer starts a real API server; the test is over without one.
func startAPIServer(t *testing.T, flags map[string]string) *harness.ControlPlane {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run it through make")
	}
	all := map[string]string{"service-cluster-ip-range": serviceRange}
	for k, v := range flags {
		all[k] = v
	}
	cp, err := harness.Start(harness.Options{OldVersions: true, Flags: all})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	namespace(t, cp, harness.Namespace, nil)
	return cp
}

func namespace(t *testing.T, cp *harness.ControlPlane, name string, labels map[string]string) {
	t.Helper()
	err := cp.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// foreign serves kinds of other products that the charts have objects of.
func foreign(t *testing.T, cp *harness.ControlPlane, kinds ...string) {
	t.Helper()
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, k := range kinds {
		parts := strings.Split(k, "/") // group/version/Kind
		plural := strings.ToLower(parts[2]) + "s"
		crds = append(crds, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + parts[0]},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: parts[0], Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(parts[2]), Kind: parts[2], ListKind: parts[2] + "List"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: parts[1], Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}}}},
			},
		})
	}
	if _, err := envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{CRDs: crds}); err != nil {
		t.Fatal(err)
	}
}

func monitoringKinds() []string {
	return []string{"monitoring.coreos.com/v1/ServiceMonitor", "monitoring.coreos.com/v1/PrometheusRule", "cert-manager.io/v1/Certificate", "cert-manager.io/v1/Issuer"}
}

// TestAPIServerTakesEveryRender creates every render of every ci values file with strict
// field validation and without storing it.
func TestAPIServerTakesEveryRender(t *testing.T) {
	cp := startAPIServer(t, nil)
	foreign(t, cp, monitoringKinds()...)
	namespace(t, cp, "monitoring", nil)
	strict := client.WithFieldValidation(cp.Client, metav1.FieldValidationStrict)
	for _, name := range []string{crdChart, mainChart} {
		for ci, v := range ciValues(t, name) {
			for _, o := range mustRender(t, name, v) {
				if err := strict.Create(t.Context(), o, client.DryRunAll); err != nil {
					t.Errorf("%s with %s: %s: %v", name, ci, key(o), err)
				}
			}
		}
	}
}

// eventually polls until the check returns nil.
func eventually(t *testing.T, within time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error // what the deadline itself ended says nothing
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %v: %v", within, last)
		case <-tick.C:
		}
	}
}

// workFile writes a file that is gone after the test.
func workFile(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
