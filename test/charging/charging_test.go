// Package charging tests that what is charged and what is allocated agree: quota's charges
// against the allocations that the embedded allocator really makes, by CEL selectors.
package charging

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

var _ quota.Inventory = (*allocator.Inventory)(nil)

const whole, mig, any80 = "gpu.nvidia.com", "mig.nvidia.com", "big.selector.devicequota.io/"

func key(class, measure string) string { return class + ".deviceclass.devicequota.io/" + measure }

// limits has every kind of key.
func limits(t *testing.T) *quota.Quota {
	t.Helper()
	hard := builders.List(string(quota.ClaimsKey), "9E", "requests.nvidia.com/gpu", "9E", "requests.deviceclass.resource.kubernetes.io/"+mig, "9E",
		any80+"devices", "9E", any80+"capacity.memory", "9E", any80+"counter.memory", "9E")
	for _, class := range []string{whole, mig, "shares.example.com"} {
		for _, m := range []string{"devices", "capacity.memory", "capacity.shares", "counter.memory", "counter.slices"} {
			hard[corev1.ResourceName(key(class, m))] = resource.MustParse("9E")
		}
	}
	crq := builders.Quota("team", hard)
	crq.Annotations = map[string]string{"selector.devicequota.io/big": `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("20Gi")) >= 0`}
	q, errs := quota.Parse(crq, quota.ParseOptions{})
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return q
}

// cluster builds random nodes of GPUs, MIG partitions and shared devices.
func cluster(r *rand.Rand) (*allocator.Inventory, []*corev1.Node) {
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	name := "nvidia.com/gpu"
	gpus := builders.Class(whole, `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`)
	gpus.Spec.ExtendedResourceName = &name
	b.SetClass(gpus)
	b.SetClass(builders.Class(mig, `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`))
	b.SetClass(builders.DriverClass("shares.example.com", "shares.example.com"))
	var nodes []*corev1.Node
	for i := range 1 + r.IntN(3) {
		node := builders.Node(fmt.Sprintf("n%d", i))
		nodes = append(nodes, node)
		b.SetNode(node)
		slice := builders.Slice("gpu.nvidia.com", node.Name)
		for j := range 1 + r.IntN(3) {
			slice.Spec.Devices = append(slice.Spec.Devices, partitions(r, j)...)
			slice.Spec.SharedCounters = append(slice.Spec.SharedCounters,
				resourceapi.CounterSet{Name: fmt.Sprintf("set-%d", j), Counters: builders.Counters("memory", "40Gi", "slices", "8")})
		}
		counters := slice.DeepCopy()
		counters.Name, counters.Spec.Devices, slice.Spec.SharedCounters = node.Name+"-counters", nil, nil
		slice.Spec.Pool.ResourceSliceCount, counters.Spec.Pool.ResourceSliceCount = 2, 2
		b.SetSlice(slice)
		b.SetSlice(counters)
		b.SetSlice(builders.Slice("shares.example.com", node.Name, shared(r, "s0"), shared(r, "s1")))
	}
	return b.Snapshot(), nodes
}

// partitions returns a GPU and its partitions, of which fewer than all can be used together.
func partitions(r *rand.Rand, i int) []resourceapi.Device {
	device := func(name, kind, memory, slices string) resourceapi.Device {
		d := builders.Device(fmt.Sprintf("gpu-%d-%s", i, name), "memory", memory)
		d.Attributes["type"] = builders.Text(kind)
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{builders.Consumes(fmt.Sprintf("set-%d", i), "memory", memory, "slices", slices)}
		return d
	}
	out := []resourceapi.Device{device("whole", "gpu", "40Gi", "8")}
	for j := range 1 + r.IntN(3) {
		out = append(out, device(fmt.Sprintf("p%d", j), "mig", []string{"5Gi", "10Gi", "20Gi"}[r.IntN(3)], "2"))
	}
	return out
}

func shared(r *rand.Rand, name string) resourceapi.Device {
	yes := true
	d := builders.Device(name, "memory", "40Gi", "shares", "4")
	d.AllowMultipleAllocations = &yes
	c := d.Capacity["memory"]
	low, step, def := resource.MustParse("1Mi"), resource.MustParse("1Mi"), resource.MustParse([]string{"1Gi", "40Gi"}[r.IntN(2)])
	c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: &def, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &low, Step: &step}}
	d.Capacity["memory"] = c
	one := resource.MustParse("1")
	s := d.Capacity["shares"]
	s.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: &one}
	d.Capacity["shares"] = s
	return d
}

// claim returns a random claim, now and then with a constraint.
func claim(r *rand.Rand, i int) *resourceapi.ResourceClaim {
	c := builders.Claim("ns", fmt.Sprintf("c%d", i))
	for j := range 1 + r.IntN(2) {
		name := fmt.Sprintf("r%d", j)
		small := `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("10Gi")) <= 0`
		request := []resourceapi.DeviceRequest{
			builders.Exactly(name, whole, 1), builders.Exactly(name, mig, int64(1+r.IntN(2))), builders.Exactly(name, mig, 1, small),
			builders.All(name, mig, small), builders.All(name, "shares.example.com"), builders.Exactly(name, "shares.example.com", 1),
			builders.FirstAvailable(name, builders.Sub("whole", whole, 2), builders.Sub("parts", mig, 3), builders.Sub("share", "shares.example.com", 1)),
		}[r.IntN(7)]
		if e := request.Exactly; e != nil && e.DeviceClassName == "shares.example.com" && r.IntN(2) == 0 {
			e.Capacity = builders.Capacity("memory", fmt.Sprint(1+r.IntN(1<<30)))
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, request)
	}
	return c
}

func TestNoAllocationCostsMoreThanWasRequested(t *testing.T) {
	t.Parallel()
	q := limits(t)
	features := allocator.DefaultFeatures()
	allocated, lower := 0, 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 3))
		inv, nodes := cluster(r)
		charger := quota.NewCharger(inv)
		state := allocator.StateOf(nil, features)
		for i := range 8 {
			c := claim(r, i)
			requested, err := charger.Requested(&c.Spec, q)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if !allocate(t, inv, &state, features, nodes, c) {
				continue
			}
			allocated++
			charge, ok := charger.Allocated(c, q)
			if !ok {
				t.Fatalf("seed %d: not computable: %v", seed, charge.Unknown)
			}
			if over := quota.Excess(charge.Amounts, requested.Amounts); len(over) > 0 {
				t.Fatalf("seed %d: %+v\nallocated %+v\nexceeds the requested %s by %s",
					seed, c.Spec.Devices.Requests, c.Status.Allocation.Devices.Results, quota.Format(requested.Amounts), quota.Format(over))
			}
			if len(quota.Excess(requested.Amounts, charge.Amounts)) > 0 {
				lower++
			}
		}
	}
	if allocated < 300 || lower == 0 {
		t.Errorf("%d claims were allocated, %d of them for less than requested", allocated, lower)
	}
}

// allocate allocates the claim on the first node that fits.
func allocate(t *testing.T, inv *allocator.Inventory, state *allocator.State, features allocator.Features, nodes []*corev1.Node, c *resourceapi.ResourceClaim) bool {
	t.Helper()
	for _, node := range nodes {
		a, err := allocator.New(inv, state.Clone(), allocator.Options{Features: features, NoExplanation: true})
		if err != nil {
			t.Fatal(err)
		}
		result, err := a.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{c})
		if err != nil {
			t.Fatal(err)
		}
		if result.Unfit == nil {
			c.Status.Allocation = &result.Allocations[0]
			state.Add(c)
			return true
		}
	}
	return false
}

func TestChargesByCEL(t *testing.T) {
	t.Parallel()
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	for node, memory := range map[string]string{"n1": "40Gi", "n2": "80Gi"} {
		d := builders.Device("gpu-0", "memory", memory)
		d.Attributes["type"] = builders.Text("gpu")
		b.SetNode(builders.Node(node))
		b.SetSlice(builders.Slice("gpu.nvidia.com", node, d))
	}
	b.SetClass(builders.DriverClass(whole, "gpu.nvidia.com"))
	b.SetClass(builders.DriverClass("alias", "gpu.nvidia.com"))
	q := limits(t)
	charger := quota.NewCharger(b.Snapshot())
	for selector, want := range map[string]string{
		`true`: "80Gi",
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) < 0`: "40Gi",
		`device.attributes["gpu.nvidia.com"].absent == "x"`:                        "0", // fails on every device: no candidate
	} {
		got, err := charger.Requested(&builders.Claim("ns", "c", builders.Exactly("r", whole, 1, selector)).Spec, q)
		if err != nil {
			t.Fatal(err)
		}
		if memory := got.Amounts[corev1.ResourceName(key(whole, "capacity.memory"))]; memory.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: memory %s, want %s", selector, memory.String(), want)
		}
	}
	if _, err := charger.Requested(&builders.Claim("ns", "c", builders.Exactly("r", whole, 1, "device.")).Spec, q); err == nil {
		t.Error("a selector that does not compile is no error")
	}
	if got := charger.Aliases(whole); len(got) != 1 || got[0] != "alias" {
		t.Errorf("aliases: %v", got)
	}
}
