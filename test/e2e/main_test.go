//go:build e2e

// Package e2e proves the suite beside the real kube-controller-manager and kube-scheduler,
// with two managers as real processes and the shipped manifests. Run it by make e2e.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/devicequota/devicequota/test/harness"
)

var (
	cp         *harness.ControlPlane
	managers   []*harness.Manager
	controller *harness.Process
	scheduler  *harness.Process
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

type stopper interface{ Stop() error }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if cp, err = harness.Start(harness.Options{OldVersions: true}); err != nil {
		return 1, err
	}
	stops := []stopper{cp}
	defer func() {
		for i := len(stops) - 1; i >= 0; i-- {
			if e := stops[i].Stop(); e != nil {
				code, err = 1, e
			}
		}
	}()
	if err := cp.Install(ctx); err != nil {
		return 1, err
	}
	if err := cp.ApplyPath(ctx, harness.Root()+"/examples/cluster"); err != nil {
		return 1, err
	}
	if err := cp.Ready(ctx); err != nil {
		return 1, err
	}
	for range 2 {
		mgr, err := cp.StartManager(ctx, harness.ManagerOptions{})
		if err != nil {
			return 1, err
		}
		managers = append(managers, mgr)
		stops = append(stops, mgr)
	}
	if controller, err = cp.StartControllerManager(); err != nil {
		return 1, err
	}
	stops = append(stops, controller)
	if scheduler, err = cp.StartScheduler(); err != nil {
		return 1, err
	}
	stops = append(stops, scheduler)
	kubelets, err := cp.StartKubelets(ctx)
	if err != nil {
		return 1, err
	}
	stops = append(stops, kubelets)
	if code = m.Run(); code != 0 {
		for i, mgr := range managers {
			fmt.Fprintf(os.Stderr, "\nmanager %d:\n%s\n", i, mgr.LogTail(60))
		}
	}
	return code, nil
}
