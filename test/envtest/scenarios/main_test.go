// Package scenarios plays the example scenarios of `kubectl devicequota test` on a real
// kube-apiserver, behind the shipped webhook configuration and a manager, beside the offline run
// of the very same steps. Every answer, charge, stored claim, account, condition and projection
// has to be the same.
package scenarios

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/devicequota/devicequota/test/harness"
)

var (
	cp    *harness.ControlPlane
	audit *auditLog
)

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "devicequota-scenarios-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if audit, err = newAuditLog(dir); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, audit.close()) }()
	if cp, err = harness.Start(harness.Options{OldVersions: true, Flags: audit.log.Flags()}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err := cp.Install(ctx); err != nil {
		return 1, err
	}
	if err := allowEverybody(ctx); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// examples is where users find scenarios.
func examples() string { return filepath.Join(harness.Root(), "examples", "scenarios") }
