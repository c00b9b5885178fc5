// Package openshift proves the arrangement of OpenShift on a real kube-apiserver: the CRD of
// ClusterResourceQuota is the platform's own, there is none of AppliedClusterResourceQuota,
// the managers run with the roles that the chart binds there, and somebody else writes the
// quotas' status all the time.
package openshift

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/devicequota/devicequota/test/harness"
)

// identity is the managers' user name.
const identity = "system:serviceaccount:" + harness.Namespace + ":" + harness.ServiceAccount

// cp and managers are shared by the tests that need no control plane of their own: each test
// has projects and quotas of its own.
var (
	cp       *harness.ControlPlane
	managers []*harness.Manager
	audit    harness.AuditLog
)

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "devicequota-audit-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// What the managers ask the API server for, and what anybody does to quotas.
	if audit, err = harness.NewAuditLog(dir, `- level: Metadata
  users: ["`+identity+`"]
- level: Metadata
  resources: [{group: `+quotav1.GroupName+`}]`); err != nil {
		return 1, err
	}
	if cp, err = harness.Start(harness.Options{Flags: audit.Flags()}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := install(ctx, cp); err != nil {
		return 1, err
	}
	if err := cp.ApplyPath(ctx, filepath.Join(harness.Root(), "examples", "cluster")); err != nil {
		return 1, err
	}
	defer func() {
		for _, mgr := range managers {
			err = errors.Join(err, mgr.Stop())
		}
		// Once more: what was written since, and during the end.
		if problems, auditErr := auditProblems(); auditErr != nil || len(problems) > 0 {
			err = errors.Join(err, auditErr, fmt.Errorf("audit log: %s", strings.Join(problems, "; ")))
		}
	}()
	for range 2 {
		mgr, err := cp.StartManager(ctx, harness.ManagerOptions{Args: flags("openshift")})
		if err != nil {
			return 1, err
		}
		managers = append(managers, mgr)
	}
	code = m.Run()
	if code != 0 {
		for i, mgr := range managers {
			fmt.Fprintf(os.Stderr, "\nmanager %d:\n%s\n", i, mgr.LogTail(60))
		}
	}
	return code, nil
}

// flags of a manager that ends at once when it is told to.
func flags(platform string) []string {
	return []string{"--platform=" + platform, "--shutdown-delay=0s"}
}

// install installs what there is on OpenShift: the platform's CRD, ours, and our roles
// without the one that may write what the platform owns.
func install(ctx context.Context, cp *harness.ControlPlane) error {
	module, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/openshift/api/quota/v1").Output()
	if err != nil {
		return fmt.Errorf("look for the platform's CRD: %w", err)
	}
	bases := filepath.Join(harness.Root(), "config", "crd", "bases")
	return cp.InstallParts(ctx, harness.InstallOptions{
		CRDs: []string{
			filepath.Join(strings.TrimSpace(string(module)), "zz_generated.crd-manifests"),
			filepath.Join(bases, "devicequota.io_applieddevicequotas.yaml"),
			filepath.Join(bases, "devicequota.io_deviceledgers.yaml"),
		},
		Roles: []string{"devicequota", "devicequota-detection", "devicequota-projection-openshift"},
	})
}

func isWrite(e auditv1.Event) bool { return !slices.Contains([]string{"get", "list", "watch"}, e.Verb) }

// auditProblems returns each kind of request that the managers must not make: any write to the
// platform's group, whether it was allowed or not, and anything that they were refused.
func auditProblems() ([]string, error) {
	events, err := audit.Events()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range events {
		if e.ObjectRef == nil || e.User.Username != identity {
			continue
		}
		r := fmt.Sprintf("%s %s/%s %s", e.Verb, e.ObjectRef.Resource, e.ObjectRef.Subresource, e.ObjectRef.Name)
		if e.ObjectRef.APIGroup == quotav1.GroupName && isWrite(e) {
			out = append(out, "written: "+r)
		}
		if e.ResponseStatus != nil && e.ResponseStatus.Code == 403 {
			out = append(out, "refused: "+r)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
