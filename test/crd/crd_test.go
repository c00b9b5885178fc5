// Package crd checks that the generated CRDs install into a real API server and keep
// what the types can say.
package crd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// server is the API server of all tests here, with the generated CRDs installed.
var server *harness.ControlPlane

func TestMain(m *testing.M) { harness.Exit(withServer(m)) }

func withServer(m *testing.M) (code int, err error) {
	if server, err = harness.Start(harness.Options{}); err != nil {
		return 1, err
	}
	defer func() {
		if stopErr := server.Stop(); err == nil {
			err = stopErr
		}
	}()
	_, err = envtest.InstallCRDs(server.Config, envtest.CRDInstallOptions{Paths: []string{bases()}, ErrorIfPathMissing: true})
	if err != nil {
		return 1, fmt.Errorf("install CRDs: %w", err)
	}
	return m.Run(), nil
}

func bases() string { return filepath.Join(harness.Root(), "config", "crd", "bases") }

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

const (
	devices = "gpu.deviceclass.devicequota.io/devices"
	memory  = "gpu.deviceclass.devicequota.io/capacity.memory"
)

func spec() quotav1.ClusterResourceQuotaSpec {
	return quotav1.ClusterResourceQuotaSpec{
		Selector: quotav1.ClusterResourceQuotaSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}},
		Quota:    corev1.ResourceQuotaSpec{Hard: quantities(devices, "8", memory, "640Gi")},
	}
}

func status(namespace string) quotav1.ClusterResourceQuotaStatus {
	use := corev1.ResourceQuotaStatus{Hard: spec().Quota.Hard, Used: quantities(devices, "3", memory, "0.5")}
	return quotav1.ClusterResourceQuotaStatus{
		Total:      use,
		Namespaces: quotav1.ResourceQuotasStatusByNamespace{{Namespace: namespace, Status: use}},
	}
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	if err := server.Client.Create(t.Context(), object, client.FieldValidation("Strict")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := server.Client.Delete(ctx, object); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

func get[T client.Object](t *testing.T, of T, into T) T {
	t.Helper()
	if err := server.Client.Get(t.Context(), client.ObjectKeyFromObject(of), into); err != nil {
		t.Fatal(err)
	}
	return into
}

// diff compares with quantities by value.
func diff(want, got any) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }))
}

func readCRD(t *testing.T, file string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return crd
}

func TestClusterResourceQuotaIsTheOneThatOpenShiftShips(t *testing.T) {
	t.Parallel()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/openshift/api/quota/v1").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := readCRD(t, filepath.Join(strings.TrimSpace(string(dir)), "zz_generated.crd-manifests", "0000_00_apiserver_01_clusterresourcequotas.crd.yaml"))
	got := readCRD(t, filepath.Join(bases(), "quota.openshift.io_clusterresourcequotas.yaml"))
	if d := cmp.Diff(want.Spec, got.Spec); d != "" {
		t.Errorf("spec differs (-OpenShift +ours):\n%s", d)
	}
}

func TestAppliedClusterResourceQuotaDiffersOnlyInScopeAndStatus(t *testing.T) {
	t.Parallel()
	crq := readCRD(t, filepath.Join(bases(), "quota.openshift.io_clusterresourcequotas.yaml")).Spec
	applied := readCRD(t, filepath.Join(bases(), "quota.openshift.io_appliedclusterresourcequotas.yaml")).Spec
	if applied.Scope != apiextensionsv1.NamespaceScoped {
		t.Errorf("scope is %s", applied.Scope)
	}
	if s := applied.Versions[0].Subresources; s != nil && s.Status != nil {
		t.Error("it has a status subresource")
	}
	want, got := crq.Versions[0].Schema.OpenAPIV3Schema, applied.Versions[0].Schema.OpenAPIV3Schema
	want.Description, got.Description = "", ""
	// Of a quantity it does not say again that it is an integer or a string.
	sayTwice := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".AnyOf" }, cmp.Ignore())
	if d := cmp.Diff(want, got, sayTwice); d != "" {
		t.Errorf("schema differs (-ClusterResourceQuota +AppliedClusterResourceQuota):\n%s", d)
	}
}

func TestCRDsAreEstablishedAndStructural(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(bases(), "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range files {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		crd.SetName(readCRD(t, file).Name)
		get(t, crd, crd)
		conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
		if err != nil {
			t.Fatal(err)
		}
		is := map[string]string{} // condition type -> status
		for _, c := range conditions {
			condition := c.(map[string]any)
			is[condition["type"].(string)] = condition["status"].(string)
		}
		if is["Established"] != "True" || is["NamesAccepted"] != "True" || is["NonStructuralSchema"] == "True" {
			t.Errorf("%s: conditions are %v", crd.GetName(), is)
		}
	}
}

func TestClusterResourceQuotaKeepsItsSelectorAndQuantities(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, selector string
		want           quotav1.ClusterResourceQuotaSelector
	}{
		{"labels-null", `{labels: null, annotations: {a: b}}`,
			quotav1.ClusterResourceQuotaSelector{AnnotationSelector: map[string]string{"a": "b"}}},
		{"annotations-null", `{labels: {matchLabels: {a: b}}, annotations: null}`,
			quotav1.ClusterResourceQuotaSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}},
		{"only-labels", `{labels: {matchExpressions: [{key: a, operator: In, values: [b, c]}]}}`,
			quotav1.ClusterResourceQuotaSelector{LabelSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"b", "c"}}},
			}}},
		{"empty", `{}`, quotav1.ClusterResourceQuotaSelector{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			u := &unstructured.Unstructured{}
			manifest := fmt.Sprintf(`{apiVersion: quota.openshift.io/v1, kind: ClusterResourceQuota, metadata: {name: %s}, spec: {selector: %s, quota: {hard: {%s: 8, %s: 640Gi, pods: "1.5"}}}}`,
				tc.name, tc.selector, devices, memory)
			if err := yaml.Unmarshal([]byte(manifest), u); err != nil {
				t.Fatal(err)
			}
			create(t, u)
			got := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: tc.name}}
			get(t, got, got)
			want := quotav1.ClusterResourceQuotaSpec{
				Selector: tc.want,
				Quota:    corev1.ResourceQuotaSpec{Hard: quantities(devices, "8", memory, "640Gi", "pods", "1.5")},
			}
			if d := diff(want, got.Spec); d != "" {
				t.Errorf("spec differs (-want +got):\n%s", d)
			}
			// A client that reads and writes back the typed object changes nothing: nil selectors become null.
			if err := server.Client.Update(t.Context(), got, client.FieldValidation("Strict")); err != nil {
				t.Fatal(err)
			}
			if d := diff(want, get(t, got, &quotav1.ClusterResourceQuota{}).Spec); d != "" {
				t.Errorf("spec differs after an update (-want +got):\n%s", d)
			}
		})
	}
}

func TestClusterResourceQuotaStatusIsASubresource(t *testing.T) {
	t.Parallel()
	crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "status"}, Spec: spec(), Status: status("project")}
	create(t, crq)
	got := get(t, crq, &quotav1.ClusterResourceQuota{})
	if d := diff(quotav1.ClusterResourceQuotaStatus{}, got.Status); d != "" {
		t.Errorf("create wrote the status:\n%s", d)
	}
	got.Status = status("project")
	got.Spec = quotav1.ClusterResourceQuotaSpec{}
	if err := server.Client.Status().Update(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	got = get(t, crq, &quotav1.ClusterResourceQuota{})
	if d := diff(status("project"), got.Status); d != "" {
		t.Errorf("status differs (-want +got):\n%s", d)
	}
	if d := diff(spec(), got.Spec); d != "" {
		t.Errorf("the status update wrote the spec (-want +got):\n%s", d)
	}
}

func TestAppliedQuotasKeepSpecAndStatusInOneWrite(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "default", Name: "applied"}
	acrq := &quotav1.AppliedClusterResourceQuota{ObjectMeta: meta, Spec: spec(), Status: status("default")}
	create(t, acrq)
	gotACRQ := get(t, acrq, &quotav1.AppliedClusterResourceQuota{})
	if d := diff(spec(), gotACRQ.Spec) + diff(status("default"), gotACRQ.Status); d != "" {
		t.Errorf("AppliedClusterResourceQuota differs (-want +got):\n%s", d)
	}
	adq := &v1alpha1.AppliedDeviceQuota{ObjectMeta: meta, Spec: spec(), Status: status("default")}
	create(t, adq)
	gotADQ := get(t, adq, &v1alpha1.AppliedDeviceQuota{})
	if d := diff(spec(), gotADQ.Spec) + diff(status("default"), gotADQ.Status); d != "" {
		t.Errorf("AppliedDeviceQuota differs (-want +got):\n%s", d)
	}
}

func ledgerStatus() v1alpha1.DeviceLedgerStatus {
	return v1alpha1.DeviceLedgerStatus{
		CRQUID:             "u-crq",
		CRQResourceVersion: "12",
		Hard:               quantities(devices, "8", memory, "640Gi"),
		Selector:           v1alpha1.LedgerSelector{Labels: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}},
		Observed:           v1alpha1.ObservedVersions{Claims: "10", Pods: "9", Namespaces: "8", CRQs: "7", Slices: "6", Classes: "5", Nodes: "4"},
		Used:               quantities(devices, "3", memory, "120Gi"),
		Holds: []v1alpha1.Hold{
			{UID: "u-1", Kind: v1alpha1.HoldClaim, Namespace: "p", Name: "c", Charge: quantities(devices, "1"), PodUID: "u-2"},
			{UID: "u-2", Kind: v1alpha1.HoldPod, Namespace: "p", Name: "d", Charge: quantities(devices, "2"), Advisory: true},
		},
		Rebuilding: true,
		Remembered: []v1alpha1.RememberedCharge{{UID: "u-3", Charge: quantities(memory, "40Gi")}},
		Conditions: []v1alpha1.LedgerCondition{
			{Type: v1alpha1.ConditionEnforced, Key: devices, Status: metav1.ConditionTrue, Reason: "Charged", LastTransitionTime: metav1.Unix(1e9, 0)},
			{Type: v1alpha1.ConditionStale, Status: metav1.ConditionFalse, Reason: "Fresh", Message: "m", LastTransitionTime: metav1.Unix(1e9, 0)},
		},
	}
}

func TestDeviceLedgerIsOneObject(t *testing.T) {
	t.Parallel()
	ledger := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Status: ledgerStatus()}
	create(t, ledger)
	got := get(t, ledger, &v1alpha1.DeviceLedger{})
	if d := diff(ledgerStatus(), got.Status); d != "" {
		t.Errorf("created status differs (-want +got):\n%s", d)
	}
	stale := got.DeepCopy()
	got.Status.Rebuilding = false
	got.Status.Holds = nil
	if err := server.Client.Update(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if again := get(t, ledger, &v1alpha1.DeviceLedger{}); again.Status.Rebuilding || len(again.Status.Holds) > 0 {
		t.Errorf("the update was not kept: %+v", again.Status)
	}
	if err := server.Client.Update(t.Context(), stale); !apierrors.IsConflict(err) {
		t.Errorf("an update from an old version gave %v, want a conflict", err)
	}
}

func TestDeviceLedgerRejects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
		change     func(*v1alpha1.DeviceLedgerStatus)
	}{
		{"two holds of one object", "Duplicate value", func(s *v1alpha1.DeviceLedgerStatus) { s.Holds[1].UID = s.Holds[0].UID }},
		{"an unknown kind of hold", "status.holds[0].kind", func(s *v1alpha1.DeviceLedgerStatus) { s.Holds[0].Kind = "Node" }},
		{"two statements of one type and key", "Duplicate value", func(s *v1alpha1.DeviceLedgerStatus) { s.Conditions[1] = s.Conditions[0] }},
		{"an unknown condition status", "status.conditions[0].status", func(s *v1alpha1.DeviceLedgerStatus) { s.Conditions[0].Status = "Perhaps" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ledger := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{GenerateName: "reject-"}, Status: ledgerStatus()}
			tc.change(&ledger.Status)
			err := server.Client.Create(t.Context(), ledger)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an Invalid that names %q", err, tc.want)
			}
		})
	}
}
