//go:build e2e

package versions

import (
	"fmt"
	"strings"
	"testing"

	devices "github.com/devicequota/devicequota/allocator/cluster"
)

const everything = "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"

func TestManagersUseTheVersionTheyAreToldToBesideTheScheduler(t *testing.T) {
	cp := plane(t, everything)
	workload(t, cp)
	versions := served(t, cp)
	t.Logf("Kubernetes %s serves resource.k8s.io in %s", kube.Version, strings.Join(versions, ", "))
	if len(versions) == 0 {
		t.Fatal("no version is served")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			for range 2 {
				m := startManager(t, cp, "--resource-api-version="+version)
				wantLog(t, m, `"resourceAPIVersion":"`+version+`"`)
			}
			newWorld(t, cp, version).scheduled()
		})
	}
}

func TestManagersFindTheOnlyVersionThereIs(t *testing.T) {
	for _, version := range []string{devices.V1beta2, devices.V1beta1} {
		t.Run(version, func(t *testing.T) {
			config := []string{"resource.k8s.io/v1=false"}
			for _, v := range []string{devices.V1beta2, devices.V1beta1} {
				config = append(config, fmt.Sprintf("resource.k8s.io/%s=%v", v, v == version))
			}
			cp := plane(t, strings.Join(config, ","))
			if got := served(t, cp); len(got) != 1 || got[0] != version {
				kube.LeaveOut(t, fmt.Sprintf("Kubernetes %s does not serve %s, it serves %q", kube.Version, version, got))
			}
			m := startManager(t, cp, "--allocation=all")
			wantLog(t, m, `"resourceAPIVersion":"`+version+`"`)
			newWorld(t, cp, version).allocatedByUs()
		})
	}
}
