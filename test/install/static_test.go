package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/devicequota/devicequota/test/harness"
)

func TestChartsLint(t *testing.T) {
	t.Parallel()
	for _, name := range []string{mainChart, crdChart} {
		for ci, v := range ciValues(t, name) {
			lint := action.NewLint()
			lint.Strict, lint.Namespace = true, harness.Namespace
			result := lint.Run([]string{chartDir(name)}, v)
			for _, m := range result.Messages {
				if m.Severity > 1 { // info is not a finding
					t.Errorf("%s with %s: %v", name, ci, m)
				}
			}
			for _, err := range result.Errors {
				t.Errorf("%s with %s: %v", name, ci, err)
			}
		}
	}
}

// TestRendersAreAsReviewed compares every ci/*-values.yaml with what was reviewed. -update
// writes what is rendered now.
func TestRendersAreAsReviewed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{mainChart, crdChart} {
		dir := filepath.Join("testdata", name)
		want := map[string]bool{}
		for ci, v := range ciValues(t, name) {
			r, err := render(t, name, v)
			if err != nil {
				t.Errorf("%s with %s: %v", name, ci, err)
				continue
			}
			text := everything(r) + "---\n# NOTES\n# " + strings.ReplaceAll(strings.TrimSpace(r.Info.Notes), "\n", "\n# ") + "\n"
			if name == crdChart {
				text = outline(t, text)
			}
			file := filepath.Join(dir, ci+".yaml")
			want[file] = true
			golden(t, file, text)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !want[f] {
				t.Errorf("%s: there are no such ci values any more", f)
			}
		}
	}
}

// outline shortens CRDs, which are compared with config/crd, to their metadata.
func outline(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	for _, o := range objects(t, text) {
		b.WriteString(o.GetKind() + " " + o.GetName() + "\n")
		for _, k := range sorted(o.GetAnnotations()) {
			b.WriteString("  annotation " + k + ": " + o.GetAnnotations()[k] + "\n")
		}
		for _, k := range sorted(o.GetLabels()) {
			b.WriteString("  label " + k + ": " + o.GetLabels()[k] + "\n")
		}
	}
	return b.String()
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v (go test -update writes it)", err)
		return
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it):\n%s", file, diff)
	}
}

func TestRenderingIsDeterministic(t *testing.T) {
	t.Parallel()
	for ci, v := range ciValues(t, mainChart) {
		a, err := render(t, mainChart, v)
		if err != nil {
			t.Fatal(err)
		}
		b, err := render(t, mainChart, v)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(everything(a), everything(b)); diff != "" {
			t.Errorf("%s: two renders differ:\n%s", ci, diff)
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"replica: 2": "replica",
		"webhooks: {resourceClaim: {enabled: false}}":                "resourceClaim",
		"webhooks: {resourceClaims: {failurePolicy: fail}}":          "failurePolicy",
		"webhooks: {resourceClaims: {timeoutSeconds: 31}}":           "timeoutSeconds",
		"webhooks: {clusterResourceQuotas: {namespaceSelector: {}}}": "namespaceSelector",
		"platform: okd":     "platform",
		"tls: {mode: none}": "mode",
		"tls: {mode: provided, caBundle: '-----BEGIN CERTIFICATE-----'}": "tls.secretName",
		"tls: {mode: provided, secretName: a}":                           "tls.caBundle",
		"tls: {caBundle: '-----BEGIN CERTIFICATE-----'}":                 "only for tls.mode=provided",
		"tls: {mode: provided, secretName: a, caBundle: abc}":            "caBundle",
		"{platform: kubernetes, tls: {mode: serviceCA}}":                 "only for OpenShift",
		"leaderElection: {enabled: false}":                               "only for replicas=1",
		"leaderElection: {leaseDuration: 15}":                            "leaseDuration",
		"{hostNetwork: true, hostUsers: false}":                          "exclude each other",
		"replicas: 0":                                                    "replicas",
		"allocation: true":                                               "allocation",
		"allocation: false":                                              "allocation",
		"adminAccess: deny":                                              "adminAccess",
		"enforcement: enforce":                                           "enforcement",
		"exemptNamespaces: [Kube_System]":                                "exemptNamespaces",
		"image: {digest: 'sha256:abc'}":                                  "digest",
		"webhookPort: 443":                                               "webhookPort",
		"apiPriority: {matchingPrecedence: 900}":                         "matchingPrecedence",
		"pprofBindAddress: 0.0.0.0:6060":                                 "pprofBindAddress",
		"metrics: {serviceMonitor: {enable: true}}":                      "enable",
		"log: {level: debug}":                                            "level",
	} {
		if _, err := render(t, mainChart, parseValues(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error about %q, got: %v", text, want, err)
		}
	}
	for text, want := range map[string]string{
		"platform: okd":      "platform",
		"crds: {keep: true}": "crds",
		"{platform: openshift, clusterResourceQuota: install}": "the platform brings ClusterResourceQuota",
		"clusterResourceQuota: true":                           "clusterResourceQuota",
	} {
		if _, err := render(t, crdChart, parseValues(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error about %q, got: %v", text, want, err)
		}
	}
}

// names returns "Kind name" of all objects.
func names(objs []*unstructured.Unstructured) map[string]bool {
	out := map[string]bool{}
	for _, o := range objs {
		out[o.GetKind()+" "+o.GetName()] = true
	}
	return out
}

func TestOpenShiftIsFoundByItsAPI(t *testing.T) {
	t.Parallel()
	crq := "CustomResourceDefinition clusterresourcequotas.quota.openshift.io"
	if !names(mustRender(t, crdChart, values{}))[crq] {
		t.Error("plain Kubernetes: ClusterResourceQuota is not installed")
	}
	if names(mustRender(t, crdChart, values{}, "security.openshift.io/v1"))[crq] {
		t.Error("OpenShift: ClusterResourceQuota is installed")
	}
	if _, err := render(t, crdChart, values{"clusterResourceQuota": "install"}, "security.openshift.io/v1"); err == nil {
		t.Error("OpenShift: the definition of ClusterResourceQuota is not refused")
	}
	openshift := mustRender(t, mainChart, values{}, "security.openshift.io/v1")
	annotations, _, err := unstructured.NestedStringMap(one(t, openshift, "Deployment").Object, "spec", "template", "metadata", "annotations")
	if err != nil || annotations["openshift.io/required-scc"] != "restricted-v2" {
		t.Errorf("OpenShift: pod annotations %v (%v)", annotations, err)
	}
}

// TestChartVerifierChecks is what Red Hat's chart-verifier (profile partner 1.3) asks of the
// main chart, as far as it can be told without a registry: images-are-certified and
// signature-is-valid are for the release.
func TestChartVerifierChecks(t *testing.T) {
	t.Parallel()
	c := loadChart(t, mainChart)
	files := map[string]string{}
	for _, f := range c.Raw {
		files[f.Name] = string(f.Data)
	}
	objs := mustRender(t, mainChart, values{})
	images := map[string]bool{deployment(t, objs).Spec.Template.Spec.Containers[0].Image: true}
	tests := 0
	for _, o := range objs {
		if o.GetAnnotations()["helm.sh/hook"] == "test" {
			tests++
			images[as[corev1.Pod](t, o).Spec.Containers[0].Image] = true
		}
	}
	contains := func(text string) bool {
		for name, content := range files {
			if strings.HasSuffix(name, ".yaml") && strings.Contains(content, text) {
				return true
			}
		}
		return false
	}
	for check, ok := range map[string]bool{
		"has-readme":                   files["README.md"] != "",
		"is-helm-v3":                   c.Metadata.APIVersion == "v2",
		"contains-test":                files["templates/tests/ready.yaml"] != "" && tests == 1,
		"contains-values":              files["values.yaml"] != "",
		"contains-values-schema":       files["values.schema.json"] != "",
		"has-kubeversion":              c.Metadata.KubeVersion != "",
		"not-contains-crds":            !contains("kind: CustomResourceDefinition"),
		"not-contain-csi-objects":      !contains("kind: CSIDriver"),
		"required-annotations-present": c.Metadata.Annotations["charts.openshift.io/name"] != "",
		"has-notes":                    files["templates/NOTES.txt"] != "",
		"one image to be certified":    len(images) == 1 && images["ghcr.io/devicequota/devicequota:"+c.Metadata.AppVersion],
	} {
		if !ok {
			t.Errorf("%s", check)
		}
	}
	if strings.Contains(strings.Join(sorted(files), " "), "gotmpl") {
		t.Errorf("the package has files that nobody needs: %v", sorted(files))
	}
}

func TestOldKubernetesIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{mainChart, crdChart} {
		if _, err := renderAt(t, name, "v1.32.0", values{}); err != nil {
			t.Error(err)
		}
		if _, err := renderAt(t, name, "v1.31.9", values{}); err == nil || !strings.Contains(err.Error(), "1.32") {
			t.Errorf("%s on Kubernetes 1.31: %v", name, err)
		}
	}
}

func TestTemplatesMakeNoSecretsAndLookNothingUp(t *testing.T) {
	t.Parallel()
	for _, c := range []string{mainChart, crdChart} {
		for _, f := range loadChart(t, c).Templates {
			for _, word := range []string{"genCA", "genSignedCert", "genSelfSignedCert", "genPrivateKey", "randAlpha", "lookup ", "uuidv4", "now |"} {
				if strings.Contains(string(f.Data), word) {
					t.Errorf("%s/%s uses %s: a render would not be deterministic", c, f.Name, word)
				}
			}
		}
	}
}
