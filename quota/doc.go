// Package quota decides what device claims cost and whether they fit. It is pure: values
// in, values out; no client, no clock, no goroutine.
//
// # Words
//
//   - Key: a name in spec.quota.hard (key.go).
//   - Quota: a ClusterResourceQuota, parsed (quota.go).
//   - Inventory: slices, classes and nodes at one moment, as charging asks them (inventory.go).
//   - Charge: what one claim or pod costs one quota (charge*.go). One Charger serves webhook,
//     reconciler and CLI; no other code counts.
//   - Observation: objects read at known resourceVersions, a Vector of which says how new it
//     is (observation.go).
//   - Hold: an admitted charge whose object is not yet observed.
//   - Settle: recount a ledger from an observation and drop the holds that ended (settle.go).
//   - Decision: allowed, or all Denials (decide.go).
//   - Project: what one project is shown of a quota (project.go).
//
// The rules of the ledger and their invariants are in package quota/ledger.
package quota
