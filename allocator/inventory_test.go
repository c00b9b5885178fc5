package allocator

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// candidates lists "device@nodes" of the class.
func candidates(t *testing.T, inv *Inventory, expressions ...string) string {
	t.Helper()
	var list []string
	within, err := inv.Candidates(classA, selectors(expressions...), func(driver, pool string, d *resourceapi.Device, nodes []string) bool {
		where := "all"
		if nodes != nil {
			where = strings.Join(nodes, "+")
		}
		list = append(list, d.Name+"@"+where)
		return true
	})
	if err != nil || !within {
		t.Errorf("within budget %v, %v", within, err)
	}
	return strings.Join(list, " ")
}

func TestCandidates(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	b.SetNode(node("n1", "zone=a"))
	b.SetNode(node("n2", "zone=a"))
	b.SetNode(node("n3", "zone=b"))
	zoned := dev("zoned")
	zoned.NodeSelector = onLabel("zone", "a")
	everywhere := dev("everywhere", attr("x", 1))
	everywhere.AllNodes = ptr.To(true)
	b.SetSlice(sliceOf("s3", []resourceapi.Device{zoned, everywhere}, inPool(driverA, "c", 1, 1), perDevice))
	b.SetSlice(sliceOf("s2", []resourceapi.Device{dev("local", attr("x", 1))}, inPool(driverA, "b", 1, 1), onNode("n3")))
	b.SetSlice(sliceOf("s1", devs("other", 1), inPool(driverB, "a", 1, 1)))
	inv := b.Snapshot()
	if got, want := candidates(t, inv), "local@n3 zoned@n1+n2 everywhere@all"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	// The zoned device has no attribute x: an error, so no candidate.
	if got, want := candidates(t, inv, `device.attributes["`+driverA+`"].x == 1`), "local@n3 everywhere@all"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	if _, err := inv.Candidates(classA, selectors("1 +"), nil); err == nil {
		t.Error("want an error for a selector that does not compile")
	}
	if within, err := inv.Candidates("none", nil, nil); !within || err != nil {
		t.Errorf("unknown class: %v, %v", within, err)
	}
}

func TestCandidatesBudgetDoesNotDependOnMemory(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{MaxCost: 100})
	b.SetClass(class(classA, driverA))
	b.SetSlice(sliceOf("s", devs("d", 100)))
	inv := b.Snapshot()
	for range 3 {
		n := 0
		within, err := inv.Candidates(classA, nil, func(string, string, *resourceapi.Device, []string) bool { n++; return true })
		if within || err != nil || n == 0 || n == 100 {
			t.Errorf("want the budget to end after some devices, got %d, %v, %v", n, within, err)
		}
	}
}

func TestChargingGoesByTheLastCompleteContent(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	b.SetSlice(sliceOf("a", devs("old", 2)))
	check := func(what, want string) {
		t.Helper()
		if got := candidates(t, b.Snapshot()); got != want {
			t.Errorf("%s: want %q, got %q", what, want, got)
		}
	}
	check("at first", "old-0@node-1 old-1@node-1")
	b.SetSlice(sliceOf("b", devs("new", 1), inPool(driverA, "pool", 2, 2)))
	check("half of the new generation", "old-0@node-1 old-1@node-1")
	b.DeleteSlice("a")
	check("the old one is gone", "old-0@node-1 old-1@node-1")
	if inv := b.Snapshot(); inv.Device(driverA, "pool", "old-1") == nil || inv.Device(driverA, "pool", "new-0") == nil || inv.Device(driverA, "pool", "x") != nil {
		t.Error("want both contents to be found")
	}
	b.SetSlice(sliceOf("c", devs("late", 1), inPool(driverA, "pool", 2, 2)))
	check("the new one is complete", "new-0@node-1 late-0@node-1")
	b.SetSlice(sliceOf("c", devs("new", 1), inPool(driverA, "pool", 2, 2)))
	check("a duplicate name makes it invalid", "new-0@node-1 late-0@node-1")
	b.DeleteSlice("b")
	b.DeleteSlice("c")
	check("all is gone", "")
}

func TestMatches(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{})
	b.SetSlice(sliceOf("s", []resourceapi.Device{dev("d", attr("x", 1))}))
	inv := b.Snapshot()
	expression := `device.attributes["` + driverA + `"].x == 1`
	for name, want := range map[string]bool{"d": true, "none": false} {
		if got, err := inv.Matches(expression, driverA, "pool", name); got != want || err != nil {
			t.Errorf("%s: want %v, got %v, %v", name, want, got, err)
		}
	}
	if got, err := inv.Matches(`device.attributes["x"].y`, driverA, "pool", "d"); got || err != nil {
		t.Errorf("an expression that fails: got %v, %v", got, err)
	}
	if _, err := inv.Matches("1 +", driverA, "pool", "d"); err == nil {
		t.Error("want an error for an expression that does not compile")
	}
}

func TestExtendedResourceClass(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{})
	add := func(name, resource string, age int) {
		c := class(name, driverA)
		c.Spec.ExtendedResourceName = &resource
		c.CreationTimestamp = metav1.NewTime(time.Unix(int64(1000-age), 0))
		b.SetClass(c)
	}
	add("old", "example.com/gpu", 9)
	add("y-new", "example.com/gpu", 1)
	add("x-new", "example.com/gpu", 1)
	want := func(resource, name string) {
		t.Helper()
		got := ""
		if c := b.Snapshot().ExtendedResourceClass(corev1.ResourceName(resource)); c != nil {
			got = c.Name
		}
		if got != name {
			t.Errorf("%s: want %q, got %q", resource, name, got)
		}
	}
	want("example.com/gpu", "x-new")
	b.DeleteClass("x-new")
	want("example.com/gpu", "y-new")
	b.DeleteClass("y-new")
	want("example.com/gpu", "old")
	want("deviceclass.resource.kubernetes.io/old", "old")
	want("deviceclass.resource.kubernetes.io/none", "")
	b.DeleteClass("old")
	want("example.com/gpu", "")
}

func TestTaintRules(t *testing.T) {
	t.Parallel()
	rule := func(s *resourceapi.DeviceTaintSelector) *resourceapi.DeviceTaintRule {
		return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule"}, Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: s, Taint: resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoExecute},
		}}
	}
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	b.SetSlice(sliceOf("s", devs("d", 2)))
	for i, tc := range []struct {
		change func()
		want   string
	}{
		{func() {}, "r=d-0"},
		{func() { b.SetTaintRule(rule(&resourceapi.DeviceTaintSelector{Device: ptr.To("d-0")})) }, "r=d-1"},
		{func() { b.SetTaintRule(rule(&resourceapi.DeviceTaintSelector{Driver: ptr.To(driverB)})) }, "r=d-0"},
		{func() {
			b.SetTaintRule(rule(&resourceapi.DeviceTaintSelector{Driver: ptr.To(driverA), Pool: ptr.To("pool")}))
		}, "unfit"},
		{func() { b.SetTaintRule(rule(&resourceapi.DeviceTaintSelector{})) }, "unfit"},
		{func() { b.SetSlice(sliceOf("s", devs("e", 2))) }, "unfit"},
		{func() { b.SetTaintRule(rule(nil)) }, "r=e-0"},
		{func() { b.SetTaintRule(rule(&resourceapi.DeviceTaintSelector{})); b.DeleteTaintRule("rule") }, "r=e-0"},
	} {
		tc.change()
		a, err := New(b.Snapshot(), State{}, Options{Features: DefaultFeatures()})
		if err != nil {
			t.Fatal(err)
		}
		r, err := a.Allocate(t.Context(), node(node1), []*resourceapi.ResourceClaim{claim("c", req("r", 1))})
		got := "unfit"
		if r.Unfit == nil {
			got = short(r.Allocations)
		}
		if err != nil || got != tc.want {
			t.Errorf("step %d: want %q, got %q, %v", i, tc.want, got, err)
		}
	}
}

// After any sequence of changes the Inventory answers as one that is built of the result.
func TestBuilderUpdatesEqualANewBuilder(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	current := map[string]*resourceapi.ResourceSlice{}
	for step := range 400 {
		name := fmt.Sprintf("s%d", r.IntN(6))
		if r.IntN(4) == 0 {
			b.DeleteSlice(name)
			delete(current, name)
		} else {
			s := sliceOf(name, devs(name, 1+r.IntN(3)), inPool(driverA, fmt.Sprintf("p%d", r.IntN(2)), int64(1+r.IntN(2)), int64(1+r.IntN(2))), onNode(fmt.Sprintf("n%d", r.IntN(2))))
			if r.IntN(3) == 0 {
				onAllNodes(s)
			}
			b.SetSlice(s)
			current[name] = s
		}
		fresh := NewBuilder(BuilderOptions{})
		fresh.SetClass(class(classA, driverA))
		for _, s := range current {
			fresh.SetSlice(s)
		}
		for _, n := range []string{"n0", "n1", "n2"} {
			if diff := cmp.Diff(outcomeOn(t, fresh.Snapshot(), n), outcomeOn(t, b.Snapshot(), n)); diff != "" {
				t.Fatalf("step %d, node %s (-new +updated):\n%s", step, n, diff)
			}
		}
	}
}

func outcomeOn(t *testing.T, inv *Inventory, name string) string {
	a, err := New(inv, State{}, Options{Features: DefaultFeatures()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Allocate(t.Context(), node(name), []*resourceapi.ResourceClaim{claim("c", req("r", 2)), claim("e", req("r", 0, all, admin))})
	if err != nil || r.Unfit != nil {
		return fmt.Sprint(r.Unfit, err)
	}
	return short(r.Allocations)
}

func TestSnapshotIsTheSameWithoutChange(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{})
	first := b.Snapshot()
	if b.Snapshot() != first {
		t.Error("want the same Inventory again")
	}
	b.SetNode(node("n"))
	second := b.Snapshot()
	if second == first || second.Revision() == first.Revision() || second.Node("n") == nil || first.Node("n") != nil {
		t.Error("want a new Inventory, and the old one unchanged")
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	f := DefaultFeatures()
	s := StateOf([]*resourceapi.ResourceClaim{holding("a", "pool/d"), holding("b", "pool/e#mem=2"), claim("c")}, f)
	clone := s.Clone()
	s.Remove(holding("a", "pool/d"))
	s.Add(holding("x", "pool/e#mem=3"))
	key := poolKey(driverA, "pool")
	if clone.pool(key).of("d") == nil || s.pool(key).of("d") != nil {
		t.Error("want the clone to be independent")
	}
	if got := s.pool(key).of("e"); got.shares != 2 || got.capacity["mem"] != nanos(5) {
		t.Errorf("want two shares of 5 together, got %+v", got)
	}
	if got := clone.pool(key).of("e"); got.shares != 1 || got.capacity["mem"] != nanos(2) {
		t.Errorf("want one share of 2 in the clone, got %+v", got)
	}
	s.Remove(holding("x", "pool/e#mem=3"))
	s.Remove(holding("b", "pool/e#mem=2"))
	if got := s.pool(key).of("e"); got != nil {
		t.Errorf("want nothing, got %+v", got)
	}
	f.ConsumableCapacity = false
	s = StateOf([]*resourceapi.ResourceClaim{holding("b", "pool/e#mem=2")}, f)
	if got := s.pool(key).of("e"); got.exclusive != 1 {
		t.Errorf("without the feature a share is the whole device, got %+v", got)
	}
}
