// Package cli proves the commands of kubectl-devicequota that read a cluster on a real
// kube-apiserver beside a running manager: for an administrator who may only read, and for
// members of a project with fewer and fewer rights.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/test/harness"
)

// cp and manager are shared by all tests of the package.
var (
	cp      *harness.ControlPlane
	manager *harness.Manager
	// audit is what the users ask the API server for.
	audit harness.AuditLog
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

	admin = "admin" // may do everything
)

// users are all but the administrator.
var users = []string{auditor, scientist, member, guest, stranger}

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "devicequota-cli-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if audit, err = harness.NewAuditLog(dir, "- level: Metadata\n  users: ["+strings.Join(users, ", ")+"]"); err != nil {
		return 1, err
	}
	if cp, err = harness.Start(harness.Options{OldVersions: true, Flags: audit.Flags()}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := prepare(ctx, dir); err != nil {
		return 1, err
	}
	if err := startManager(ctx); err != nil {
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

func startManager(ctx context.Context) error {
	m, err := cp.StartManager(ctx, harness.ManagerOptions{Args: []string{"--shutdown-delay=0s"}})
	if err == nil {
		manager = m
	}
	return err
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
	kubeconfigs[admin] = cp.Kubeconfig
	for _, user := range users {
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
