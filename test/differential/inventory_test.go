package differential

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/allocator"
)

// answers asks about every node of the case.
func answers(t *testing.T, c *Case, inv *allocator.Inventory) []Answer {
	t.Helper()
	o, err := NewOursOn(c, inv, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []Answer
	for _, node := range c.Nodes {
		out = append(out, o.Allocate(node, c.Claims))
	}
	return out
}

func sameAnswers(t *testing.T, c *Case, what string, want, got []Answer) {
	t.Helper()
	for i := range want {
		if d := Diff(want[i], got[i]); d != "" {
			t.Errorf("seed %d node %s: %s: want -, got +:\n%s", c.Seed, c.Nodes[i].Name, what, d)
		}
	}
}

// An inventory depends on its content, not on the events that made it; and it never changes.
func TestInventoryIsTheSameHoweverItWasBuilt(t *testing.T) {
	for seed := range uint64(400) {
		c, other := Generate(seed), Generate(seed+10_000)
		want := answers(t, c, OurInventory(c))
		rng := rand.New(rand.NewPCG(seed, 2))
		b := allocator.NewBuilder(allocator.BuilderOptions{})
		var events []func()
		for i, s := range c.Slices {
			events = append(events, func() { b.SetSlice(s) })
			if rng.IntN(3) == 0 { // an earlier content under the same name
				old := other.Slices[i%len(other.Slices)].DeepCopy()
				old.Name = s.Name
				b.SetSlice(old)
			}
		}
		for _, class := range c.Classes {
			events = append(events, func() { b.SetClass(class) })
		}
		for _, node := range c.Nodes {
			events = append(events, func() { b.SetNode(node) })
		}
		for _, s := range other.Slices {
			if !slices.ContainsFunc(c.Slices, func(x *resourceapi.ResourceSlice) bool { return x.Name == s.Name }) {
				b.SetSlice(s)
				events = append(events, func() { b.DeleteSlice(s.Name) })
			}
		}
		for _, class := range other.Classes {
			if c.class(class.Name) == nil {
				b.SetClass(class)
				events = append(events, func() { b.DeleteClass(class.Name) })
			}
		}
		rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		var middle *allocator.Inventory
		var then []Answer
		for i, event := range events {
			event()
			if i == len(events)/2 {
				middle = b.Snapshot()
				then = answers(t, c, middle)
			} else if rng.IntN(3) == 0 {
				answers(t, c, b.Snapshot())
			}
		}
		sameAnswers(t, c, "built from events in another order", want, answers(t, c, b.Snapshot()))
		if middle != nil {
			sameAnswers(t, c, "an older inventory after later events", then, answers(t, c, middle))
		}
	}
}

// A taint rule counts as a taint of the devices that it names.
func TestTaintRulesAreTaintsOfTheirDevices(t *testing.T) {
	rules := 0
	for seed := range uint64(600) {
		c := Generate(seed)
		want := answers(t, c, OurInventory(c))
		without := c.Clone()
		b := allocator.NewBuilder(allocator.BuilderOptions{})
		for _, class := range c.Classes {
			b.SetClass(class)
		}
		for _, s := range without.Slices {
			for i := range s.Spec.Devices {
				d := &s.Spec.Devices[i]
				for _, taint := range d.Taints {
					rules++
					b.SetTaintRule(&resourceapi.DeviceTaintRule{
						ObjectMeta: metav1.ObjectMeta{Name: s.Name + "-" + d.Name},
						Spec:       resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &s.Spec.Driver, Pool: &s.Spec.Pool.Name, Device: &d.Name}, Taint: taint},
					})
				}
				d.Taints = nil
			}
			b.SetSlice(s)
		}
		if sameDeviceInTwoSlices(c) {
			continue // a rule names both
		}
		sameAnswers(t, c, "taints by rules", want, answers(t, c, b.Snapshot()))
	}
	if rules < 100 {
		t.Errorf("%d rules prove too little", rules)
	}
}

func sameDeviceInTwoSlices(c *Case) bool {
	seen := map[deviceKey]bool{}
	for _, s := range c.Slices {
		for _, d := range s.Spec.Devices {
			key := deviceKey{s.Spec.Driver, s.Spec.Pool.Name, d.Name}
			if seen[key] {
				return true
			}
			seen[key] = true
		}
	}
	return false
}

// A state is what the claims in it hold, whatever was added and removed before.
func TestStateIsTheSameHoweverItWasBuilt(t *testing.T) {
	for seed := range uint64(400) {
		c, other := Generate(seed), Generate(seed+20_000)
		inv, f := OurInventory(c), OurFeatures(c.Features)
		want := answers(t, c, inv)
		state := allocator.StateOf(other.Allocated, f)
		for _, claim := range c.Allocated {
			state.Add(claim)
		}
		kept := state.Clone()
		for _, claim := range other.Allocated {
			state.Remove(claim)
			state.Add(claim)
			state.Remove(claim)
		}
		a, err := allocator.New(inv, state, allocator.Options{Features: f})
		if err != nil {
			t.Fatal(err)
		}
		var got []Answer
		for _, node := range c.Nodes {
			got = append(got, (&Ours{allocator: a}).Allocate(node, c.Claims))
		}
		sameAnswers(t, c, "state by adding and removing", want, got)
		both := c.Clone()
		both.Allocated = append(both.Allocated, other.Allocated...)
		if a, err = allocator.New(inv, kept, allocator.Options{Features: f}); err != nil {
			t.Fatal(err)
		}
		var late []Answer
		for _, node := range c.Nodes {
			late = append(late, (&Ours{allocator: a}).Allocate(node, c.Claims))
		}
		sameAnswers(t, c, "a clone after changes of its origin", answers(t, both, inv), late)
	}
}

// Nodes yields the nodes on which Allocate finds a solution, in the order of their names,
// and Choose the first of them.
func TestNodesAreThoseOnWhichAllocateFits(t *testing.T) {
	fits := 0
	for seed := range uint64(500) {
		c := Generate(seed)
		inv, f := OurInventory(c), OurFeatures(c.Features)
		a, err := allocator.New(inv, allocator.StateOf(c.Allocated, f), allocator.Options{Features: f})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]Answer{}
		for _, node := range c.Nodes {
			if x := (&Ours{allocator: a}).Allocate(node, c.Claims); x.Verdict != DoesNotFit {
				want[node.Name] = x
			}
		}
		last := ""
		for fit, err := range a.Nodes(context.Background(), c.Claims) {
			if fit.Node == nil {
				if err == nil {
					t.Errorf("seed %d: neither node nor error", seed)
				}
				continue
			}
			x, expected := want[fit.Node.Name]
			if !expected || (err != nil) != (x.Verdict == Fails) || fit.Node.Name <= last {
				t.Errorf("seed %d: Nodes yields %s (%v) after %q; Allocate: %v", seed, fit.Node.Name, err, last, x)
				continue
			}
			if err == nil {
				fits++
				if d := DiffResults(x.Results, fit.Result.Allocations); d != "" {
					t.Errorf("seed %d node %s: Allocate - against Nodes +:\n%s", seed, fit.Node.Name, d)
				}
			}
			last = fit.Node.Name
			delete(want, fit.Node.Name)
		}
		for name, x := range want {
			if x.Verdict == Fits {
				t.Errorf("seed %d: Nodes does not yield %s", seed, name)
			}
		}
	}
	if fits < 100 {
		t.Errorf("%d fits prove too little", fits)
	}
}

// An allocator serves several goroutines at once.
func TestAllocateIsSafeForConcurrentUse(t *testing.T) {
	for seed := range uint64(60) {
		c := Generate(seed)
		inv := OurInventory(c)
		want := answers(t, c, OurInventory(c))
		o, err := NewOursOn(c, inv, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := make([][]Answer, 4)
		var group sync.WaitGroup
		for g := range got {
			group.Go(func() {
				for _, node := range c.Nodes {
					got[g] = append(got[g], o.Allocate(node, c.Claims))
				}
			})
		}
		group.Wait()
		for g := range got {
			sameAnswers(t, c, "asked concurrently", want, got[g])
		}
	}
}
