// Package quota decides what device claims cost and whether they fit. It is pure: values
// in, values out; no client, no clock, no goroutine.
//
// # Words
//
//   - Key: a name in spec.quota.hard (key.go).
//   - Quota: a ClusterResourceQuota, parsed (quota.go, parse.go).
//   - Inventory: slices, classes and nodes at one moment, as charging asks them (inventory.go).
//   - Charge: what one claim or pod costs one quota (charge*.go). One Charger serves webhook,
//     reconciler and CLI; no other code counts.
//   - Footprint: what a device consumes (charge_footprint.go).
//   - Observation: objects read at known resourceVersions, a Vector of which says how new it
//     is (observation.go).
//   - Hold: an admitted charge whose object is not yet observed.
//   - Settle: recount a ledger from an observation and drop the holds that ended (settle.go).
//   - Decision: allowed, or all Denials (decide.go).
//   - Project: what one project is shown of a quota (project.go).
//
// # Charging
//
// A claim is charged per key of the quota. Requested, before it is allocated:
//
//   - ExactCount costs the count times the largest candidate. Candidates are the devices that
//     pass the selectors of class and request; constraints between devices only make fewer
//     allocations possible and are not looked at.
//   - All costs the largest total over single nodes, 32 devices when no device is there.
//   - firstAvailable costs the largest alternative whose footprint is known, per key.
//   - A share of a device costs the capacity that its request policy makes of the request,
//     and all of the device's counters.
//   - adminAccess costs nothing; the claim object always counts as one.
//   - Selectors over their cost budget are left out: any device of the class then.
//
// Allocated, from the status: device by device. Which of them counts is the quota's true-down
// (charge_claim.go). No allocation costs more than what was requested by the same Inventory.
//
// A footprint is unknown when no candidate tells it. A capacity that is published as 0 tells
// nothing, since drivers publish 0 before they have looked; a device that consumes any counter
// consumes 0 of the counters it does not name. In firstAvailable, alternatives without any
// device do not count beside others, but devices that are there and keep silent are not hidden
// by an alternative that does not concern the key.
//
// Amounts are exact at any size: nothing here overflows, and negative published values count
// as 0.
//
// Sources: KEP-4381 and KEP-4816 (claims, firstAvailable), KEP-4815 (counters), KEP-5075
// (shared devices), KEP-5004 (extended resources); kubernetes
// pkg/quota/v1/evaluator/core/resource_claims.go and
// pkg/scheduler/framework/plugins/dynamicresources (v1.37).
//
// The rules of the ledger and their invariants are in package quota/ledger.
package quota
