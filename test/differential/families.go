package differential

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
)

// Family is a kind of input on which a plain backtracking search takes a number of
// steps that is exponential in the size.
type Family struct {
	// Name says what the claims want.
	Name string
	// Size is the largest that is tried: at most 64 devices on the node, 32 results per claim.
	Size int
	// Fits tells whether there is a solution.
	Fits bool
	// Build returns the case of a size.
	Build func(n int) *Case
}

// numbered makes n devices d00, d01, ... with their number as attribute.
func numbered(n int, also func(i int, d *resourceapi.Device)) []resourceapi.Device {
	var out []resourceapi.Device
	for i := range n {
		d := Dev(fmt.Sprintf("d%02d", i), "number", i)
		if also != nil {
			also(i, &d)
		}
		out = append(out, d)
	}
	return out
}

const (
	isFirst = `device.attributes["` + Driver + `"].number == 0`
	isGPU   = `device.attributes["` + Driver + `"].kind == "gpu"`
	isNIC   = `device.attributes["` + Driver + `"].kind == "nic"`
)

// Families returns all families, each once with and once without a solution.
func Families() []Family {
	return []Family{
		{"one claim more than devices", 64, false, func(n int) *Case { return claimsOnEqualDevices(n, n+1, false) }},
		{"late claim fits only the first device", 64, true, func(n int) *Case { return claimsOnEqualDevices(n, n, true) }},
		{"half of the devices and one impossible", 64, false, func(n int) *Case { return half(n, "false") }},
		{"half of the devices and then the first", 62, true, func(n int) *Case { return half(n, isFirst) }},
		{"more devices than exist", 30, false, func(n int) *Case {
			return NewCase(Default137()).AddPool("n0", "p", numbered(n, nil)...).AddClaim(Want("a", int64(n/2)), Want("b", int64(n-n/2+1)))
		}},
		{"as many devices as exist, constrained", 32, true, func(n int) *Case {
			c := NewCase(Default137()).AddPool("n0", "p", numbered(n, nil)...)
			return c.AddClaim(Want("a", int64(n/2)), Want("b", int64(n/2-1)), Want("c", 1, isFirst)).Distinct(Driver + "/number")
		}},
		{"partner on another NUMA node", 64, false, func(n int) *Case { return numa(n, false) }},
		{"partner on the second NUMA node", 64, true, func(n int) *Case { return numa(n, true) }},
		{"fewer distinct values than wanted", 64, false, func(n int) *Case { return distinct(n, n/4+1, "") }},
		{"as many distinct values as wanted, late first", 64, true, func(n int) *Case { return distinct(n, n/4-1, isFirst) }},
		{"small partitions block big ones", 8, false, func(n int) *Case { return partitions(n, n-1, 8) }},
		{"small partitions must share a GPU", 8, true, func(n int) *Case { return partitions(n, n-1, 7) }},
		{"shares pack only in pairs, one too many", 16, false, func(n int) *Case { return shares(n, 1) }},
		{"shares pack only in pairs", 16, true, func(n int) *Case { return shares(n, 0) }},
		{"many equal alternatives, one claim too many", 32, false, func(n int) *Case { return alternativesOf(n, n+1, false) }},
		{"many equal alternatives, late claim", 32, true, func(n int) *Case { return alternativesOf(n, n, true) }},
		{"two claims want one device too many", 60, false, func(n int) *Case { return twoClaims(n, 1) }},
		{"two claims, the second wants the first device", 60, true, func(n int) *Case { return twoClaims(n, 0) }},
	}
}

func claimsOnEqualDevices(devices, claims int, late bool) *Case {
	c := NewCase(Default137()).AddPool("n0", "p", numbered(devices, nil)...)
	for i := range claims {
		if late && i == claims-1 {
			c.AddClaim(Want("r", 1, isFirst))
			break
		}
		c.AddClaim(Want("r", 1))
	}
	return c
}

func half(n int, last string) *Case {
	return NewCase(Default137()).AddPool("n0", "p", numbered(n, nil)...).AddClaim(Want("a", int64(min(n/2, 31))), Want("b", 1, last))
}

// numa has n-1 GPUs, on both NUMA nodes if both, and a NIC on NUMA node 1.
func numa(n int, both bool) *Case {
	devices := numbered(n, func(i int, d *resourceapi.Device) {
		kind, node := "gpu", 0
		if both && i >= n/2 {
			node = 1
		}
		if i == n-1 {
			kind, node = "nic", 1
		}
		*d = Dev(d.Name, "kind", kind, "numa", node, "number", i)
	})
	return NewCase(Default137()).AddPool("n0", "p", devices...).AddClaim(Want("gpus", int64(min(n/4, 16)), isGPU), Want("nic", 1, isNIC)).Match(Driver + "/numa")
}

// distinct has n devices with n/4 values.
func distinct(n, count int, last string) *Case {
	devices := numbered(n, func(i int, d *resourceapi.Device) { *d = Dev(d.Name, "rail", i/4, "number", i) })
	requests := []resourceapi.DeviceRequest{Want("r", int64(count))}
	if last != "" {
		requests = append(requests, Want("last", 1, last))
	}
	return NewCase(Default137()).AddPool("n0", "p", devices...).AddClaim(requests...).Distinct(Driver + "/rail")
}

// partitions has GPUs of 7 small partitions each, or one big one; the small ones come
// first and go round the GPUs.
func partitions(gpus, big, small int) *Case {
	var devices []resourceapi.Device
	var sets []resourceapi.CounterSet
	for i := range gpus {
		sets = append(sets, Set(fmt.Sprintf("gpu%d", i), "slices", 7))
	}
	for j := range 7 {
		for i := range gpus {
			devices = append(devices, Consuming(Dev(fmt.Sprintf("small-%d-%d", j, i), "size", 1), sets[i].Name, "slices", 1))
		}
	}
	for i := range gpus {
		devices = append(devices, Consuming(Dev(fmt.Sprintf("whole-%d", i), "size", 7), sets[i].Name, "slices", 7))
	}
	size := func(n int) string { return fmt.Sprintf("device.attributes[%q].size == %d", Driver, n) }
	c := NewCase(Default137()).AddPool("n0", "p", devices...).AddCounters("n0", "p", sets...)
	for range small {
		c.AddClaim(Want("r", 1, size(1)))
	}
	for range big {
		c.AddClaim(Want("r", 1, size(7)))
	}
	return c
}

// shares has n devices of 10; n claims of 4 and n+extra of 6 fit only pairwise.
func shares(n, extra int) *Case {
	devices := numbered(n, func(_ int, d *resourceapi.Device) { *d = Shared(*d, "memory", 10) })
	c := NewCase(Default137()).AddPool("n0", "p", devices...)
	for range n {
		c.AddClaim(WantCapacity("r", "memory", "4"))
	}
	for range n + extra {
		c.AddClaim(WantCapacity("r", "memory", "6"))
	}
	return c
}

func alternativesOf(devices, claims int, late bool) *Case {
	c := NewCase(Default137()).AddPool("n0", "p", numbered(devices, nil)...)
	for i := range claims {
		if late && i == claims-1 {
			c.AddClaim(Want("r", 1, isFirst))
			break
		}
		c.AddClaim(FirstOf("r", Want("", 1), Want("", 1), Want("", 1), Want("", 1), Want("", 1), Want("", 1), Want("", 1), Want("", 1)))
	}
	return c
}

func twoClaims(n, extra int) *Case {
	c := NewCase(Default137()).AddPool("n0", "p", numbered(n, nil)...).AddClaim(Want("r", int64(n/2)))
	if extra == 0 {
		return c.AddClaim(Want("r", int64(n/2-1)), Want("first", 1, isFirst))
	}
	return c.AddClaim(Want("r", int64(n-n/2+extra)))
}
