package install

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/devicequota/devicequota/test/harness"
)

// TestMain fails when the charts give the manager a right that it used in no installation.
func TestMain(m *testing.M) {
	code := m.Run()
	if needless := needlessRights(); code == 0 && len(needless) > 0 {
		fmt.Fprintf(os.Stderr, "of %d rights given:\n%s\n", len(rights.given), strings.Join(needless, "\n"))
		code = 1
	}
	os.Exit(code)
}

// right is one thing that a role allows. The name is empty for all objects.
type right struct{ group, resource, name, verb string }

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.name != "" {
		text += " " + r.name
	}
	return text
}

// audited are the tests that record what the manager does. Together they play all of it.
var audited = []string{"TestEveryWayToGetCertificates", "TestInstall"}

// rights is what the audits found.
var rights = struct {
	sync.Mutex // protects the following

	done map[string]bool
	used map[right]bool
	// by right, the role that gives it
	given map[right]string
}{done: map[string]bool{}, used: map[right]bool{}, given: map[right]string{}}

// needlessRights names each right that was given and that nobody used, once all audits are done.
func needlessRights() []string {
	rights.Lock()
	defer rights.Unlock()
	for _, name := range audited {
		if !rights.done[name] {
			return nil
		}
	}
	var out []string
	for r, role := range rights.given {
		if !rights.used[r] {
			out = append(out, fmt.Sprintf("%s: never used: %s", role, r))
		}
	}
	slices.Sort(out)
	return out
}

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

// events returns what was recorded so far. The API server writes an event before it answers.
func (a *auditLog) events(t *testing.T) []auditv1.Event {
	t.Helper()
	f, err := os.Open(a.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var out []auditv1.Event
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("audit log: %v", err)
		}
		if e.ObjectRef != nil {
			out = append(out, e)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func rightOf(e auditv1.Event) right {
	r := right{group: e.ObjectRef.APIGroup, resource: e.ObjectRef.Resource, verb: e.Verb}
	if e.ObjectRef.Subresource != "" {
		r.resource += "/" + e.ObjectRef.Subresource
	}
	return r
}

// given takes down what the chart with the values allows the manager.
func given(t *testing.T, v values, apiVersions ...string) {
	t.Helper()
	rights.Lock()
	defer rights.Unlock()
	for role, rules := range boundRules(t, mustRender(t, mainChart, v, apiVersions...)) {
		for _, rule := range rules {
			for r := range rightsOf(rule) {
				rights.given[r] = role
			}
		}
	}
}

func rightsOf(rule rbacv1.PolicyRule) map[right]bool {
	out := map[right]bool{}
	objects := rule.ResourceNames
	if len(objects) == 0 {
		objects = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, res := range rule.Resources {
			for _, name := range objects {
				for _, verb := range rule.Verbs {
					out[right{group, res, name, verb}] = true
				}
			}
		}
	}
	return out
}

// used takes down a right whose use is in no request.
func used(r right) {
	rights.Lock()
	defer rights.Unlock()
	rights.used[r] = true
}

// check fails when the manager was refused anything, and takes down what it did.
func (a *auditLog) check(t *testing.T) {
	t.Helper()
	refused := map[string]bool{}
	rights.Lock()
	defer rights.Unlock()
	for _, e := range a.events(t) {
		r := rightOf(e)
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" {
			refused[r.String()] = true
			continue
		}
		rights.used[r] = true
		r.name = e.ObjectRef.Name
		rights.used[r] = true
	}
	for _, r := range slices.Sorted(maps.Keys(refused)) {
		t.Errorf("the manager has no right to %s", r)
	}
	rights.done[t.Name()] = true
}
