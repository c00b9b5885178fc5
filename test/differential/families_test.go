package differential

import (
	"fmt"
	"testing"
)

// Our allocator decides within a step bound what takes upstream exponentially many steps.
func TestExponentialFamiliesAreDecidedWithinAStepBound(t *testing.T) {
	const bound = 100_000
	for _, f := range Families() {
		t.Run(f.Name, func(t *testing.T) {
			want := DoesNotFit
			if f.Fits {
				want = Fits
			}
			for _, n := range []int{f.Size / 4, f.Size / 2, f.Size} {
				c := f.Build(n)
				ours, err := NewOurs(c, bound)
				if err != nil {
					t.Fatal(err)
				}
				a := ours.Allocate(c.Nodes[0], c.Claims)
				if a.Verdict != want {
					t.Errorf("size %d: %v, want %s", n, a, want)
					continue
				}
				if f.Fits {
					if v := Check(c, c.Nodes[0], a.Results); v != nil {
						t.Errorf("size %d: not valid: %q", n, v)
					}
				}
				t.Logf("size %d: %d steps", n, a.Steps)
			}
		})
	}
}

// In small sizes our first solution is the one that the enumeration finds, and
// upstream's where it finds one.
func TestExponentialFamiliesHaveUpstreamsFirstSolution(t *testing.T) {
	for _, f := range Families() {
		for _, n := range []int{min(8, f.Size/4), min(12, f.Size/2)} {
			t.Run(fmt.Sprintf("%s %d", f.Name, n), func(t *testing.T) {
				c := f.Build(n)
				ours, err := NewOurs(c, 0)
				if err != nil {
					t.Fatal(err)
				}
				upstream, err := NewUpstream(c, 30_000)
				if err != nil {
					t.Fatal(err)
				}
				got := ours.Allocate(c.Nodes[0], c.Claims)
				for name, a := range map[string]Answer{"upstream": upstream.Allocate(c.Nodes[0], c.Claims), "enumeration": NewReference(c, NoBugs, 30_000).Allocate(c.Nodes[0])} {
					if a.Verdict == GivesUp {
						continue
					}
					if d := Diff(a, got); d != "" {
						t.Errorf("%s - against ours +:\n%s", name, d)
					}
				}
			})
		}
	}
}

// The families deserve their name: upstream does not decide them within a budget that
// is far above the number of devices times the number of requests.
func TestUpstreamIsExponentialOnTheFamilies(t *testing.T) {
	const budget = 30_000
	for _, f := range Families() {
		c := f.Build(f.Size)
		u, err := NewUpstream(c, budget)
		if err != nil {
			t.Fatal(err)
		}
		if a := u.Allocate(c.Nodes[0], c.Claims); a.Verdict != GivesUp {
			t.Errorf("%s: upstream answers %v after %d steps", f.Name, a, a.Steps)
		}
	}
}
