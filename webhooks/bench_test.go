package webhooks

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// bigWorld has 40,000 devices on 5,000 nodes.
func bigWorld(t testing.TB) *world {
	w := newWorld(t, limit("a", devices, "50000", memory, "2Pi", string(quota.ClaimsKey), "100000"))
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	b.SetClass(builders.Class("gpu", `device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a100"`))
	for n := range 5000 {
		node := fmt.Sprintf("node-%04d", n)
		b.SetNode(builders.Node(node))
		var gpus []resourceapi.Device
		for d := range 8 {
			gpu := builders.Device(fmt.Sprintf("gpu-%d", d), "memory", "40Gi")
			gpu.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": builders.Text("a100")}
			gpus = append(gpus, gpu)
		}
		b.SetSlice(builders.Slice(driver, node, gpus...))
	}
	w.inventory = b.Snapshot()
	w.charger = quota.NewCharger(w.inventory)
	return w
}

// BenchmarkClaim is the decision on a claim without the write of the ledger, at 40,000 devices.
func BenchmarkClaim(b *testing.B) {
	w := bigWorld(b)
	claims := map[string]*resourceapi.ResourceClaim{
		"count":    builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)),
		"selector": builders.Claim(project, "c", builders.Exactly("r", "gpu", 2, `device.attributes["gpu.example.com"].model != "h100"`)),
		"list":     builders.Claim(project, "c", builders.FirstAvailable("r", builders.Sub("a", "gpu", 4), builders.Sub("b", "gpu", 2))),
	}
	for name, claim := range claims {
		for _, version := range []string{versionV1, versionV1beta1} {
			b.Run(name+"/"+version, func(b *testing.B) {
				h := Handlers(w.deps(), Options{})[PathValidateClaim]
				benchmark(b, h, requestIn(b, version, claim))
			})
		}
	}
}

// BenchmarkMutateOff is what the mutating webhook costs where no namespace asks for it.
func BenchmarkMutateOff(b *testing.B) {
	h := Handlers(newWorld(b).deps(), Options{})[PathMutateClaim]
	benchmark(b, h, request(b, builders.Claim(project, "c", builders.Exactly("r", "gpu", 2))))
}

func benchmark(b *testing.B, h admission.Handler, req admission.Request) {
	if resp := h.Handle(b.Context(), req); !resp.Allowed {
		b.Fatal(render(resp))
	}
	b.ReportAllocs()
	for b.Loop() {
		h.Handle(b.Context(), req)
	}
}
