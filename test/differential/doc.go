// Package differential proves the embedded allocator against three independent
// yardsticks on random inputs over all features of dynamic resource allocation:
//
//   - upstream's structured allocator (its most complete, "experimental" variant):
//     the same answer, or a difference whose cause one named predicate proves;
//   - a plain depth-first enumeration in upstream's order that knows no shortcut
//     and none of upstream's bugs: the same first solution, and "does not fit" only
//     if the enumeration finds nothing;
//   - a validity checker, which judges one result against inventory and state and
//     shares no code with any allocator.
//
// Everything is deterministic: a case is a function of its seed, budgets are
// counted in search steps and never in time.
package differential
