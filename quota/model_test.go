package quota_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

// A model of charging: what an allocation costs is summed up device by device in plain words,
// and everything that an allocator could give to a claim is enumerated.

type model struct {
	inv *inventory
	q   *quota.Quota
}

// costs returns what one allocated device costs each key, in thousandths.
func (m *model) costs(class string, p *published, consumed map[resourceapi.QualifiedName]resource.Quantity) map[corev1.ResourceName]*big.Int {
	out := map[corev1.ResourceName]*big.Int{}
	for i := range m.q.Keys {
		k := &m.q.Keys[i]
		if m.counts(k, class, p) {
			out[k.Name] = m.measured(k, p, consumed)
		}
	}
	return out
}

func (m *model) counts(k *quota.Key, class string, p *published) bool {
	switch k.Subject {
	case quota.SubjectClass:
		return k.Class == class
	case quota.SubjectExtendedResource:
		if string(k.ExtendedResource) == resourceapi.ResourceDeviceClassPrefix+class {
			return true
		}
		name := m.inv.classes[class].Spec.ExtendedResourceName
		return name != nil && *name == string(k.ExtendedResource)
	case quota.SubjectSelector:
		return matches(m.q.Selectors[k.Selector], p)
	}
	return false
}

func (m *model) measured(k *quota.Key, p *published, consumed map[resourceapi.QualifiedName]resource.Quantity) *big.Int {
	sum := new(big.Int)
	switch k.Measure {
	case quota.MeasureDevices:
		return big.NewInt(1000)
	case quota.MeasureCounter:
		for _, c := range p.device.ConsumesCounters {
			if v := c.Counters[string(k.Of)].Value; v.Sign() > 0 {
				sum.Add(sum, big.NewInt(v.MilliValue()))
			}
		}
	case quota.MeasureCapacity:
		of := string(k.Of)
		if !strings.Contains(of, "/") {
			of = p.driver + "/" + of
		}
		for name, c := range p.device.Capacity {
			full := string(name)
			if !strings.Contains(full, "/") {
				full = p.driver + "/" + full
			}
			if full != of {
				continue
			}
			v := c.Value
			if consumed != nil {
				v = consumed[name]
			}
			if n := big.NewInt(v.MilliValue()); n.Cmp(sum) > 0 {
				sum = n
			}
		}
	}
	return sum
}

// candidates returns what the allocator could give to a request, with what would be consumed.
func (m *model) candidates(class string, selectors []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements) []option {
	var out []option
	_, _ = m.inv.Candidates(class, selectors, func(driver, pool string, d *resourceapi.Device, nodes []string) bool {
		o := option{p: m.inv.find(driver, pool, d.Name), class: class}
		if o.fits(capacity) {
			out = append(out, o)
		}
		return true
	})
	return out
}

type option struct {
	request  string
	class    string
	p        *published
	consumed map[resourceapi.QualifiedName]resource.Quantity // nil: exclusive
}

// fits says whether the device can satisfy the requested capacity, in the words of KEP-5075.
func (o *option) fits(capacity *resourceapi.CapacityRequirements) bool {
	requested := map[resourceapi.QualifiedName]resource.Quantity{}
	if capacity != nil {
		requested = capacity.Requests
	}
	for name := range requested {
		if _, ok := o.p.device.Capacity[name]; !ok {
			return false
		}
	}
	shareable := o.p.device.AllowMultipleAllocations != nil && *o.p.device.AllowMultipleAllocations
	consumed := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, c := range o.p.device.Capacity {
		v := c.Value.MilliValue()
		policy := c.RequestPolicy
		r, asked := requested[name]
		switch {
		case asked:
			v = r.MilliValue()
			if policy != nil && policy.ValidRange != nil {
				low, step := policy.ValidRange.Min.MilliValue(), policy.ValidRange.Step.MilliValue()
				n := low
				for n < v {
					n += step
				}
				v = n
				if policy.ValidRange.Max != nil && v > policy.ValidRange.Max.MilliValue() {
					return false
				}
			}
		case policy != nil:
			v = policy.Default.MilliValue()
		}
		if v < 0 || v > c.Value.MilliValue() {
			return false
		}
		consumed[name] = *resource.NewMilliQuantity(v, resource.DecimalSI)
	}
	if shareable {
		o.consumed = consumed
	}
	return true
}

// allocations calls visit with everything a claim could get: per request each choice of
// alternative and devices. Constraints and other claims only take choices away.
func (m *model) allocations(claim *resourceapi.ResourceClaim, visit func([]option)) {
	var perRequest [][][]option
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		var choices [][]option
		if e := r.Exactly; e != nil {
			if e.AdminAccess != nil && *e.AdminAccess {
				continue
			}
			choices = m.choices(r.Name, e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Capacity)
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			choices = append(choices, m.choices(r.Name+"/"+s.Name, s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Capacity)...)
		}
		if len(choices) == 0 {
			return
		}
		perRequest = append(perRequest, choices)
	}
	var walk func(i int, chosen []option)
	walk = func(i int, chosen []option) {
		if i == len(perRequest) {
			visit(chosen)
			return
		}
		for _, c := range perRequest[i] {
			walk(i+1, append(chosen[:len(chosen):len(chosen)], c...))
		}
	}
	walk(0, nil)
}

func (m *model) choices(request, class string, selectors []resourceapi.DeviceSelector, mode resourceapi.DeviceAllocationMode, count int64, capacity *resourceapi.CapacityRequirements) [][]option {
	all := m.candidates(class, selectors, capacity)
	for i := range all {
		all[i].request = request
	}
	var out [][]option
	for _, node := range []string{"n0", "n1", "n2"} {
		var here []option
		for _, o := range all {
			if o.p.nodes == nil || fmt.Sprint(o.p.nodes) == "["+node+"]" {
				here = append(here, o)
			}
		}
		if mode == resourceapi.DeviceAllocationModeAll {
			if len(here) > 0 {
				out = append(out, here)
			}
			continue
		}
		out = append(out, combinations(here, int(count))...)
	}
	return out
}

func combinations(from []option, n int) [][]option {
	if n == 0 {
		return [][]option{nil}
	}
	var out [][]option
	for i := range from {
		for _, rest := range combinations(from[i+1:], n-1) {
			out = append(out, append([]option{from[i]}, rest...))
		}
	}
	return out
}

// world makes random inventories, quotas and claims of a few shapes that interact.
type world struct{ *rand.Rand }

func (r world) pick(s ...string) string { return s[r.IntN(len(s))] }

func (r world) inventory() *inventory {
	ext := "example.com/ext"
	a, b := builders.Class("a", "driver=d0"), builders.Class("b", r.pick("driver=d1", "x=1", "true"))
	a.Spec.ExtendedResourceName = &ext
	if r.IntN(2) == 0 {
		b.Spec.ExtendedResourceName = &ext
	}
	v := newInventory(a, b, builders.Class("none", "driver=none"))
	for range 1 + r.IntN(7) {
		v.devices = append(v.devices, r.device(len(v.devices)))
	}
	return v
}

func (r world) device(i int) published {
	d := builders.Device(fmt.Sprintf("dev-%d", i))
	typed(d, "x", r.pick("1", "2"))
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	share := r.IntN(2) == 0
	for _, name := range []string{"mem", "cores", "d0/mem", "other.org/mem"} {
		if r.IntN(2) == 0 {
			continue
		}
		c := resourceapi.DeviceCapacity{Value: resource.MustParse(r.pick("0", "1", "10", "7500m", "40", "-3"))}
		if share && r.IntN(2) == 0 {
			low := resource.MustParse(r.pick("0", "1", "500m"))
			high, step := resource.MustParse("50"), resource.MustParse(r.pick("1", "3", "250m"))
			c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: pointer(r.pick("0", "1", "4"))}
			if r.IntN(2) == 0 {
				c.RequestPolicy.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: &low, Max: &high, Step: &step}
			}
		}
		d.Capacity[resourceapi.QualifiedName(name)] = c
	}
	if share {
		d = shareable(d)
	}
	for _, set := range []string{"s0", "s1"} {
		if r.IntN(2) == 0 {
			d.ConsumesCounters = append(d.ConsumesCounters, builders.Consumes(set, "units", r.pick("0", "1", "5", "-2"), "slots", r.pick("1", "250m")))
		}
	}
	p := published{driver: r.pick("d0", "d1"), pool: "p", device: &d}
	if n := r.pick("n0", "n1", "n2", ""); n != "" {
		p.nodes = []string{n}
	}
	return p
}

// selectors that the quotas have.
var selectors = []string{"x=1", "driver=d0", "true", "x=2 && driver=d1"}

func manyKeys(t testing.TB, selector string) *quota.Quota {
	hard := corev1.ResourceList{}
	for _, class := range []string{"a", "b", "none"} {
		for _, m := range []string{"devices", "capacity.mem", "capacity.cores", "capacity.d0.x_mem", "capacity.other.org_mem", "counter.units", "counter.slots"} {
			hard[corev1.ResourceName(own(class, m))] = resource.MustParse("9E")
		}
		hard[corev1.ResourceName(class+".deviceclass.resource.k8s.io/devices")] = resource.MustParse("9E")
		hard[corev1.ResourceName("requests.deviceclass.resource.kubernetes.io/"+class)] = resource.MustParse("9E")
	}
	hard["requests.example.com/ext"] = resource.MustParse("9E")
	for _, m := range []string{"devices", "capacity.mem", "capacity.cores", "counter.units"} {
		hard[corev1.ResourceName("sel.selector.devicequota.io/"+m)] = resource.MustParse("9E")
	}
	return parse(t, hard, "selector.devicequota.io/sel", selector)
}

func (r world) claim() *resourceapi.ResourceClaim {
	c := builders.Claim("ns", "c")
	for i := range 1 + r.IntN(2) {
		name := fmt.Sprintf("r%d", i)
		var selectors []string
		if r.IntN(3) == 0 {
			selectors = append(selectors, r.pick("x=1", "driver=d1", "true"))
		}
		class := r.pick("a", "a", "a", "b", "b", "b", "none")
		var req resourceapi.DeviceRequest
		switch r.IntN(4) {
		case 0:
			req = builders.All(name, class, selectors...)
		case 1:
			req = builders.FirstAvailable(name, builders.Sub("s0", class, int64(r.IntN(3)), selectors...), builders.Sub("s1", r.pick("a", "b"), int64(1+r.IntN(2))))
			if r.IntN(3) == 0 {
				req.FirstAvailable[0].Capacity = r.capacity()
			}
		default:
			req = builders.Exactly(name, class, int64(1+r.IntN(2)), selectors...)
			if r.IntN(10) == 0 {
				yes := true
				req.Exactly.AdminAccess = &yes
			}
		}
		if req.Exactly != nil && r.IntN(3) == 0 {
			req.Exactly.Capacity = r.capacity()
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, req)
	}
	return c
}

func (r world) capacity() *resourceapi.CapacityRequirements {
	out := builders.Capacity(r.pick("mem", "cores", "d0/mem"), r.pick("1", "2500m", "9", "0", "33"))
	if r.IntN(2) == 0 {
		out.Requests["cores"] = resource.MustParse(r.pick("1", "100m", "4"))
	}
	return out
}

// allocate writes the options into the claim's status, as an allocator would.
func allocate(claim *resourceapi.ResourceClaim, chosen []option) {
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, o := range chosen {
		r := resourceapi.DeviceRequestAllocationResult{Request: o.request, Driver: o.p.driver, Pool: o.p.pool, Device: o.p.device.Name}
		if o.consumed != nil {
			id := types.UID(fmt.Sprint(i))
			r.ShareID, r.ConsumedCapacity = &id, o.consumed
		}
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, r)
	}
}

func TestRequestedCoversEveryAllocationAndAllocatedIsTheSumOverDevices(t *testing.T) {
	t.Parallel()
	checked, unequal := 0, 0
	var quotas []*quota.Quota
	for _, s := range selectors {
		quotas = append(quotas, manyKeys(t, s))
	}
	for seed := range uint64(2500) {
		r := world{rand.New(rand.NewPCG(seed, 1))}
		m := &model{inv: r.inventory(), q: quotas[r.IntN(len(quotas))]}
		charger := quota.NewCharger(m.inv)
		claim := r.claim()
		requested, err := charger.Requested(&claim.Spec, m.q)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		unknown := map[corev1.ResourceName]bool{}
		for _, u := range requested.Unknown {
			unknown[u.Key] = true
		}
		if counted, _ := charger.Claim(claim, m.q, nil); len(unknown) == 0 {
			same(t, fmt.Sprintf("seed %d: counted unallocated", seed), requested.Amounts, counted)
		}
		m.allocations(claim, func(chosen []option) {
			checked++
			allocate(claim, chosen)
			allocated, ok := charger.Allocated(claim, m.q)
			if !ok {
				t.Fatalf("seed %d: allocated is not computable: %v", seed, allocated.Unknown)
			}
			always := *m.q
			always.TrueDown = quota.TrueDownAlways
			counted, computed := charger.Claim(claim, &always, nil)
			if same(t, fmt.Sprintf("seed %d: counted allocated", seed), allocated.Amounts, counted); !computed {
				t.Fatalf("seed %d: not computed", seed)
			}
			want := map[corev1.ResourceName]*big.Int{}
			for _, o := range chosen {
				for k, v := range m.costs(o.class, o.p, o.consumed) {
					if want[k] == nil {
						want[k] = new(big.Int)
					}
					want[k].Add(want[k], v)
				}
			}
			for i := range m.q.Keys {
				k := m.q.Keys[i].Name
				got, most := allocated.Amounts[k], requested.Amounts[k]
				w := int64(0)
				if want[k] != nil {
					w = want[k].Int64()
				}
				if got.MilliValue() != w {
					t.Fatalf("seed %d: %s: allocated %s, the devices sum up to %dm", seed, k, got.String(), w)
				}
				if most.Cmp(got) < 0 && !unknown[k] {
					t.Fatalf("seed %d: %s: requested %s is less than allocated %s", seed, k, most.String(), got.String())
				}
				if most.Cmp(got) > 0 {
					unequal++
				}
			}
		})
	}
	if checked < 5000 || unequal == 0 {
		t.Errorf("only %d allocations checked, %d of their amounts below the requested", checked, unequal)
	}
}
