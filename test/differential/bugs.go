package differential

import (
	"math/bits"
	"strings"
)

// Bugs is a set of upstream's known bugs. The enumeration reproduces each of them on
// demand: that one bug, and nothing else, turns the right answer into upstream's.
type Bugs uint32

// The bugs, by the numbers of the probes that found them, or of upstream's issues.
const (
	// P1: a constraint that some device of an "All" request cannot meet ends the search
	// with an error, although other devices for the earlier requests would meet it.
	P1 Bugs = 1 << iota
	// P2: the same in an alternative of firstAvailable: later alternatives are never tried.
	P2
	// P3: a device that an earlier claim of the same call takes with admin access counts
	// as in use for later claims; the other way round it does not.
	P3
	// P4: admin access needs and charges counters and compatibility groups (issue 140729).
	P4
	// P4Capacity: admin access needs and charges consumable capacity.
	P4Capacity
	// P5: one over-consumed counter blocks all devices of the pool that consume any counter.
	P5
	// P8: an incomplete or invalid pool, also of a driver that no request can match, makes
	// every "All" request an error.
	P8
	// P9: a class that is missing is an error even in an alternative that is not needed.
	P9
	// P11: a node selector of a device or slice with several terms is an error once the
	// device is chosen.
	P11
	// P13: a device that no longer allows several allocations is handed out although a share
	// of it is in use.
	P13
	// P15: more than 32 devices at least are an error and end the search.
	P15
	// CounterCache: the available counters and groups of a pool are computed for the first
	// node that asks and used for all others, also where another generation is visible.
	CounterCache
	// I140802: counters of an allocated device that is in no slice any more are forgotten.
	I140802
	// I141216: a device with a negative consumption adds to its counters.
	I141216
	// I141091: "All" wants devices that a feature gate makes unusable.
	I141091
	// I141118: where slices of a pool disagree about their number, one of them counts.
	I141118
	// CountZero: a count below one, which the API server rejects, is served with no device.
	CountZero
	// ClassWithoutCEL: a class selector without expression is noticed only, by a panic, when
	// a device is tried.
	ClassWithoutCEL
	// ObsoleteSelector: a node selector that cannot be parsed is an error also in a slice that a
	// newer generation replaces.
	ObsoleteSelector
	// LateValidation: claims that the API server would reject are noticed in passing, after
	// expressions of other requests were evaluated.
	LateValidation

	lastBug
)

// NoBugs is how an allocator ought to behave, AllBugs how upstream's does.
const (
	NoBugs  Bugs = 0
	AllBugs      = lastBug - 1
)

var bugNames = []string{"P1", "P2", "P3", "P4", "P4-capacity", "P5", "P8", "P9", "P11", "P13", "P15", "counter-cache", "140802", "141216", "141091", "141118", "count-zero", "class-without-cel", "obsolete-selector", "late-validation"}

// String lists the names.
func (b Bugs) String() string {
	var names []string
	for i, name := range bugNames {
		if b&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, "+")
}

// Has reports whether all bugs of o are in the set.
func (b Bugs) Has(o Bugs) bool { return b&o == o }

func (b Bugs) count() int { return bits.OnesCount32(uint32(b)) }

// subsets yields all subsets, the smaller ones first.
func (b Bugs) subsets(yield func(Bugs) bool) {
	for size := 0; size <= b.count(); size++ {
		for s := b; ; s = (s - 1) & b {
			if s.count() == size && !yield(s) {
				return
			}
			if s == 0 {
				break
			}
		}
	}
}
