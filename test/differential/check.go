package differential

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// checker judges one result. It looks at the whole solution at once and sums up,
// where a search adds one device after the other.
type checker struct {
	c          *Case
	node       *corev1.Node
	use        *usage
	pools      []*poolView
	rank       map[deviceKey]int
	devices    map[deviceKey]*deviceView
	results    [][]chosen
	served     [][]*alternative
	violations []string
}

// Check returns everything that is wrong with the results for the claims of the case
// on the node; none if the results are valid. That a better or an earlier
// solution exists is not its business.
func Check(c *Case, node *corev1.Node, results []resourceapi.AllocationResult) []string {
	k := &checker{c: c, node: node, use: c.usage(), rank: map[deviceKey]int{}, devices: map[deviceKey]*deviceView{}}
	if len(results) != len(c.Claims) {
		return []string{fmt.Sprintf("%d results for %d claims", len(results), len(c.Claims))}
	}
	var err error
	if k.pools, err = c.pools(node, NoBugs); err != nil {
		return []string{err.Error()}
	}
	for _, p := range k.pools {
		for _, d := range p.devices {
			k.rank[d.key], k.devices[d.key] = len(k.rank), d
		}
	}
	for i := range c.Claims {
		k.claim(i, &results[i])
	}
	if len(k.violations) > 0 {
		return k.violations
	}
	k.exclusive()
	k.counters()
	k.capacity()
	k.fields(results)
	return k.violations
}

func (k *checker) complain(format string, args ...any) {
	k.violations = append(k.violations, fmt.Sprintf(format, args...))
}

// claim finds out which alternative serves each request, with which devices.
func (k *checker) claim(i int, result *resourceapi.AllocationResult) {
	var devices []chosen
	var served []*alternative
	rest := result.Devices.Results
	if len(rest) > maxResults {
		k.complain("claim %d: %d devices", i, len(rest))
	}
	for _, alts := range alternatives(i, k.c.Claims[i]) {
		if len(rest) == 0 || len(alts) == 0 {
			k.complain("claim %d: a request is not served", i)
			return
		}
		at := slices.IndexFunc(alts, func(a *alternative) bool { return a.name() == rest[0].Request })
		if at < 0 {
			k.complain("claim %d: %q in the place of another request", i, rest[0].Request)
			return
		}
		a := alts[at]
		if a.class = k.c.class(a.className); a.class == nil {
			k.complain("claim %d: %s: class %q does not exist", i, a.name(), a.className)
			return
		}
		n := 0
		for n < len(rest) && rest[n].Request == a.name() {
			n++
		}
		mine := k.request(a, rest[:n])
		rest = rest[n:]
		devices, served = append(devices, mine...), append(served, a)
	}
	if len(rest) > 0 {
		k.complain("claim %d: more devices than asked for", i)
	}
	k.results, k.served = append(k.results, devices), append(k.served, served)
	constraints := k.c.Claims[i].Spec.Devices.Constraints
	for j := range constraints {
		if ok, err := satisfied(k.c, &constraints[j], devices); !ok || err != nil {
			k.complain("claim %d: constraint %d is not satisfied (%v)", i, j, err)
		}
	}
}

// request checks the devices of one request by themselves.
func (k *checker) request(a *alternative, results []resourceapi.DeviceRequestAllocationResult) []chosen {
	var out []chosen
	last := -1
	for _, r := range results {
		key := deviceKey{r.Driver, r.Pool, r.Device}
		d := k.devices[key]
		if d == nil {
			k.complain("%s: no device %s on the node", a.name(), key)
			continue
		}
		if k.rank[key] <= last {
			k.complain("%s: %s is out of order or twice", a.name(), key)
		}
		last = k.rank[key]
		k.device(a, d)
		out = append(out, chosen{a, d})
	}
	switch a.mode {
	case resourceapi.DeviceAllocationModeExactCount:
		if int64(len(out)) != a.count {
			k.complain("%s: %d devices instead of %d", a.name(), len(out), a.count)
		}
	case resourceapi.DeviceAllocationModeAll:
		k.all(a, out)
	default:
		k.complain("%s: allocation mode %q", a.name(), a.mode)
	}
	return out
}

func (k *checker) device(a *alternative, d *deviceView) {
	if ok, err := a.selectable(k.c, k.node, d); !ok || err != nil {
		k.complain("%s: %s is not selectable (%v)", a.name(), d.key, err)
	}
	if !featuresAllow(k.c, k.node, d) {
		k.complain("%s: %s needs a feature that is off", a.name(), d.key)
	}
	if !a.tolerated(k.c, d) {
		k.complain("%s: %s has a taint that is not tolerated", a.name(), d.key)
	}
	if a.admin {
		return
	}
	if k.use.exclusive[d.key] {
		k.complain("%s: %s is in use", a.name(), d.key)
	}
	if len(k.use.shares[d.key]) > 0 && !multiple(k.c, d) {
		k.complain("%s: %s is exclusive, but a share of it is in use", a.name(), d.key)
	}
}

// all checks that nothing is missing: every device that matches, in use or not.
func (k *checker) all(a *alternative, got []chosen) {
	if len(got) == 0 {
		k.complain("%s: all of no devices", a.name())
	}
	for _, p := range k.pools {
		if !p.usable() {
			if k.c.mayServe(a, p) {
				k.complain("%s: all, but pool %s/%s cannot be used now", a.name(), p.driver, p.pool)
			}
			continue
		}
		for _, d := range p.devices {
			ok, err := a.selectable(k.c, k.node, d)
			if err != nil || !ok || !featuresAllow(k.c, k.node, d) {
				continue
			}
			if k.c.Features.ConsumableCapacity {
				if _, ok, err := amounts(a.capacity, d.dev, k.c.Features.FractionalCapacityRange); !ok || err != nil {
					continue
				}
			}
			if !slices.ContainsFunc(got, func(x chosen) bool { return x.d == d }) {
				k.complain("%s: all, but %s is missing", a.name(), d.key)
			}
		}
	}
}

// exclusive checks that no device is given twice which can be had only once.
func (k *checker) exclusive() {
	claims, owners := map[deviceKey][]int{}, map[deviceKey]int{}
	for i, devices := range k.results {
		for _, x := range devices {
			if multiple(k.c, x.d) {
				continue
			}
			if slices.Contains(claims[x.d.key], i) {
				k.complain("claim %d has %s twice", i, x.d.key)
			}
			claims[x.d.key] = append(claims[x.d.key], i)
			if !x.alt.admin {
				owners[x.d.key]++
			}
		}
	}
	for key, n := range owners {
		if n > 1 {
			k.complain("%s is given to %d claims", key, n)
		}
	}
}

// charged lists the devices that newly consume counters, each once, in order.
func (k *checker) charged() []*deviceView {
	var out []*deviceView
	for _, devices := range k.results {
		for _, x := range devices {
			if !x.alt.admin && !k.use.held(x.d.key) && !slices.Contains(out, x.d) {
				out = append(out, x.d)
			}
		}
	}
	return out
}

type counterKey struct{ driver, pool, set, name string }

func (k *checker) counters() {
	charged := k.charged()
	sums, groups := map[counterKey]quantity{}, map[counterKey]groupState{}
	consume := func(d *deviceView, check bool) {
		for _, c := range d.dev.ConsumesCounters {
			set := counterKey{d.key.Driver, d.key.Pool, c.CounterSet, ""}
			if k.c.Features.CompatibilityGroups {
				if check && !groups[set].admits(c.CompatibilityGroups) {
					k.complain("%s does not go with the groups on %v", d.key, set)
				}
				groups[set] = groups[set].with(c.CompatibilityGroups)
			}
			for name, counter := range c.Counters {
				set.name = name
				sum := sums[set].DeepCopy()
				if counter.Value.Sign() > 0 {
					sum.Add(counter.Value)
				}
				sums[set] = sum
			}
		}
	}
	for _, p := range k.pools {
		for _, d := range slices.Concat(p.devices, p.others) {
			if k.use.held(d.key) {
				consume(d, false)
			}
		}
	}
	for _, d := range charged {
		consume(d, true)
	}
	for _, d := range charged {
		for _, c := range d.dev.ConsumesCounters {
			for name, counter := range c.Counters {
				if counter.Value.Sign() <= 0 {
					continue
				}
				key := counterKey{d.key.Driver, d.key.Pool, c.CounterSet, name}
				sum, have := sums[key], d.pool.sets[c.CounterSet][name]
				if sum.Cmp(have) > 0 {
					k.complain("counter %v: %s consumed of %s", key, sum.String(), have.String())
				}
			}
		}
	}
}

func (k *checker) capacity() {
	if !k.c.Features.ConsumableCapacity {
		return
	}
	type key struct {
		d    deviceKey
		name resourceapi.QualifiedName
	}
	sums := map[key]quantity{}
	for _, devices := range k.results {
		for _, x := range devices {
			take, ok, err := amounts(x.alt.capacity, x.d.dev, k.c.Features.FractionalCapacityRange)
			if !ok || err != nil {
				k.complain("%s: %s has not the capacity (%v)", x.alt.name(), x.d.key, err)
			}
			if x.alt.admin || !multiple(k.c, x.d) {
				continue
			}
			for name, amount := range take {
				sum := sums[key{x.d.key, name}].DeepCopy()
				sum.Add(amount)
				sums[key{x.d.key, name}] = sum
			}
		}
	}
	for at, sum := range sums {
		for _, s := range k.use.shares[at.d] {
			sum.Add(s.consumed[at.name])
		}
		if have := k.devices[at.d].dev.Capacity[at.name].Value; sum.Cmp(have) > 0 {
			k.complain("%s: %s of %s of capacity %s", at.d, sum.String(), have.String(), at.name)
		}
	}
}

// fields compares everything that follows from the choice of devices.
func (k *checker) fields(results []resourceapi.AllocationResult) {
	if len(k.violations) > 0 {
		return
	}
	want, err := k.c.build(k.node, k.results, k.served, NoBugs)
	if err != nil {
		k.complain("%v", err)
		return
	}
	for i := range want {
		if a, b := want[i].NodeSelector, results[i].NodeSelector; severalTerms(a, b) && !narrower(b, a, k.node) {
			k.complain("claim %d: node selector %v matches nodes that not all devices can be used on, or not this one; want %v", i, b, a)
		}
	}
	if d := DiffResults(want, results); d != "" {
		k.complain("fields: want -, got +:\n%s", d)
	}
	seen := map[string]bool{}
	for key, shares := range k.use.shares {
		for _, s := range shares {
			seen[key.String()+"/"+string(s.id)] = true
		}
	}
	for _, r := range results {
		for _, d := range r.Devices.Results {
			if d.ShareID == nil {
				continue
			}
			id := deviceKey{d.Driver, d.Pool, d.Device}.String() + "/" + string(*d.ShareID)
			if seen[id] || *d.ShareID == "" {
				k.complain("share %q is not unique", id)
			}
			seen[id] = true
		}
	}
}
