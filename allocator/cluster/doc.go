// Package cluster feeds the allocator from a Kubernetes cluster: slices, classes, nodes and
// device taint rules become an allocator.Inventory, claims its State. It reads and writes
// resource.k8s.io in the version that the server has; inside, everything is v1.
//
// It also holds the allocation reconciler, for clusters without a DRA scheduler.
package cluster
