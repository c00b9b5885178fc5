package charging

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// fleet returns the inventory of nodes with eight GPUs each, and its builder.
func fleet(devices int) *allocator.Builder {
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	b.SetClass(builders.DriverClass(whole, "gpu.nvidia.com"))
	for i := range devices / 8 {
		node := fmt.Sprintf("node-%05d", i)
		b.SetNode(builders.Node(node))
		b.SetSlice(nodeSlice(node, []string{"40Gi", "80Gi"}[i%2]))
	}
	return b
}

func nodeSlice(node, memory string) *resourceapi.ResourceSlice {
	s := builders.Slice("gpu.nvidia.com", node)
	for j := range 8 {
		d := builders.Device(fmt.Sprintf("gpu-%d", j), "memory", memory)
		d.Attributes["type"] = builders.Text("gpu")
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	return s
}

func benchmark(b *testing.B, devices int, event bool) {
	build := fleet(devices)
	crq := builders.Quota("team", builders.List(key(whole, "devices"), "9E", key(whole, "capacity.memory"), "9E", any80+"devices", "9E"))
	crq.Annotations = map[string]string{"selector.devicequota.io/big": `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`}
	q, errs := quota.Parse(crq, quota.ParseOptions{})
	if len(errs) > 0 {
		b.Fatal(errs.ToAggregate())
	}
	claim := builders.Claim("ns", "c", builders.Exactly("r", whole, 2, `device.attributes["gpu.nvidia.com"].type == "gpu"`), builders.All("all", whole))
	charger := quota.NewCharger(build.Snapshot())
	charge := func() {
		if _, err := charger.Requested(&claim.Spec, q); err != nil {
			b.Fatal(err)
		}
	}
	charge()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if event {
			build.SetSlice(nodeSlice("node-00000", []string{"10Gi", "40Gi"}[i%2]))
			charger = quota.NewCharger(build.Snapshot())
		}
		charge()
	}
}

// BenchmarkCharge is the charge of one admission by an inventory that did not change.
func BenchmarkCharge(b *testing.B) {
	for _, n := range []int{400, 4000, 40000} {
		b.Run(fmt.Sprintf("devices=%d", n), func(b *testing.B) { benchmark(b, n, false) })
	}
}

// BenchmarkChargeAfterEvent is the first one after a driver changed one slice.
func BenchmarkChargeAfterEvent(b *testing.B) {
	for _, n := range []int{400, 4000, 40000} {
		b.Run(fmt.Sprintf("devices=%d", n), func(b *testing.B) { benchmark(b, n, true) })
	}
}
