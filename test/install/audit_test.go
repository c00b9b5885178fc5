package install

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/devicequota/devicequota/test/harness"
)

func claimQuantity() resource.Quantity { return resource.MustParse("1") }

// auditLog records what the manager's ServiceAccount asks the API server for.
type auditLog struct{ policy, log string }

func newAudit(t *testing.T) *auditLog {
	t.Helper()
	dir := t.TempDir()
	a := &auditLog{policy: filepath.Join(dir, "policy.yaml"), log: filepath.Join(dir, "audit.log")}
	policy := `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:` + harness.Namespace + ":" + harness.ServiceAccount + `"]
- level: None
`
	if err := os.WriteFile(a.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *auditLog) flags() map[string]string {
	return map[string]string{"audit-policy-file": a.policy, "audit-log-path": a.log}
}

// right is one thing that a role allows.
type right struct{ group, resource, verb string }

func (r right) String() string { return r.verb + " " + r.resource + " (" + r.group + ")" }

// check fails when the manager was refused anything, and when its roles allow what it never
// did, except what only happens in cases that this test does not play.
func (a *auditLog) check(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	used := map[right]bool{}
	f, err := os.Open(a.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	refused := map[string]bool{}
	for lines.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.ObjectRef == nil {
			continue
		}
		r := right{e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.Verb}
		if e.ObjectRef.Subresource != "" {
			r.resource += "/" + e.ObjectRef.Subresource
		}
		used[r] = true
		if e.ResponseStatus != nil && e.ResponseStatus.Code == 403 {
			refused[r.String()] = true
		}
	}
	for _, r := range sorted(refused) {
		t.Errorf("the manager has no right to %s", r)
	}
	elsewhere := map[string]string{
		"get resourceclaims (resource.k8s.io)":                  "a claim that a pod names and the caches do not know yet",
		"get namespaces ()":                                     "an unknown namespace is read live",
		"get nodes ()":                                          "the same list of verbs as for its neighbours in the generated rule",
		"get pods ()":                                           "the scheduler's claim for a pod with extended resources",
		"patch events (,events.k8s.io)":                         "an event that happens again",
		"delete deviceledgers (devicequota.io)":                 "a quota that is deleted, after its holds ended",
		"get deviceclasses (resource.k8s.io)":                   "as for nodes",
		"get devicetaintrules (resource.k8s.io)":                "as for nodes",
		"get resourceslices (resource.k8s.io)":                  "as for nodes",
		"get appliedclusterresourcequotas (quota.openshift.io)": "a conflict of two leaders",
	}
	for _, o := range mustRender(t, mainChart, values{"platform": "kubernetes"}) {
		if o.GetKind() != "ClusterRole" && o.GetKind() != "Role" || slices.Contains(userRoles(), o.GetName()) {
			continue
		}
		for _, rule := range as[rbacv1.ClusterRole](t, o).Rules {
			for _, missing := range unused(rule, used) {
				// Lists are streamed by watches; a server that cannot is asked to list.
				if missing.verb != "list" && elsewhere[missing.String()] == "" {
					t.Errorf("%s %s: never used: %s", o.GetKind(), o.GetName(), missing)
				}
			}
		}
	}
}

// userRoles are roles for others than the manager.
func userRoles() []string {
	return []string{"devicequota-project-view", "devicequota-cluster-view", "devicequota-adminaccess", "devicequota-metrics-reader"}
}

// unused returns the rights of the rule that nobody used. A rule for several groups needs to
// be used in one of them.
func unused(rule rbacv1.PolicyRule, used map[right]bool) []right {
	var out []right
	for _, res := range rule.Resources {
		for _, verb := range rule.Verbs {
			found := false
			for _, group := range rule.APIGroups {
				found = found || used[right{group, res, verb}]
			}
			if !found {
				out = append(out, right{strings.Join(rule.APIGroups, ","), res, verb})
			}
		}
	}
	return out
}
