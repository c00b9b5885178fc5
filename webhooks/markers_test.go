package webhooks

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// rule is what the design says of one webhook.
type rule struct {
	Fails       admissionregistrationv1.FailurePolicyType
	SideEffects admissionregistrationv1.SideEffectClass
	Versions    string
	Operations  string
	Conditions  int
	Namespaced  bool
}

func TestTheGeneratedConfigurationAgreesWithTheDesignAndTheHandlers(t *testing.T) {
	data, err := os.ReadFile("../config/webhook/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fail, ignore := admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	none, onDryRun := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun
	const all, create, both = "v1,v1beta2,v1beta1", "CREATE", "CREATE,UPDATE"
	want := map[string]rule{
		PathValidateClaim:       {fail, onDryRun, all, create, 0, true},
		PathValidateTemplate:    {fail, none, all, create, 0, true},
		PathValidatePodExtended: {fail, onDryRun, "v1", create, 1, true},
		PathValidatePodClaims:   {ignore, onDryRun, "v1", create, 2, true},
		PathValidateQuota:       {ignore, none, "v1", both, 1, false},
		PathMutateClaim:         {ignore, none, all, both, 1, true},
		PathMutateTemplate:      {ignore, none, all, both, 1, true},
	}
	got := map[string]rule{}
	for doc := range strings.SplitSeq(string(data), "\n---\n") {
		var c admissionregistrationv1.ValidatingWebhookConfiguration
		if err := yaml.Unmarshal([]byte(doc), &c); err != nil {
			t.Fatal(err)
		}
		for _, w := range c.Webhooks {
			r := w.Rules[0]
			ops := make([]string, len(r.Operations))
			for i, o := range r.Operations {
				ops[i] = string(o)
			}
			got[*w.ClientConfig.Service.Path] = rule{*w.FailurePolicy, *w.SideEffects, strings.Join(r.APIVersions, ","),
				strings.Join(ops, ","), len(w.MatchConditions), w.NamespaceSelector != nil}
			if *w.MatchPolicy != admissionregistrationv1.Equivalent || *w.TimeoutSeconds != 5 || w.ObjectSelector != nil {
				t.Errorf("%s: matchPolicy, timeoutSeconds or objectSelector is wrong", w.Name)
			}
			if s := w.NamespaceSelector; s != nil && (len(s.MatchExpressions) != 1 || s.MatchExpressions[0].Key != "kubernetes.io/metadata.name" || len(s.MatchLabels) > 0) {
				t.Errorf("%s: namespaces are left out by a label that tenants can set", w.Name)
			}
			for _, m := range w.MatchConditions {
				if strings.Contains(m.Expression, "userInfo") {
					t.Errorf("%s: condition %q goes by the requester", w.Name, m.Name)
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	handlers := Handlers(newWorld(t).deps(), Options{})
	for path := range want {
		if handlers[path] == nil {
			t.Errorf("nothing serves %s", path)
		}
	}
	if len(handlers) != len(want) {
		t.Errorf("%d handlers for %d webhooks", len(handlers), len(want))
	}
}
