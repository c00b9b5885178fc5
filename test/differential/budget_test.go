package differential

import (
	"context"
	"errors"
	"testing"

	"github.com/devicequota/devicequota/allocator"
)

// Running out of steps is an answer of its own; with fewer steps nothing else changes.
func TestASmallBudgetNeverMeansDoesNotFit(t *testing.T) {
	exhausted := 0
	for seed := range uint64(300) {
		for _, c := range []*Case{Generate(seed), GenerateHard(seed)} {
			inv := OurInventory(c)
			want := answers(t, c, inv)
			for _, steps := range []int64{1, 7, 60, 400} {
				o, err := NewOursOn(c, inv, steps)
				if err != nil {
					t.Fatal(err)
				}
				for i, node := range c.Nodes {
					a := o.Allocate(node, c.Claims)
					if a.Verdict == GivesUp {
						exhausted++
						continue
					}
					if d := Diff(want[i], a); d != "" {
						t.Errorf("seed %d node %s: %d steps: with enough -, with few +:\n%s", seed, node.Name, steps, d)
					}
				}
			}
		}
	}
	if exhausted < 100 {
		t.Errorf("%d exhausted budgets prove too little", exhausted)
	}
}

// Steps count work that depends on the question alone; what an inventory remembers of earlier
// questions can only save some.
func TestRememberedSelectorsOnlySaveSteps(t *testing.T) {
	for seed := range uint64(300) {
		for _, c := range []*Case{Generate(seed), GenerateHard(seed)} {
			inv := OurInventory(c)
			first, again, fresh := answers(t, c, inv), answers(t, c, inv), answers(t, c, OurInventory(c))
			sameAnswers(t, c, "asked again", first, again)
			for i := range first {
				if again[i].Steps > first[i].Steps || first[i].Steps != fresh[i].Steps {
					t.Errorf("seed %d node %s: %d steps, then %d, on a fresh inventory %d", seed, c.Nodes[i].Name, first[i].Steps, again[i].Steps, fresh[i].Steps)
				}
			}
		}
	}
}

// A context that is done ends the search with its error, whatever the search knows by then.
func TestACancelledContextIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, f := range Families() {
		c := f.Build(f.Size)
		features := OurFeatures(c.Features)
		a, err := allocator.New(OurInventory(c), allocator.StateOf(c.Allocated, features), allocator.Options{Features: features})
		if err != nil {
			t.Fatal(err)
		}
		if result, err := a.Allocate(ctx, c.Nodes[0], c.Claims); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %+v, %v", f.Name, result, err)
		}
	}
}
