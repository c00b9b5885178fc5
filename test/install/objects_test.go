package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/devicequota/devicequota/test/harness"
)

// TestSelectorsFindTheManagersPods checks everything that selects pods: it finds those of the
// Deployment, and not the one of `helm test`.
func TestSelectorsFindTheManagersPods(t *testing.T) {
	t.Parallel()
	for ci, v := range ciValues(t, mainChart) {
		objs := mustRender(t, mainChart, v)
		d := deployment(t, objs)
		selectors, test := map[string]map[string]string{"Deployment": d.Spec.Selector.MatchLabels}, labels.Set{}
		for _, o := range objs {
			switch o.GetKind() {
			case "Service":
				selectors["Service"] = as[corev1.Service](t, o).Spec.Selector
			case "NetworkPolicy":
				selectors["NetworkPolicy"] = as[networkingv1.NetworkPolicy](t, o).Spec.PodSelector.MatchLabels
			case "PodDisruptionBudget":
				selectors["PodDisruptionBudget"] = as[policyv1.PodDisruptionBudget](t, o).Spec.Selector.MatchLabels
			case "Pod":
				test = o.GetLabels()
			}
		}
		for kind, s := range selectors {
			if sel := labels.SelectorFromSet(s); len(s) == 0 || !sel.Matches(labels.Set(d.Spec.Template.Labels)) || sel.Matches(test) {
				t.Errorf("%s: %s selects %v", ci, kind, s)
			}
		}
	}
}

// TestPortsLeadToTheManager checks that the Service's ports are the container's, and that the
// NetworkPolicy lets in those and nothing else.
func TestPortsLeadToTheManager(t *testing.T) {
	t.Parallel()
	for ci, v := range ciValues(t, mainChart) {
		objs := mustRender(t, mainChart, v)
		served, allowed := map[string]int{}, []int{}
		for _, p := range deployment(t, objs).Spec.Template.Spec.Containers[0].Ports {
			served[p.Name] = int(p.ContainerPort)
			allowed = append(allowed, int(p.ContainerPort))
		}
		for _, p := range as[corev1.Service](t, one(t, objs, "Service")).Spec.Ports {
			if served[p.TargetPort.StrVal] == 0 {
				t.Errorf("%s: port %s leads to %q, which the container does not have", ci, p.Name, p.TargetPort.StrVal)
			}
		}
		for _, o := range objs {
			if o.GetKind() != "NetworkPolicy" {
				continue
			}
			spec, open := as[networkingv1.NetworkPolicy](t, o).Spec, []int{}
			for _, rule := range spec.Ingress {
				for _, p := range rule.Ports {
					open = append(open, p.Port.IntValue())
				}
			}
			if diff := cmp.Diff(allowed, open); diff != "" {
				t.Errorf("%s: ports (-container +NetworkPolicy):\n%s", ci, diff)
			}
			if closes := slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress); closes != (len(spec.Egress) > 0) {
				t.Errorf("%s: policy types %v, egress %v", ci, spec.PolicyTypes, spec.Egress)
			}
		}
	}
}

// TestAggregatedRolesOnlyRead checks who gets to see what, by the labels that Kubernetes and
// OpenShift aggregate roles by.
func TestAggregatedRolesOnlyRead(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"devicequota-project-view": "admin edit view: applieddevicequotas.devicequota.io, appliedclusterresourcequotas.quota.openshift.io",
		"devicequota-cluster-view": "cluster-reader: deviceledgers.devicequota.io, applieddevicequotas.devicequota.io, " +
			"clusterresourcequotas.quota.openshift.io, appliedclusterresourcequotas.quota.openshift.io",
	}
	got := map[string]string{}
	for _, o := range mustRender(t, mainChart, values{}) {
		var to, what []string
		for _, l := range sorted(o.GetLabels()) {
			if role, ok := strings.CutPrefix(l, "rbac.authorization.k8s.io/aggregate-to-"); ok {
				to = append(to, role)
			}
		}
		if len(to) == 0 {
			continue
		}
		for _, r := range as[rbacv1.ClusterRole](t, o).Rules {
			if diff := cmp.Diff([]string{"get", "list", "watch"}, r.Verbs); diff != "" {
				t.Errorf("%s: verbs (-want +got):\n%s", o.GetName(), diff)
			}
			for _, res := range r.Resources {
				what = append(what, res+"."+r.APIGroups[0])
			}
		}
		got[o.GetName()] = strings.Join(to, " ") + ": " + strings.Join(what, ", ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMustGatherReadsNoSecrets runs hack/must-gather with a kubectl that answers with its
// arguments.
func TestMustGatherReadsNoSecrets(t *testing.T) {
	t.Parallel()
	bin, out := t.TempDir(), t.TempDir()
	kubectl := "#!/bin/sh\ncase \"$*\" in *'-o name'*) echo pod/one ;; *'name==\"health\"'*) echo 9001 ;; *) echo \"$*\" ;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(harness.Root(), "hack", "must-gather", "gather"), out)
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "SINCE=2h"}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	asked := map[string]string{}
	err := filepath.WalkDir(out, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(out, path) // it is below
		asked[name] = string(data)
		if strings.Contains(strings.ToLower(string(data)), "secret") {
			t.Errorf("%s asks for %s", name, data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"version":                "devicequota\n-n devicequota-system get deployment devicequota",
		"errors.txt":             "",
		"manager/logs/one.log":   "logs one --since=2h",
		"manager/readyz/one.txt": "/pods/one:9001/proxy/readyz",
		"webhooks/validatingwebhookconfigurations.yaml": "get validatingwebhookconfigurations",
		"quota/deviceledgers.devicequota.io.yaml":       "get deviceledgers.devicequota.io",
		"quota/resourceclaims.resource.k8s.io.yaml":     "--all-namespaces",
		"quota/applieddevicequotas.devicequota.io.yaml": "--all-namespaces",
		"manager/prioritylevelconfiguration.yaml":       "get prioritylevelconfiguration devicequota",
	} {
		if text, ok := asked[name]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s is %q, want %q", name, text, want)
		}
	}
}
