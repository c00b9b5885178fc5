package install

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/test/harness"
)

// config reads objects of config/.
func config(t *testing.T, path ...string) []*unstructured.Unstructured {
	t.Helper()
	objs, err := harness.Objects(filepath.Join(append([]string{harness.Root(), "config"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return objs
}

func TestCRDChartInstallsTheGeneratedCRDs(t *testing.T) {
	t.Parallel()
	want, got := map[string]any{}, map[string]any{}
	for _, o := range config(t, "crd", "bases") {
		want[o.GetName()] = as[apiextensionsv1.CustomResourceDefinition](t, o).Spec
	}
	for _, o := range mustRender(t, crdChart, values{"platform": "kubernetes"}) {
		got[o.GetName()] = as[apiextensionsv1.CustomResourceDefinition](t, o).Spec
		if o.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s: uninstalling would delete it, and all quotas with it", o.GetName())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-config +chart):\n%s", diff)
	}
}

// webhookSet is both configurations in one form; the mutating ones have a reinvocation policy.
type webhookSet map[string]admissionv1.MutatingWebhook

func webhooksOf(t *testing.T, objs []*unstructured.Unstructured) webhookSet {
	t.Helper()
	out := webhookSet{}
	for _, o := range objs {
		switch o.GetKind() {
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			for _, w := range as[admissionv1.MutatingWebhookConfiguration](t, o).Webhooks {
				if (w.ReinvocationPolicy != nil) != (o.GetKind() == "MutatingWebhookConfiguration") {
					t.Errorf("%s is in a %s", w.Name, o.GetKind())
				}
				out[w.Name] = w
			}
		}
	}
	return out
}

func TestDefaultWebhooksAreThoseOfConfig(t *testing.T) {
	t.Parallel()
	want, got := webhooksOf(t, config(t, "webhook")), webhooksOf(t, mustRender(t, mainChart, values{}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-config +chart):\n%s", diff)
	}
	if len(got) != 7 {
		t.Errorf("%d webhooks, want 7", len(got))
	}
}

// TestWebhookOptionsChangeOnlyWhatTheySay renders every ci values file: rules and built-in
// conditions are never touched, exemption is by namespace name, and nobody is left out by
// requester.
func TestWebhookOptionsChangeOnlyWhatTheySay(t *testing.T) {
	t.Parallel()
	want := webhooksOf(t, config(t, "webhook"))
	for ci, v := range ciValues(t, mainChart) {
		for name, w := range webhooksOf(t, mustRender(t, mainChart, v)) {
			c := want[name]
			if diff := cmp.Diff(c, w, cmpopts.IgnoreFields(admissionv1.MutatingWebhook{}, "ClientConfig", "FailurePolicy", "TimeoutSeconds", "NamespaceSelector", "MatchConditions")); diff != "" {
				t.Errorf("%s: %s (-config +chart):\n%s", ci, name, diff)
			}
			if len(w.MatchConditions) < len(c.MatchConditions) {
				t.Errorf("%s: %s lost match conditions", ci, name)
			}
			if diff := cmp.Diff(c.MatchConditions, w.MatchConditions[:len(c.MatchConditions)], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: %s match conditions (-config +chart):\n%s", ci, name, diff)
			}
			if (w.ClientConfig.CABundle != nil) != strings.HasSuffix(ci, "provided") {
				t.Errorf("%s: %s has caBundle %q", ci, name, w.ClientConfig.CABundle)
			}
			if *w.TimeoutSeconds < 1 || *w.TimeoutSeconds > 10 {
				t.Errorf("%s: %s has timeout %d", ci, name, *w.TimeoutSeconds)
			}
			if c.NamespaceSelector == nil {
				continue
			}
			first := w.NamespaceSelector.MatchExpressions[0]
			if first.Key != "kubernetes.io/metadata.name" || first.Operator != metav1.LabelSelectorOpNotIn || !slices.Contains(first.Values, harness.Namespace) {
				t.Errorf("%s: %s exempts %v", ci, name, first)
			}
		}
	}
}

func TestWebhookOptionsAreApplied(t *testing.T) {
	t.Parallel()
	got := webhooksOf(t, mustRender(t, mainChart, parseValues(t, `
exemptNamespaces: [b, a]
service: {port: 8443}
fullnameOverride: dq
webhooks:
  resourceClaims: {failurePolicy: Ignore, timeoutSeconds: 3, namespaceSelector: {matchLabels: {x: z}, matchExpressions: [{key: z, operator: Exists}]}, matchConditions: [{name: a, expression: "true"}]}
  podResourceClaims: {enabled: false}
`)))
	w := got["resourceclaims.validate.devicequota.io"]
	want := admissionv1.MutatingWebhook{
		FailurePolicy: ptr.To(admissionv1.Ignore), TimeoutSeconds: ptr.To(int32(3)),
		ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
			Namespace: harness.Namespace, Name: "dq", Path: ptr.To("/validate-resourceclaim"), Port: ptr.To(int32(8443))}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "z"}, MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b", harness.Namespace}},
			{Key: "z", Operator: metav1.LabelSelectorOpExists}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "a", Expression: "true"}},
	}
	if diff := cmp.Diff(want, w, cmpopts.IgnoreFields(admissionv1.MutatingWebhook{}, "Name", "Rules", "MatchPolicy", "SideEffects", "AdmissionReviewVersions")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := got["resourceclaims.pods.validate.devicequota.io"]; ok {
		t.Error("a webhook that is off is rendered")
	}
	off := mustRender(t, mainChart, parseValues(t, "webhooks: {mutateResourceClaims: {enabled: false}, mutateResourceClaimTemplates: {enabled: false}}"))
	for _, o := range off {
		if o.GetKind() == "MutatingWebhookConfiguration" {
			t.Error("a configuration without webhooks is rendered")
		}
	}
	if strings.Contains(configFile(t, off), "mutatingWebhookConfiguration") {
		t.Error("the manager waits for a configuration that is not there")
	}
}

// boundRules returns the rules of all roles that a render binds to the manager.
func boundRules(t *testing.T, objs []*unstructured.Unstructured) map[string][]rbacv1.PolicyRule {
	t.Helper()
	roles, out := map[string][]rbacv1.PolicyRule{}, map[string][]rbacv1.PolicyRule{}
	for _, o := range objs {
		if o.GetKind() == "ClusterRole" || o.GetKind() == "Role" {
			roles[o.GetKind()+" "+o.GetName()] = as[rbacv1.ClusterRole](t, o).Rules
		}
	}
	for _, o := range objs {
		if o.GetKind() != "ClusterRoleBinding" && o.GetKind() != "RoleBinding" {
			continue
		}
		b := as[rbacv1.ClusterRoleBinding](t, o)
		if len(b.Subjects) == 1 && b.Subjects[0].Name == harness.ServiceAccount {
			name := b.RoleRef.Kind + " " + b.RoleRef.Name
			if roles[name] == nil {
				t.Errorf("%s %s binds %s, which is not there", o.GetKind(), o.GetName(), name)
			}
			out[name] = roles[name]
		}
	}
	return out
}

func TestRolesAreThoseOfConfig(t *testing.T) {
	t.Parallel()
	all := map[string][]rbacv1.PolicyRule{}
	for _, o := range config(t, "rbac") {
		all[o.GetKind()+" "+o.GetName()] = as[rbacv1.ClusterRole](t, o).Rules
	}
	const always, elected = "ClusterRole devicequota", "Role devicequota"
	for text, names := range map[string][]string{
		"{}": {always, elected, "-detection", "-metrics", "-projection-kubernetes"},
		"{platform: kubernetes, allocation: all}":             {always, elected, "-metrics", "-allocation", "-projection-kubernetes"},
		"{platform: openshift}":                               {always, elected, "-metrics", "-projection-openshift"},
		"{platform: kubernetes, metrics: {secure: false}}":    {always, elected, "-projection-kubernetes"},
		"{platform: openshift, metrics: {enabled: false}}":    {always, elected, "-projection-openshift"},
		"{replicas: 1, leaderElection: {enabled: false}}":     {always, "-detection", "-metrics", "-projection-kubernetes"},
		"{platform: openshift, allocation: all, replicas: 3}": {always, elected, "-metrics", "-allocation", "-projection-openshift"},
	} {
		want := map[string][]rbacv1.PolicyRule{}
		for _, name := range names {
			if strings.HasPrefix(name, "-") {
				name = always + name
			}
			if want[name] = all[name]; len(all[name]) == 0 {
				t.Errorf("config/rbac has no %s", name)
			}
		}
		got := boundRules(t, mustRender(t, mainChart, parseValues(t, text)))
		for name := range got {
			if strings.HasSuffix(name, "-certificates") { // config/ does not need it
				delete(got, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-config +chart):\n%s", text, diff)
		}
	}
}

func TestCertificateRightsNameTheirObjects(t *testing.T) {
	t.Parallel()
	objs := mustRender(t, mainChart, values{})
	for _, kind := range []string{"Role", "ClusterRole"} {
		for _, r := range as[rbacv1.ClusterRole](t, one(t, objs, kind, "devicequota-certificates")).Rules {
			if len(r.ResourceNames) != 1 || slices.Contains(r.Verbs, "create") || slices.Contains(r.Verbs, "*") {
				t.Errorf("%s: %v", kind, r)
			}
		}
	}
	for _, mode := range []string{"certManager", "provided", "serviceCA"} {
		v := parseValues(t, "{platform: openshift, tls: {mode: "+mode+"}}")
		if mode == "provided" {
			v = ciValues(t, mainChart)["provided"]
		}
		for name := range names(mustRender(t, mainChart, v)) {
			if strings.HasSuffix(name, "-certificates") || strings.HasPrefix(name, "Secret ") {
				t.Errorf("tls.mode=%s: %s is rendered", mode, name)
			}
		}
	}
}

func TestPriorityAndFairnessIsThatOfConfig(t *testing.T) {
	t.Parallel()
	chart, shipped := mustRender(t, mainChart, values{}), config(t, "apf")
	if diff := cmp.Diff(as[flowcontrolv1.PriorityLevelConfiguration](t, one(t, shipped, "PriorityLevelConfiguration")).Spec,
		as[flowcontrolv1.PriorityLevelConfiguration](t, one(t, chart, "PriorityLevelConfiguration")).Spec); diff != "" {
		t.Errorf("priority level (-config +chart):\n%s", diff)
	}
	if diff := cmp.Diff(as[flowcontrolv1.FlowSchema](t, one(t, shipped, "FlowSchema")).Spec,
		as[flowcontrolv1.FlowSchema](t, one(t, chart, "FlowSchema")).Spec); diff != "" {
		t.Errorf("flow schema (-config +chart):\n%s", diff)
	}
}
