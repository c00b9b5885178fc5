//go:build e2e

// Package versions proves the core path in every version of resource.k8s.io that the API server
// has: with managers that are told to use it, and with managers that find nothing else. It needs
// no v1, so it runs against Kubernetes 1.32 and 1.33 too. Run it by make e2e.
package versions

import (
	"context"
	"errors"
	"testing"

	"k8s.io/client-go/discovery"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/test/harness"
)

// kube is what runs.
var kube *harness.Kubernetes

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	if kube, err = harness.AskKubernetes(context.Background()); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// allocation is the gate of the group before Kubernetes 1.34.
var allocation = harness.Feature{Name: "Dynamic Resource Allocation", Gate: "DynamicResourceAllocation", Since: 26}

// plane starts a control plane with the given versions of resource.k8s.io that ends with the test.
func plane(t *testing.T, runtimeConfig string) *harness.ControlPlane {
	t.Helper()
	flags := map[string]string{"runtime-config": runtimeConfig}
	if gates := kube.SwitchOn(allocation); gates != "" {
		flags["feature-gates"] = gates
	}
	cp, err := harness.Start(harness.Options{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, cp)
	if err := cp.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cp
}

func stopAtEnd(t *testing.T, s interface{ Stop() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// served returns the versions that the API server has, most preferred first.
func served(t *testing.T, cp *harness.ControlPlane) []string {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, version := range []string{devices.V1, devices.V1beta2, devices.V1beta1} {
		if _, err := devices.DiscoverVersion(t.Context(), d, version); err == nil {
			all = append(all, version)
		}
	}
	return all
}

// startManager starts a manager that ends with the test.
func startManager(t *testing.T, cp *harness.ControlPlane, args ...string) *harness.Manager {
	t.Helper()
	m, err := cp.StartManager(t.Context(), harness.ManagerOptions{Args: append([]string{"--shutdown-delay=0s"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, m)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("manager:\n" + m.LogTail(40))
		}
	})
	return m
}

// workload starts what schedules pods: the real controllers and scheduler, and played kubelets.
func workload(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	var extra []string
	if gates := kube.SwitchOn(allocation); gates != "" {
		extra = []string{"--feature-gates=" + gates}
	}
	controllers, errControllers := cp.StartControllerManager(extra...)
	if errControllers == nil {
		stopAtEnd(t, controllers)
	}
	scheduler, errScheduler := cp.StartScheduler(extra...)
	if errScheduler == nil {
		stopAtEnd(t, scheduler)
	}
	kubelets, errKubelets := cp.StartKubelets(context.WithoutCancel(t.Context()))
	if errKubelets == nil {
		stopAtEnd(t, kubelets)
	}
	if err := errors.Join(errControllers, errScheduler, errKubelets); err != nil {
		t.Fatal(err)
	}
}
