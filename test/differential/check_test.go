package differential

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// uniqueShares gives each share of a built result an ID of its own.
func uniqueShares(results []resourceapi.AllocationResult) {
	n := 0
	for i := range results {
		for j := range results[i].Devices.Results {
			if r := &results[i].Devices.Results[j]; r.ShareID != nil {
				n++
				r.ShareID = ptr(types.UID(fmt.Sprintf("new-%d", n)))
			}
		}
	}
}

// valid yields cases with the solution that the enumeration finds.
func valid(t *testing.T, from, to uint64, visit func(c *Case, node *corev1.Node, results []resourceapi.AllocationResult)) {
	t.Helper()
	n := 0
	for seed := from; seed < to; seed++ {
		c := Generate(seed)
		r := NewReference(c, NoBugs, 5000)
		for _, node := range c.Nodes {
			if a := r.Allocate(node); a.Verdict == Fits {
				uniqueShares(a.Results)
				n++
				visit(c, node, a.Results)
			}
		}
	}
	if n < int(to-from)/4 {
		t.Fatalf("only %d solutions in %d cases: the test proves too little", n, to-from)
	}
}

func TestCheckAcceptsSolutionsOfTheEnumeration(t *testing.T) {
	valid(t, 0, 800, func(c *Case, node *corev1.Node, results []resourceapi.AllocationResult) {
		if v := Check(c, node, results); v != nil {
			t.Errorf("seed %d node %s: %q", c.Seed, node.Name, v)
		}
	})
}

// Each mutation makes a valid result invalid, whatever the case; false where it does not apply.
var mutations = map[string]func(r *resourceapi.AllocationResult) bool{
	"a device is missing": func(r *resourceapi.AllocationResult) bool {
		n := len(r.Devices.Results)
		if n > 0 {
			r.Devices.Results = r.Devices.Results[1:]
		}
		return n > 0
	},
	"a device is listed twice": onDevice(func(r *resourceapi.AllocationResult) bool {
		r.Devices.Results = append(r.Devices.Results, r.Devices.Results[len(r.Devices.Results)-1])
		return true
	}),
	"the device does not exist": onDevice(func(r *resourceapi.AllocationResult) bool {
		r.Devices.Results[0].Device = "nothing"
		return true
	}),
	"the request does not exist": onDevice(func(r *resourceapi.AllocationResult) bool {
		r.Devices.Results[0].Request = "nobody"
		return true
	}),
	"admin access is the other way round": onDevice(func(r *resourceapi.AllocationResult) bool {
		d := &r.Devices.Results[0]
		if d.AdminAccess == nil {
			d.AdminAccess = ptr(true)
		} else {
			d.AdminAccess = nil
		}
		return true
	}),
	"the share ID is missing or too much": onDevice(func(r *resourceapi.AllocationResult) bool {
		d := &r.Devices.Results[0]
		if d.ShareID == nil {
			d.ShareID = ptr(types.UID("x"))
		} else {
			d.ShareID = nil
		}
		return true
	}),
	"too much capacity is consumed": onDevice(func(r *resourceapi.AllocationResult) bool {
		for name := range r.Devices.Results[0].ConsumedCapacity {
			r.Devices.Results[0].ConsumedCapacity[name] = resource.MustParse("777")
			return true
		}
		return false
	}),
	"tolerations are forgotten": onDevice(func(r *resourceapi.AllocationResult) bool {
		had := len(r.Devices.Results[0].Tolerations) > 0
		r.Devices.Results[0].Tolerations = nil
		return had
	}),
	"binding conditions are forgotten": onDevice(func(r *resourceapi.AllocationResult) bool {
		had := len(r.Devices.Results[0].BindingConditions) > 0
		r.Devices.Results[0].BindingConditions = nil
		return had
	}),
	"skipped operations are forgotten": onDevice(func(r *resourceapi.AllocationResult) bool {
		had := len(r.Devices.Results[0].SkipNodeOperations) > 0
		r.Devices.Results[0].SkipNodeOperations = nil
		return had
	}),
	"a config is forgotten": func(r *resourceapi.AllocationResult) bool {
		had := len(r.Devices.Config) > 0
		r.Devices.Config = nil
		return had
	},
	"a config is for somebody else": func(r *resourceapi.AllocationResult) bool {
		if len(r.Devices.Config) == 0 {
			return false
		}
		r.Devices.Config[0].Requests = []string{"nobody"}
		return true
	},
	"the node selector is forgotten": func(r *resourceapi.AllocationResult) bool {
		had := r.NodeSelector != nil
		r.NodeSelector = nil
		return had
	},
	"the node selector is too much": func(r *resourceapi.AllocationResult) bool {
		had := r.NodeSelector != nil
		r.NodeSelector = nodeSelector("zone", "z9")
		return !had
	},
}

func onDevice(f func(r *resourceapi.AllocationResult) bool) func(r *resourceapi.AllocationResult) bool {
	return func(r *resourceapi.AllocationResult) bool { return len(r.Devices.Results) > 0 && f(r) }
}

func TestCheckRejectsEveryMutation(t *testing.T) {
	used := map[string]int{}
	valid(t, 0, 500, func(c *Case, node *corev1.Node, results []resourceapi.AllocationResult) {
		for name, mutate := range mutations {
			for i := range results {
				mutated := make([]resourceapi.AllocationResult, len(results))
				for j := range results {
					mutated[j] = *results[j].DeepCopy()
				}
				if !mutate(&mutated[i]) {
					continue
				}
				used[name]++
				if Check(c, node, mutated) == nil {
					t.Errorf("seed %d node %s claim %d: %s, and the checker accepts it", c.Seed, node.Name, i, name)
				}
			}
		}
		if Check(c, node, results[1:]) == nil {
			t.Errorf("seed %d node %s: a claim without result is accepted", c.Seed, node.Name)
		}
	})
	for name := range mutations {
		if used[name] < 5 {
			t.Errorf("mutation %q was tried %d times only", name, used[name])
		}
	}
	t.Log(used)
}

// Random assignments are judged twice: as a whole by the checker, and device by device
// by the enumeration. Both must agree, on valid and on invalid ones.
func TestCheckAgreesWithPlacingDeviceByDevice(t *testing.T) {
	good, bad := 0, 0
	for seed := range uint64(1000) {
		c := Generate(seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		for _, node := range c.Nodes {
			for range 8 {
				results, placed, made := randomAssignment(c, node, rng)
				if !made {
					continue
				}
				violations := Check(c, node, results)
				if placed != (violations == nil) {
					t.Errorf("seed %d node %s: placing device by device: %v, but the checker: %q\n%s", seed, node.Name, placed, violations, describe(results))
				}
				if placed {
					good++
				} else {
					bad++
				}
			}
		}
	}
	if good < 300 || bad < 300 {
		t.Errorf("%d valid and %d invalid assignments prove too little", good, bad)
	}
	t.Logf("%d valid, %d invalid", good, bad)
}

// randomAssignment draws devices for all claims. made is false if there are too few devices
// or the claims are an error; placed tells whether every device could be placed in turn.
func randomAssignment(c *Case, node *corev1.Node, rng *rand.Rand) (results []resourceapi.AllocationResult, placed, made bool) {
	e := NewReference(c, NoBugs, 1000).enumerationFor(node)
	if unfit, err := e.prepare(); unfit || err != nil || len(e.usable) == 0 {
		return nil, false, false
	}
	e.reset()
	placed = true
	assigned := make([][]chosen, len(e.alts))
	for i, requests := range e.alts {
		for j, alts := range requests {
			a := alts[rng.IntN(len(alts))]
			if a.dead || a.n == 0 || a.n > int64(len(e.usable)) {
				return nil, false, false
			}
			e.served[i][j] = a
			list := a.all
			if a.mode != resourceapi.DeviceAllocationModeAll {
				list = drawDevices(e, a, rng)
			}
			for _, d := range list {
				assigned[i] = append(assigned[i], chosen{a, d})
				ok, err := e.selects(a, d)
				if ok && err == nil && placed {
					ok, _, err = e.place(a, d)
				}
				placed = placed && ok && err == nil
			}
			placed = placed && len(assigned[i]) <= maxResults
		}
	}
	results, err := c.build(node, assigned, e.served, NoBugs)
	uniqueShares(results)
	return results, placed, err == nil
}

// drawDevices draws distinct devices in order, mostly those that are selected.
func drawDevices(e *enumeration, a *alternative, rng *rand.Rand) []*deviceView {
	var pool []int
	for i, d := range e.usable {
		if ok, err := e.selects(a, d); ok && err == nil {
			pool = append(pool, i)
		}
	}
	if int64(len(pool)) < a.n || rng.IntN(10) == 0 {
		pool = nil
		for i := range e.usable {
			pool = append(pool, i)
		}
	}
	rng.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
	in := map[int]bool{}
	for _, i := range pool[:a.n] {
		in[i] = true
	}
	var out []*deviceView
	for i, d := range e.usable {
		if in[i] {
			out = append(out, d)
		}
	}
	return out
}
