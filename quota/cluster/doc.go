// Package cluster connects the quota and its ledger to a Kubernetes cluster: a Store of
// DeviceLedgers over the API, a View of what exists, the reconcilers that settle ledgers
// and show quotas to projects, and the detection of the platform.
//
// # View
//
// One reflector per resource writes straight into one index under one lock, together with
// the version that the content then has. So versions are never ahead of the content, and
// the totals of every quota are kept from event to event: observing a quota costs nothing
// but a look.
//
// Charges follow the inventory of devices. When that changes, all charges are computed
// beside the index, then put in at once with the inventory's versions; until then the index
// keeps saying the old version.
//
// Lock order: index.mu before the locks of Source and Store, never the other way round.
package cluster
