package differential

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/allocator"
)

// unfits visits every "does not fit" of our allocator.
func unfits(t *testing.T, cases uint64, visit func(c *Case, node *corev1.Node, u *allocator.Unfit)) {
	t.Helper()
	for seed := range cases {
		c := Generate(seed)
		f := OurFeatures(c.Features)
		a, err := allocator.New(OurInventory(c), allocator.StateOf(c.Allocated, f), allocator.Options{Features: f})
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range c.Nodes {
			if result, err := a.Allocate(context.Background(), node, c.Claims); err == nil && result.Unfit != nil {
				visit(c, node, result.Unfit)
			}
		}
	}
}

// What is called permanent does not fit on the empty node either, says the enumeration.
func TestPermanentMeansThatNothingInUseIsToBlame(t *testing.T) {
	permanent, passing := 0, 0
	unfits(t, 1500, func(c *Case, node *corev1.Node, u *allocator.Unfit) {
		empty := c.Clone()
		empty.Allocated = nil
		a := NewReference(empty, NoBugs, referenceBudget).Allocate(node)
		switch {
		case u.Permanent:
			permanent++
			if a.Verdict == Fits {
				t.Errorf("seed %d node %s: called permanent, but on the empty node it %v\n%v", c.Seed, node.Name, a, u)
			}
		case a.Verdict == Fits:
			passing++
		}
	})
	if permanent < 50 || passing < 30 {
		t.Errorf("%d permanent and %d passing obstacles prove too little", permanent, passing)
	}
	t.Logf("%d permanent, %d fit on the empty node", permanent, passing)
}

// An explanation says something, says the same again, and does not miss why.
func TestExplanationsAreDeterministic(t *testing.T) {
	first := map[string]string{}
	for round := range 2 {
		unfits(t, 500, func(c *Case, node *corev1.Node, u *allocator.Unfit) {
			key, text := c.String()+node.Name, u.String()
			if text == "" || u.Summary == "" {
				t.Errorf("seed %d node %s: empty explanation", c.Seed, node.Name)
			}
			if round == 0 {
				first[key] = text
			} else if first[key] != text {
				t.Errorf("seed %d node %s: once\n%s\nthen\n%s", c.Seed, node.Name, first[key], text)
			}
		})
	}
}

// Explain speaks of never only if the claims fit on no empty node.
func TestExplainNeverMeansOnNoEmptyNode(t *testing.T) {
	never, sometimes := 0, 0
	for seed := range uint64(800) {
		c := Generate(seed)
		empty := c.Clone()
		empty.Allocated = nil
		fits := false
		for _, node := range c.Nodes {
			fits = fits || NewReference(empty, NoBugs, referenceBudget).Allocate(node).Verdict == Fits
		}
		f := OurFeatures(c.Features)
		a, err := allocator.New(OurInventory(c), allocator.StateOf(c.Allocated, f), allocator.Options{Features: f})
		if err != nil {
			t.Fatal(err)
		}
		u, err := a.Explain(context.Background(), c.Claims)
		switch {
		case err != nil:
		case u != nil:
			never++
			if fits {
				t.Errorf("seed %d: they fit on an empty node, but Explain says\n%v", seed, u)
			}
			if !u.Permanent {
				t.Errorf("seed %d: Permanent is not set", seed)
			}
		case fits:
			sometimes++
		}
	}
	if never < 50 || sometimes < 50 {
		t.Errorf("%d times never, %d times sometimes prove too little", never, sometimes)
	}
}
