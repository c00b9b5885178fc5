// Package envtest proves the suite on a real kube-apiserver with the shipped CRDs and
// webhook manifests, two managers as real processes behind one webhook address.
package envtest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/devicequota/devicequota/test/harness"
)

// cp and managers are shared by all tests of the package: each test has projects and
// quotas of its own.
var (
	cp        *harness.ControlPlane
	managers  []*harness.Manager
	collector *harness.Collector
)

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if cp, err = harness.Start(harness.Options{OldVersions: true}); err != nil {
		return 1, err
	}
	defer func() {
		for _, m := range managers {
			if e := m.Stop(); e != nil {
				code, err = 1, e
			}
		}
		if e := cp.Stop(); e != nil {
			code, err = 1, e
		}
	}()
	if err := cp.Install(ctx); err != nil {
		return 1, err
	}
	if err := cp.ApplyPath(ctx, harness.Root()+"/examples/cluster"); err != nil {
		return 1, err
	}
	// Nothing is traced but what a test asks to be.
	if collector, err = harness.StartCollector(); err != nil {
		return 1, err
	}
	defer collector.Stop()
	if err := os.Setenv("OTEL_BSP_SCHEDULE_DELAY", "200"); err != nil { // spans leave soon
		return 1, err
	}
	for range 2 {
		mgr, err := startManager(ctx)
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

// startManager starts a manager as all of this package are: any of them may answer the request
// whose trace a test looks for.
func startManager(ctx context.Context) (*harness.Manager, error) {
	return cp.StartManager(ctx, harness.ManagerOptions{Args: []string{"--shutdown-delay=0s", "--tracing-endpoint=" + collector.Endpoint}})
}
