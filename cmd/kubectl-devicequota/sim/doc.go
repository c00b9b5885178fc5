// Package sim is a cluster in memory that admits objects as a real one does: the product's own
// webhook handlers, ledger and charging over objects that are given to it. It decides nothing
// and charges nothing itself; what it adds is what the API server, kube-controller-manager and
// the scheduler do around an admission: names, UIDs, defaults, pods of workloads, claims from
// templates, allocation.
//
// Time is virtual: whoever waits is woken at once and the clock moves on, so that nothing takes
// longer than its computation and everything is deterministic.
//
// A Cluster is used by one goroutine. The ledger asks it from goroutines of its own while a
// method runs; mu is for them.
package sim
