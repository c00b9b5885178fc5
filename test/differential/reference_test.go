package differential

import "testing"

// The enumeration with all of upstream's bugs switched on is upstream's allocator: only
// because of that can a single bug explain a difference.
func TestEnumerationWithAllBugsIsUpstream(t *testing.T) {
	seen := map[Verdict]int{}
	for seed := range uint64(3000) {
		c := Generate(seed)
		u, err := NewUpstream(c, 20000)
		if err != nil {
			t.Fatal(err)
		}
		r := NewReference(c, AllBugs, 20000)
		for _, node := range c.Nodes {
			want, got := u.Allocate(node, c.Claims), r.Allocate(node)
			seen[want.Verdict]++
			if want.Verdict == GivesUp || got.Verdict == GivesUp || want.Verdict == Panics {
				continue
			}
			if a, b := blame(want.Err), blame(got.Err); a != b {
				t.Errorf("seed %d node %s: upstream: %v (%s), enumeration: %v (%s)", seed, node.Name, want, a, got, b)
			}
			if d := Diff(want, got); d != "" {
				t.Errorf("seed %d node %s: upstream - against enumeration +:\n%s", seed, node.Name, d)
			}
		}
	}
	t.Logf("upstream: %v", seen)
}
