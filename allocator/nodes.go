package allocator

import (
	"context"
	"iter"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// NodeFit is a node on which claims fit.
type NodeFit struct {
	Node   *corev1.Node
	Result Result
	// Stranded is the score of BestFit: see Choose. Lower is better.
	Stranded float64
}

// Choice is how Choose picks among the nodes.
type Choice int

const (
	// FirstFit is the first node in the order of names.
	FirstFit Choice = iota
	// BestFit is the node with the lowest NodeFit.Stranded, then the lower name.
	BestFit
)

// Nodes yields the nodes of the Inventory on which the claims fit, in the order of their
// names, each with its allocation. Nodes that cannot reach enough devices are not searched. An
// error of one node that Allocate calls an error is yielded with that node and ends nothing.
func (a *Allocator) Nodes(ctx context.Context, claims []*resourceapi.ResourceClaim) iter.Seq2[NodeFit, error] {
	return func(yield func(NodeFit, error) bool) {}
}

// Choose returns the node that the choice prefers. When the claims fit on no node, Node is nil
// and Result.Unfit tells why, taken over all nodes.
func (a *Allocator) Choose(ctx context.Context, claims []*resourceapi.ResourceClaim, choice Choice) (NodeFit, error) {
	return NodeFit{}, nil
}
