// Package allocator searches devices for ResourceClaims as the structured allocator of
// kube-scheduler 1.37 does, with the same first solution, and explains why there is none.
//
// A Builder collects ResourceSlices, DeviceClasses, Nodes and DeviceTaintRules and makes
// immutable Inventories of them; a State tells what is in use; an Allocator answers for both:
// Allocate for one node, Nodes and Choose for all of them, Explain without a node. The package
// does no I/O, starts no goroutine and knows neither clock nor feature gates.
//
// # The search
//
// A call has claims, a claim has requests, a request has one or (firstAvailable) several
// alternatives, an alternative wants a count of devices or all that match. The search goes
// through claims, requests, alternatives and devices in this order and takes the first complete
// solution: pools without binding conditions sorted by driver and name, then those with; slices
// by name; devices in slice order; the devices of one request in ascending order, so that
// combinations are tried, not permutations. This is the order of upstream's "experimental" and
// "incubating" allocators, so the first solution is the same.
//
// The search is complete: within Options.MaxSteps and Options.MaxCost it finds a solution
// whenever there is one. Running out of either, or of the context's time, is an error (ErrSteps,
// or the context's cause) and never "does not fit".
//
// It first runs plainly, in exactly that order without anything else, for a few steps per device.
// Nearly all calls end there. Otherwise it begins anew, in the same order, and leaves out what
// provably fails (deep.go, kinds.go, bounds.go, supply.go, sums.go):
//
//   - Interchangeable devices. Devices get a trait: all that the call can tell of them (which
//     alternatives may use them, what they consume of which capacity, the elements of the
//     attributes that constraints name, what of them is in use). Devices that share counter
//     sets form a group; groups with the same traits, counters and consumption are of one class.
//     Two devices are of one kind if trait, class of the group, what this call uses of the group
//     and which of its members are still open to the current request are equal. Then an exchange
//     of the two groups turns any solution into a solution. If at one point the earlier device
//     of a kind has failed, so would the later one: exchanged, its solution would either contain
//     the earlier device or one before it, all of which have been tried. Skipping the later one
//     therefore loses no solution, and as only later devices are skipped, the first one stays.
//
//   - Remembered failures. A point of the search is described by request, alternative and
//     number of devices so far, the results and constraints of the claim in progress, and the
//     multiset of the states of all groups. Points with equal descriptions have equal prospects,
//     so what failed once is not searched again. Failing subtrees contain no solution, hence no
//     first one.
//
//   - Bounds. Before each point: does each request have enough devices, one by one, that could
//     be taken now? Do the claim's requests stay within 32 results? Is there a value of a
//     matchAttribute with which the claim could be served, and enough values for a
//     distinctAttribute? Is there a flow that serves all remaining requests, each device once, a
//     shared device as often as its capacity allows at best, a counter set as often as its least
//     partition fits? Summed up over all devices, is enough left of each counter and of each
//     shared capacity for the least that the requests can consume? Each is necessary for a solution: taking devices only takes away (of
//     counters, capacity, values, compatibility groups), so what cannot be served now cannot be
//     served later. Devices on which a selector fails count as usable.
//
// No other order of search is used, so nothing has to be mapped back.
//
// # Errors
//
// A CEL expression that does not compile or fails on a device is an error if the search reaches
// that device, as upstream: for allocation mode All any device of the node, otherwise only those
// before the solution that are not in use. The deep search may rule out a branch in which
// upstream would have met such an error; then the answer is the solution or Unfit. It never
// raises an error that upstream's order does not reach. What else is an error, and what is Unfit,
// is said at Allocator.Allocate.
//
// # Where the answer is not upstream's
//
// Upstream 1.37 finds nothing, errs, or hands out a device wrongly in these cases, which
// upstream_bugs_test.go names:
//
//   - a constraint on the devices of allocation mode All is an error there (P1, P2), here the
//     search goes on;
//   - adminAccess of an earlier claim keeps later claims from a device (P3), and needs and takes
//     counters (P4) and capacity of shared devices; here it does neither;
//   - one counter that is over-consumed blocks all devices of the pool that consume any (P5);
//     here only its own consumers;
//   - any incomplete or invalid pool makes All an error (P8); here it makes All unfit, unless a
//     selector is false for all devices of the pool's driver, evaluated with all but the driver
//     unknown;
//   - a class that does not exist is an error also in an alternative that is not needed (P9);
//   - node selectors of several terms are an error (P11); here the terms are multiplied out;
//   - a device with live shares that no longer allows them is handed out (P13);
//   - more than 32 devices for a claim are an error (P15), here Unfit with Permanent set;
//   - counters are remembered by pool, although two generations may be visible on two nodes;
//   - a negative consumption adds to the counters (issue 141216), here it is none;
//   - All wants devices that need a feature that is off (issue 141091), here it leaves them out;
//   - slices that disagree about their number make a pool depend on the order of slices, here it
//     is invalid, as in upstream after 1.37.
//
// Kept as it is: a complete older generation of a pool on the node counts although a newer one
// exists elsewhere (P10). A known limit, as upstream's: counters that an allocated device
// consumes are forgotten once no slice contains the device any more (issue 140802).
//
// # Memory of selectors
//
// The result of a selector is remembered by slice and device, and by the values of those
// attributes and capacities that its checked expression can read (reads.go), so that devices
// which differ in a uuid only are evaluated once. An expression that walks all attributes falls
// back to all of them. Costs are remembered with results, so budgets do not depend on what was
// asked before. Memory is bounded; what exceeds it is evaluated again.
package allocator
