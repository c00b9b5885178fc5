package differential

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// attributes draws attributes of every type, from so few values that they meet.
func (p *poolGen) attributes() map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	set := func(percent int, name string, a resourceapi.DeviceAttribute) {
		if p.p(percent) {
			out[p.qualified(p.driver, name)] = a
		}
	}
	set(90, "model", resourceapi.DeviceAttribute{StringValue: ptr(pick(p.gen, "A", "A", "B"))})
	numa := int64(p.IntN(2))
	set(85, "numa", resourceapi.DeviceAttribute{IntValue: &numa})
	set(60, "healthy", resourceapi.DeviceAttribute{BoolValue: ptr(!p.p(20))})
	set(60, "ver", resourceapi.DeviceAttribute{VersionValue: ptr(pick(p.gen, "1.0.0", "1.1.0"))})
	set(60, "index", resourceapi.DeviceAttribute{IntValue: ptr(int64(p.devices))})
	if p.p(40) {
		out[sharedDomain+"/numa"] = resourceapi.DeviceAttribute{IntValue: &numa}
	}
	if p.p(25) {
		out[sharedDomain+"/links"] = p.listAttribute()
	}
	if p.p(10) { // the same name with another type
		out[sharedDomain+"/numa"] = resourceapi.DeviceAttribute{StringValue: ptr(fmt.Sprint(numa))}
	}
	if p.wild && p.p(4) {
		out["broken"] = pick(p.gen, resourceapi.DeviceAttribute{}, resourceapi.DeviceAttribute{VersionValue: ptr("x")})
	}
	return out
}

func (p *poolGen) listAttribute() resourceapi.DeviceAttribute {
	switch p.weighted(5, 2, 1, 1) {
	case 0:
		return resourceapi.DeviceAttribute{IntValues: pick(p.gen, []int64{0}, []int64{1}, []int64{0, 1}, []int64{1, 2}, []int64{2, 3})}
	case 1:
		return resourceapi.DeviceAttribute{StringValues: pick(p.gen, []string{"x"}, []string{"x", "y"}, []string{"y"})}
	case 2:
		return resourceapi.DeviceAttribute{BoolValues: pick(p.gen, []bool{true}, []bool{true, false})}
	default:
		return resourceapi.DeviceAttribute{VersionValues: pick(p.gen, []string{"1.0.0"}, []string{"1.0.0", "2.0.0"})}
	}
}

func (p *poolGen) capacities() map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	if !p.p(10) {
		out[p.qualified(p.driver, "memory")] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(2+p.IntN(7)), resource.DecimalSI), RequestPolicy: p.policy()}
	}
	if p.p(40) {
		out[p.qualified(p.driver, "slots")] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(1+p.IntN(4)), resource.DecimalSI), RequestPolicy: p.policy()}
	}
	if p.p(3) {
		out["none"] = resourceapi.DeviceCapacity{}
	}
	return out
}

// policy draws a request policy of every form.
func (p *poolGen) policy() *resourceapi.CapacityRequestPolicy {
	q := func(s string) *quantity { v := resource.MustParse(s); return &v }
	switch p.weighted(25, 20, 20, 20, 10, 5) {
	case 0:
		return nil
	case 1:
		return &resourceapi.CapacityRequestPolicy{Default: q(pick(p.gen, "1", "2"))}
	case 2:
		return &resourceapi.CapacityRequestPolicy{Default: q("1"), ValidValues: []quantity{*q("1"), *q("2"), *q("4")}}
	case 3:
		r := &resourceapi.CapacityRequestPolicyRange{Min: q(pick(p.gen, "1", "2")), Step: q(pick(p.gen, "1", "2"))}
		if p.p(50) {
			r.Max = q("4")
		}
		return &resourceapi.CapacityRequestPolicy{Default: r.Min, ValidRange: r}
	case 4:
		return &resourceapi.CapacityRequestPolicy{Default: q("500m"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q("500m"), Step: q("250m")}}
	default:
		r := &resourceapi.CapacityRequestPolicyRange{Min: q("1"), Max: q("3")}
		return &resourceapi.CapacityRequestPolicy{Default: q("2"), ValidRange: r}
	}
}
