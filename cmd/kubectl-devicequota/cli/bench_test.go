package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Everything in the examples must be answered in less than a second.
func BenchmarkCheckExamples(b *testing.B) {
	for b.Loop() {
		if _, errs, code := run(b, "", "check", "-R", "-f", examples); code == ExitBad {
			b.Fatal(errs)
		}
	}
}

// 5000 nodes with 8 devices each and 1000 claims must take less than 10 s, from files to report.
func BenchmarkCheck1000Claims5000Nodes(b *testing.B) {
	file := filepath.Join(b.TempDir(), "large.yaml")
	if err := os.WriteFile(file, []byte(large(5000, 1000)), 0o600); err != nil {
		b.Fatal(err)
	}
	for name, args := range map[string][]string{"check": nil, "allocate": {"--allocate"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if out, errs, code := run(b, "", append([]string{"check", "-f", file}, args...)...); code != ExitNo || !strings.HasSuffix(out, "admitted 750, denied 250, warned 0, skipped 0\n") {
					b.Fatalf("exit code %d\n%s%.300s", code, errs, out)
				}
			}
		})
	}
}

// large returns a cluster with a quota of 1500 devices, and claims of 2 devices each.
func large(nodes, claims int) string {
	var b strings.Builder
	b.WriteString(`apiVersion: v1
kind: Namespace
metadata: {name: a, labels: {t: a}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]}
---
apiVersion: quota.openshift.io/v1
kind: ClusterResourceQuota
metadata: {name: q}
spec: {selector: {labels: {matchLabels: {t: a}}, annotations: null}, quota: {hard: {gpu.deviceclass.devicequota.io/devices: "1500", gpu.deviceclass.devicequota.io/capacity.memory: 1Pi}}}
`)
	for i := range nodes {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-%04[1]d}\n---\napiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: node-%04[1]d}\n"+
			"spec:\n  driver: gpu.example.com\n  nodeName: node-%04[1]d\n  pool: {name: node-%04[1]d, generation: 1, resourceSliceCount: 1}\n  devices:\n", i)
		for d := range 8 {
			fmt.Fprintf(&b, "  - name: gpu-%d\n    attributes:\n      model: {string: A100}\n      uuid: {string: GPU-%d-%d}\n    capacity:\n      memory: {value: 80Gi}\n", d, i, d)
		}
	}
	for i := range claims {
		fmt.Fprintf(&b, "---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c-%d, namespace: a}\n"+
			"spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, count: 2}}]}}\n", i)
	}
	return b.String()
}
