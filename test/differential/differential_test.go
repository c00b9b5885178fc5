package differential

import (
	"flag"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
)

var (
	casesFlag = flag.Uint64("cases", 3000, "how many random cases the differential test runs")
	hardFlag  = flag.Uint64("hard", 300, "how many hard cases the test of hard cases runs")
	firstFlag = flag.Uint64("first", 1_000_000, "the seed of the first one")
)

const (
	upstreamBudget  = 20_000
	referenceBudget = 20_000
	explainBudget   = 40_000
	lenientBudget   = 400_000
)

// tally counts what was seen, by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
	failed int
}

func (y *tally) add(format string, args ...any) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.counts[fmt.Sprintf(format, args...)]++
}

// TestDifferential compares our allocator with upstream's and with the enumeration, on
// small cases with all features.
func TestDifferential(t *testing.T) {
	compareAll(t, *casesFlag, Generate, referenceBudget)
}

// TestDifferentialOnHardCases does the same on cases that need long searches.
func TestDifferentialOnHardCases(t *testing.T) {
	compareAll(t, *hardFlag, GenerateHard, 10*referenceBudget)
}

// TestDifferentialAtTheLimit does the same around the largest number of results per claim.
func TestDifferentialAtTheLimit(t *testing.T) {
	compareAll(t, *hardFlag/3, GenerateLimits, referenceBudget)
}

// TestDifferentialAcrossGenerations does the same where nodes see different generations of a pool.
func TestDifferentialAcrossGenerations(t *testing.T) {
	compareAll(t, *hardFlag, GenerateGenerations, referenceBudget)
}

func compareAll(t *testing.T, cases uint64, generate func(seed uint64) *Case, budget int64) {
	y := &tally{counts: map[string]int{}}
	var group sync.WaitGroup
	workers := uint64(runtime.GOMAXPROCS(0))
	for w := range workers {
		group.Go(func() {
			for i := w; i < cases; i += workers {
				for _, problem := range differ(generate(*firstFlag+i), budget, y) {
					y.mu.Lock()
					if y.failed++; y.failed <= 20 {
						t.Error(problem)
					}
					y.mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if y.failed > 20 {
		t.Errorf("and %d problems more", y.failed-20)
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(y.counts)) {
		lines = append(lines, fmt.Sprintf("%-60s %d", name, y.counts[name]))
	}
	t.Logf("%d cases:\n%s", cases, strings.Join(lines, "\n"))
}

// deepFromTheStart makes our allocator use its second kind of search at once, which otherwise
// begins after as many steps as small cases seldom take. The number is not exported.
func deepFromTheStart(o *Ours) {
	field := reflect.ValueOf(o.allocator).Elem().FieldByName("plainSteps")
	*(*int64)(unsafe.Pointer(field.UnsafeAddr())) = -1
}

// differ runs one case and returns all that is wrong. The enumeration has the budget.
func differ(c *Case, budget int64, y *tally) (problems []string) {
	complain := func(node *corev1.Node, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("seed %d node %s: ", c.Seed, node.Name)+fmt.Sprintf(format, args...))
	}
	before := c.Clone()
	upstream, err := NewUpstream(c, upstreamBudget)
	if err != nil {
		return []string{err.Error()}
	}
	ours, err := NewOurs(c, 0)
	if err != nil {
		return []string{err.Error()}
	}
	deep, err := NewOurs(c, 0)
	if err != nil {
		return []string{err.Error()}
	}
	deepFromTheStart(deep)
	reference := NewReference(c, NoBugs, budget)
	for i, node := range c.Nodes {
		theirs, mine, right := upstream.Allocate(node, c.Claims), ours.Allocate(node, c.Claims), reference.Allocate(node)
		y.add("ours: %s", mine.Verdict)
		y.add("upstream: %s", theirs.Verdict)
		if mine.Verdict == Panics || mine.Verdict == GivesUp {
			complain(node, "ours: %v", mine)
			continue
		}
		if mine.Verdict == Fits {
			if v := Check(c, node, mine.Results); v != nil {
				complain(node, "ours is not valid: %s", strings.Join(v, "\n  "))
			}
		}
		if right.Verdict == GivesUp {
			y.add("enumeration: %s", right.Verdict)
		} else if d := Diff(right, mine); d != "" && !onTheWay(c, node, right, mine) && !anotherError(c, node, right, mine) {
			complain(node, "enumeration - against ours +:\n%s", d)
		}
		if d := Diff(mine, deep.Allocate(node, c.Claims)); d != "" {
			switch late := deep.Allocate(node, c.Claims); {
			case mine.Verdict == Fails && onTheWay(c, node, right, late):
				y.add("deep search: error on the way (%s)", late.Verdict)
			case mine.Verdict == Fails && anotherError(c, node, right, late):
				y.add("deep search: error on the way, on another device")
			default:
				complain(node, "ours - against ours, deep from the start +:\n%s", d)
			}
		}
		if p := difference(c, c.Nodes[:i+1], theirs, mine, y); p != "" {
			complain(node, "%s", p)
		}
	}
	if !reflect.DeepEqual(before, c) {
		problems = append(problems, fmt.Sprintf("seed %d: an input was modified", c.Seed))
	}
	return problems
}

// onTheWay reports whether the right answer is an error that a plain search meets on some
// device, on a path that leads nowhere, and ours did not go that path: it gives the answer of a
// search that passes over such devices.
func onTheWay(c *Case, node *corev1.Node, right, mine Answer) bool {
	if !right.OnTheWay || mine.Verdict == Fails {
		return false
	}
	return Diff(NewReference(c, NoBugs, lenientBudget).Lenient().Allocate(node), mine) == ""
}

// anotherError reports whether both answers are errors that a search meets on the way, only on
// different devices, because ours goes another way once the search gets long; and an expression of
// the claims does fail on the device that ours names.
func anotherError(c *Case, node *corev1.Node, right, mine Answer) bool {
	if !right.OnTheWay || mine.Verdict != Fails {
		return false
	}
	e := NewReference(c, NoBugs, referenceBudget).enumerationFor(node)
	if _, err := e.prepare(); err != nil {
		return false
	}
	for _, d := range e.usable {
		if d.key.String() != failedDevice(mine) {
			continue
		}
		for _, a := range slices.Concat(slices.Concat(e.alts...)...) {
			if a.dead {
				continue
			}
			if _, err := a.selectable(c, node, d); err != nil {
				return true
			}
			for name := range a.derived {
				if _, err := a.attribute(d, name); err != nil {
					return true
				}
			}
		}
	}
	return false
}

// difference explains why upstream's answer is another one, or says that nothing explains it.
func difference(c *Case, nodes []*corev1.Node, theirs, mine Answer, y *tally) string {
	switch theirs.Verdict {
	case GivesUp:
		y.add("difference: upstream exceeds %d steps; ours %s", upstreamBudget, mine.Verdict)
		return ""
	case Panics:
		if why := whyPanics(c, nodes[len(nodes)-1]); why != "" {
			y.add("difference: upstream panics: %s", why)
			return ""
		}
		return fmt.Sprintf("upstream panics for an unknown reason: %v", theirs.Err)
	}
	d := Diff(theirs, mine)
	if d == "" {
		y.add("same as upstream: %s", mine.Verdict)
		return ""
	}
	bugs, known := Explain(c, nodes, theirs, explainBudget)
	node := nodes[len(nodes)-1]
	if known && bugs == NoBugs {
		right := NewReference(c, NoBugs, explainBudget).Allocate(node)
		if onTheWay(c, node, right, mine) || anotherError(c, node, right, mine) {
			y.add("difference: error on the way (upstream %s, ours %s)", theirs.Verdict, mine.Verdict)
			return ""
		}
	}
	if !known || bugs == NoBugs {
		return fmt.Sprintf("no known bug explains upstream - against ours +:\n%s", d)
	}
	y.add("difference: %s (upstream %s, ours %s)", bugs, theirs.Verdict, mine.Verdict)
	return ""
}

// whyPanics repairs what is known to make upstream panic, one thing at a time, and
// names the one that helps.
func whyPanics(c *Case, node *corev1.Node) string {
	repaired := c.Clone()
	for _, class := range repaired.Classes {
		for i := range class.Spec.Selectors {
			if class.Spec.Selectors[i].CEL == nil {
				class.Spec.Selectors[i] = celSelector("true")
			}
		}
	}
	if u, err := NewUpstream(repaired, upstreamBudget); err == nil && u.Allocate(node, repaired.Claims).Verdict != Panics {
		return "class selector without expression"
	}
	return ""
}
