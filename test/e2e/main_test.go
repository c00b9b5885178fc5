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
	kube       *harness.Kubernetes
	cp         *harness.ControlPlane
	managers   []*harness.Manager
	controller *harness.Process
	scheduler  *harness.Process
)

func TestMain(m *testing.M) { harness.Exit(run(m)) }

type stopper interface{ Stop() error }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if kube, err = harness.AskKubernetes(ctx); err != nil {
		return 1, err
	}
	if kube.Minor < firstV1 {
		fmt.Printf("Kubernetes %s has no resource.k8s.io/v1, which all scenarios here need; test/e2e/versions shows the core path\n", kube.Version)
		return 0, nil
	}
	// taint rules are in v1alpha3 or v1beta2 before 1.37
	flags := map[string]string{"runtime-config": "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,resource.k8s.io/v1alpha3=true"}
	var components []string
	if on := gates(); on != "" {
		fmt.Printf("Kubernetes %s: switched on: %s\n", kube.Version, on)
		flags["feature-gates"] = on
		components = []string{"--feature-gates=" + on}
	}
	if cp, err = harness.Start(harness.Options{Flags: flags}); err != nil {
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
	if err := applyExamples(ctx); err != nil {
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
	if controller, err = cp.StartControllerManager(components...); err != nil {
		return 1, err
	}
	stops = append(stops, controller)
	if scheduler, err = cp.StartScheduler(components...); err != nil {
		return 1, err
	}
	stops = append(stops, scheduler)
	kubelets, err := cp.StartKubelets(ctx)
	if err != nil {
		return 1, err
	}
	stops = append(stops, kubelets)
	code = m.Run()
	for _, what := range leftOut {
		fmt.Println("left out:", what)
	}
	if code != 0 {
		for i, mgr := range managers {
			fmt.Fprintf(os.Stderr, "\nmanager %d:\n%s\n", i, mgr.LogTail(60))
		}
	}
	return code, nil
}

// firstV1 is the minor version that serves resource.k8s.io/v1.
const firstV1 = 34

func applyExamples(ctx context.Context) error {
	objs, err := harness.Objects(harness.Root() + "/examples/cluster")
	if err != nil {
		return err
	}
	if objs, err = asThisVersionWants(objs); err != nil {
		return err
	}
	for _, u := range objs {
		if err := harness.Apply(ctx, cp.Client, u); err != nil {
			return fmt.Errorf("%s %q: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}
