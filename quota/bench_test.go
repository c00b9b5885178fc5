package quota_test

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// cluster is an inventory of nodes with eight GPUs each. Its selectors are remembered, as an
// allocator's inventory remembers them.
type cluster struct {
	*inventory
	index map[deviceKey]*published
}

type deviceKey struct{ driver, pool, name string }

func newCluster(devices int) *cluster {
	objects := nvidiaClasses()
	for i := range devices / 8 {
		var gpus []resourceapi.Device
		for j := range 8 {
			gpus = append(gpus, gpu(fmt.Sprintf("gpu-%d", j), []string{"40Gi", "80Gi"}[i%2], []string{"A100-40", "A100-80"}[i%2]))
		}
		objects = append(objects, builders.Slice("gpu.nvidia.com", fmt.Sprintf("node-%05d", i), gpus...))
	}
	c := &cluster{inventory: newInventory(objects...), index: map[deviceKey]*published{}}
	for i := range c.devices {
		p := &c.devices[i]
		c.index[deviceKey{p.driver, p.pool, p.device.Name}] = p
	}
	return c
}

func (c *cluster) Device(driver, pool, name string) *resourceapi.Device {
	if p := c.index[deviceKey{driver, pool, name}]; p != nil {
		return p.device
	}
	return nil
}

func (c *cluster) Matches(expression, driver, pool, name string) (bool, error) {
	p := c.index[deviceKey{driver, pool, name}]
	return p != nil && matches(expression, p), nil
}

func benchQuota(b testing.TB) *quota.Quota {
	return parse(b, unlimited(gpuDevices, gpuMemory, "a80.selector.devicequota.io/devices", "requests.nvidia.com/gpu", "count/resourceclaims.resource.k8s.io"),
		"selector.devicequota.io/a80", "productName=A100-80")
}

func benchClaim() *resourceapi.ResourceClaim {
	return builders.Allocate(builders.Claim("a", "c",
		builders.Exactly("one", "gpu.nvidia.com", 2, "productName=A100-80"),
		builders.FirstAvailable("any", builders.Sub("big", "gpu.nvidia.com", 1, "productName=A100-80"), builders.Sub("small", "gpu.nvidia.com", 2, "productName=A100-40")),
		builders.All("all", "gpu.nvidia.com")),
		"one gpu.nvidia.com node-00001 gpu-0", "one gpu.nvidia.com node-00001 gpu-1", "any/small gpu.nvidia.com node-00000 gpu-0", "any/small gpu.nvidia.com node-00000 gpu-1")
}

// BenchmarkRequested is the charge of one admission, at 40,000 devices, once the shape is known.
func BenchmarkRequested(b *testing.B) {
	for _, devices := range []int{400, 4000, 40000} {
		b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
			charger, q, claim := quota.NewCharger(newCluster(devices)), benchQuota(b), benchClaim()
			if _, err := charger.Requested(&claim.Spec, q); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := charger.Requested(&claim.Spec, q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRequestedFirst is the same with a new inventory each time.
func BenchmarkRequestedFirst(b *testing.B) {
	for _, devices := range []int{400, 4000, 40000} {
		b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
			v, q, claim := newCluster(devices), benchQuota(b), benchClaim()
			for b.Loop() {
				if _, err := quota.NewCharger(v).Requested(&claim.Spec, q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkClaim is the charge of one claim event in the recount.
func BenchmarkClaim(b *testing.B) {
	charger, q, claim := quota.NewCharger(newCluster(40000)), benchQuota(b), benchClaim()
	charger.Claim(claim, q, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, computed := charger.Claim(claim, q, nil); !computed {
			b.Fatal("not computed")
		}
	}
}

func TestAClaimIsChargedWithFewAllocations(t *testing.T) {
	charger, q, claim := quota.NewCharger(newCluster(400)), benchQuota(t), benchClaim()
	n := testing.AllocsPerRun(100, func() {
		if _, err := charger.Requested(&claim.Spec, q); err != nil {
			t.Fatal(err)
		}
	})
	if n > 100 {
		t.Errorf("%v allocations per claim", n)
	}
}
