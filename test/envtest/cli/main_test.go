//go:build e2e

// Package cli proves the commands of kubectl-devicequota that read a cluster on a real
// kube-apiserver beside a running manager: for an administrator who may only read, and for
// members of a project with fewer and fewer rights.
package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/devicequota/devicequota/test/harness"
)

// cp and manager are shared by all tests of the package.
var (
	cp      *harness.ControlPlane
	manager *harness.Manager
	// auditLog is where the API server writes what the users ask it for.
	auditLog string
	// kubeconfigs by user.
	kubeconfigs = map[string]string{}
)

// Users, from the one who may read everything to the one who may read next to nothing.
const (
	auditor   = "auditor"   // reads everything
	scientist = "scientist" // reads a project, devices and classes
	member    = "member"    // reads a project
	guest     = "guest"     // reads what a project is shown of its quotas
	stranger  = "stranger"  // reads nothing
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "devicequota-cli-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	auditLog = filepath.Join(dir, "audit.log")
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [auditor, scientist, member, guest, stranger]
- level: None
`), 0o600); err != nil {
		return 1, err
	}
	if cp, err = harness.Start(harness.Options{OldVersions: true, Flags: map[string]string{"audit-policy-file": policy, "audit-log-path": auditLog}}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := prepare(ctx, dir); err != nil {
		return 1, err
	}
	if manager, err = cp.StartManager(ctx, harness.ManagerOptions{Args: []string{"--shutdown-delay=0s"}}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, manager.Stop()) }()
	if err := cp.ApplyPath(ctx, filepath.Join(harness.Root(), "examples", "quotas")); err != nil {
		return 1, err
	}
	code = m.Run()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "\nmanager:\n%s\n", manager.LogTail(60))
	}
	return code, nil
}

// prepare installs the product, the example's cluster and the users.
func prepare(ctx context.Context, dir string) error {
	if err := cp.Install(ctx); err != nil {
		return err
	}
	if err := cp.ApplyPath(ctx, filepath.Join(harness.Root(), "examples", "cluster")); err != nil {
		return err
	}
	rules := map[string][]rbacv1.PolicyRule{
		auditor: {{Verbs: read, APIGroups: []string{"*"}, Resources: []string{"*"}}},
		scientist: {{Verbs: read, APIGroups: []string{"resource.k8s.io"}, Resources: []string{"deviceclasses", "resourceslices"}},
			{Verbs: read, APIGroups: []string{""}, Resources: []string{"nodes"}}},
	}
	inProject := map[string][]rbacv1.PolicyRule{scientist: memberRules(), member: memberRules(), guest: memberRules()[:1]}
	for _, user := range []string{auditor, scientist, member, guest, stranger} {
		_, kubeconfig, err := cp.User(user)
		if err != nil {
			return err
		}
		kubeconfigs[user] = filepath.Join(dir, user)
		if err := os.WriteFile(kubeconfigs[user], kubeconfig, 0o600); err != nil {
			return err
		}
		if err := grant(ctx, user, rules[user], inProject[user]); err != nil {
			return err
		}
	}
	return nil
}

var read = []string{"get", "list", "watch"}

// memberRules are the rights in a project; the first is to see what it is shown of its quotas.
func memberRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{Verbs: read, APIGroups: []string{"quota.openshift.io", "devicequota.io"}, Resources: []string{"appliedclusterresourcequotas", "applieddevicequotas"}},
		{Verbs: read, APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims", "resourceclaimtemplates"}},
		{Verbs: read, APIGroups: []string{""}, Resources: []string{"pods"}},
	}
}

// project is that of the members.
const project = "team-a-train"

// grant gives a user rights in the cluster and in the project.
func grant(ctx context.Context, user string, rules, inProject []rbacv1.PolicyRule) error {
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	if len(rules) > 0 {
		err := errors.Join(
			cp.Client.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}),
			cp.Client.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user}, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user}}))
		if err != nil {
			return err
		}
	}
	if len(inProject) == 0 {
		return nil
	}
	return errors.Join(
		cp.Client.Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user, Namespace: project}, Rules: inProject}),
		cp.Client.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user, Namespace: project}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user}}))
}

// events returns what the users asked the API server for. It writes an event before it answers.
func events(t *testing.T) []auditv1.Event {
	t.Helper()
	f, err := os.Open(auditLog)
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
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}
