package differential

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxTogether is how many bugs may act together in one case.
const maxTogether = 4

// Explain finds out why upstream's answer for one node of the case differs from the
// right one: it returns the smallest set of known bugs with which, and with nothing
// else, the enumeration gives exactly upstream's answer. known is false if no set
// does. nodes are the nodes that were asked with the same allocator, in their order up
// to the one in question, because bugs may carry over from node to node.
func Explain(c *Case, nodes []*corev1.Node, upstream Answer, budget int64) (bugs Bugs, known bool) {
	candidates := NoBugs
	for bug := Bugs(1); bug < lastBug; bug <<= 1 {
		if c.concerns(bug, len(nodes)) {
			candidates |= bug
		}
	}
	blamed := blame(upstream.Err)
	for s := range candidates.subsets {
		if s.count() > maxTogether {
			break
		}
		if s&blamed == 0 && blamed != NoBugs {
			continue // the error itself names the bug
		}
		r := NewReference(c, s, budget)
		var last Answer
		for _, node := range nodes {
			last = r.Allocate(node)
		}
		if last.Verdict != GivesUp && Diff(upstream, last) == "" && blame(last.Err) == blamed {
			return s, true
		}
	}
	return NoBugs, false
}

// kinds are the bugs that show as an error, by a part of the text, upstream's or the enumeration's.
var kinds = []struct {
	text string
	bugs Bugs
}{
	{"is currently being updated", P8},
	{"is currently invalid", P8},
	{"could not retrieve device class", P9},
	{"constraint would not be satisfied", P1 | P2},
	{"exceeds the claim limit", P15},
	{"unsupported ResourceSlice.NodeSelector", P11},
}

// blame returns the bugs that an error may be due to; none for errors that are right.
func blame(err error) Bugs {
	if err == nil {
		return NoBugs
	}
	for _, k := range kinds {
		if strings.Contains(err.Error(), k.text) {
			return k.bugs
		}
	}
	return NoBugs
}

// concerns rules out bugs that cannot act in the case, to keep the search for a set short.
func (c *Case) concerns(bug Bugs, nodes int) bool {
	var all, admin, counters, missing bool
	for i, claim := range c.Claims {
		for _, alts := range alternatives(i, claim) {
			for _, a := range alts {
				all = all || a.mode == "All"
				admin = admin || a.admin
				missing = missing || c.class(a.className) == nil
			}
		}
	}
	for _, s := range c.Slices {
		counters = counters || len(s.Spec.SharedCounters) > 0
	}
	switch bug {
	case P1, P2, P8, I141091:
		return all
	case P3, P4Capacity:
		return admin
	case P4:
		return admin && counters
	case P5, I140802, I141216:
		return counters
	case CounterCache:
		return counters && nodes > 1
	case P9:
		return missing
	case LateValidation:
		return c.malformed(NoBugs) != nil
	case CountZero, ClassWithoutCEL, ObsoleteSelector, I141118:
		return c.Wild
	case P13:
		return len(c.Allocated) > 0
	default:
		return true
	}
}
