package differential

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claim draws a claim that is to be allocated.
func (g *gen) claim(i int) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: fmt.Sprintf("claim%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
	}}
	if g.p(1) {
		return claim // no requests at all
	}
	derived := g.usable(g.c.Features.DerivedAttributes) && g.p(12)
	names := []string{}
	for j := range 1 + g.weighted(60, 30, 10) {
		r := g.request(j, derived)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r)
		names = append(names, r.Name)
		for _, sub := range r.FirstAvailable {
			if g.p(30) {
				names = append(names, r.Name+"/"+sub.Name)
			}
		}
	}
	for range g.weighted(66, 28, 6) {
		claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, g.constraint(names, derived))
	}
	for j := range g.weighted(70, 20, 10) {
		cfg := resourceapi.DeviceClaimConfiguration{DeviceConfiguration: opaque(g.drivers[0], fmt.Sprintf(`{"claim":%d,"config":%d}`, i, j))}
		if g.p(60) {
			cfg.Requests = g.subset(names)
		}
		claim.Spec.Devices.Config = append(claim.Spec.Devices.Config, cfg)
	}
	return claim
}

func (g *gen) subset(names []string) []string {
	var out []string
	for _, n := range names {
		if g.p(50) {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		out = []string{pick(g, names...)}
	}
	return out
}

func (g *gen) constraint(names []string, derived bool) resourceapi.DeviceConstraint {
	d := pick(g, g.drivers...)
	attributes := []string{d + "/numa", d + "/model", sharedDomain + "/numa", sharedDomain + "/links", d + "/index", d + "/healthy", d + "/ver", "derived.example.com/group"}
	weights := []int{30, 15, 20, 15, 5, 5, 5, 3}
	if derived {
		weights[7] = 60
	}
	name := resourceapi.FullyQualifiedName(attributes[g.weighted(weights...)])
	c := resourceapi.DeviceConstraint{}
	switch g.weighted(65, 33, 1, 1) {
	case 0:
		c.MatchAttribute = &name
	case 1:
		c.DistinctAttribute = &name
	case 2:
		c.MatchAttribute, c.DistinctAttribute = &name, &name
	case 3:
		if !g.wild {
			c.MatchAttribute = &name
		}
	}
	if g.p(60) {
		c.Requests = g.subset(names)
	}
	return c
}

func (g *gen) request(i int, derived bool) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i)}
	if g.p(20) && g.usable(g.c.Features.PrioritizedList) {
		for j := range 1 + g.weighted(1, 3, 2) {
			e := g.exact(derived)
			r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: fmt.Sprintf("s%d", j), DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode,
				Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity, DerivedAttributes: e.DerivedAttributes,
			})
		}
		return r
	}
	r.Exactly = g.exact(derived)
	if g.p(8) && g.usable(g.c.Features.AdminAccess) {
		r.Exactly.AdminAccess = ptr(!g.p(15))
	}
	return r
}

// usable is true with the feature on, and once in a while with it off.
func (g *gen) usable(on bool) bool { return on || g.p(8) }

// exact draws the common part of a request and an alternative.
func (g *gen) exact(derived bool) *resourceapi.ExactDeviceRequest {
	e := &resourceapi.ExactDeviceRequest{
		DeviceClassName: pick(g, g.c.Classes...).Name, Selectors: g.selectors(false),
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(1 + g.weighted(75, 18, 6, 1)),
	}
	if g.p(1) && g.p(60) {
		e.DeviceClassName = "missing"
	}
	if g.p(12) {
		e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeAll, 0
	}
	if g.p(1) {
		e.Count = int64(20 + g.IntN(15))
	}
	if g.wild {
		g.wildRequest(e)
	}
	if g.p(25) {
		e.Tolerations = append(e.Tolerations, resourceapi.DeviceToleration{
			Key: pick(g, "unhealthy", "reserved", ""), Operator: resourceapi.DeviceTolerationOpExists, Effect: pick(g, "", resourceapi.DeviceTaintEffectNoSchedule),
		})
	}
	if g.p(8) {
		e.Tolerations = append(e.Tolerations, resourceapi.DeviceToleration{Key: "reserved", Operator: pick(g, resourceapi.DeviceTolerationOpEqual, ""), Value: "yes"})
	}
	if g.p(15) && g.usable(g.c.Features.ConsumableCapacity) {
		e.Capacity = g.capacityRequest()
	}
	if derived && g.p(80) {
		d := pick(g, g.drivers...)
		e.DerivedAttributes = []resourceapi.DeviceDerivedAttribute{{Name: "derived.example.com/group", Expression: pick(g,
			fmt.Sprintf("device.attributes[%q].?numa.orValue(7)", d),
			fmt.Sprintf("device.attributes[%q].?numa.orValue(7)", d),
			fmt.Sprintf("device.attributes[%q].?model.orValue('none')", d),
			fmt.Sprintf("[device.attributes[%q].?numa.orValue(7), 9]", d),
			"device.driver",
			fmt.Sprintf("device.attributes[%q].numa", d))}}
	}
	return e
}

func (g *gen) wildRequest(e *resourceapi.ExactDeviceRequest) {
	switch g.weighted(90, 2, 2, 2) {
	case 1:
		e.Count = 0
	case 2:
		e.AllocationMode = ""
	case 3:
		e.DeviceClassName = ""
	}
}

func (g *gen) capacityRequest() *resourceapi.CapacityRequirements {
	out := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]quantity{}}
	d := pick(g, g.drivers...)
	values := []string{"1", "1", "2", "3", "4", "500m", "600m", "0", "100"}
	if g.wild {
		values = append(values, "-1", "1n", "9223372036854775807", "1e30")
	}
	out.Requests[g.qualified(d, "memory")] = resource.MustParse(pick(g, values...))
	if g.p(15) {
		out.Requests[g.qualified(d, "slots")] = resource.MustParse(pick(g, values...))
	}
	return out
}

// allocated draws claims that hold devices already, some of which no longer exist
// or changed their nature since.
func (g *gen) allocated() {
	n := g.weighted(50, 25, 15, 7, 3)
	taken := map[deviceKey]bool{}
	for i := range n {
		slice := pick(g, g.c.Slices...)
		if len(slice.Spec.Devices) == 0 {
			continue
		}
		device := pick(g, slice.Spec.Devices...)
		r := resourceapi.DeviceRequestAllocationResult{Request: "r0", Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name, Device: device.Name}
		if g.p(5) {
			r.Device = "gone"
		}
		key := deviceKey{r.Driver, r.Pool, r.Device}
		shared := device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
		if g.p(4) {
			shared = !shared
		}
		if shared {
			r.ShareID = ptr(types.UID(fmt.Sprintf("share-%d", i)))
			for name := range device.Capacity {
				if r.ConsumedCapacity == nil {
					r.ConsumedCapacity = map[resourceapi.QualifiedName]quantity{}
				}
				r.ConsumedCapacity[name] = *resource.NewQuantity(1, resource.DecimalSI)
			}
		} else if taken[key] {
			continue
		}
		taken[key] = true
		if g.p(6) {
			r.AdminAccess = ptr(true)
		}
		g.c.Allocated = append(g.c.Allocated, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("old%d", i), UID: types.UID(fmt.Sprintf("old-%d", i))},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "r0", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: g.c.Classes[0].Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
			}}}},
			Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}},
		})
	}
}
