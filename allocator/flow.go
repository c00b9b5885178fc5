package allocator

// network is a small flow network, whose memory is used again for the next one. Node 0 is the
// source and node 1 the sink.
type network struct {
	head  []int32 // by node: its last edge, -1 for none
	edges []flowEdge
	depth []int32
	next  []int32
	queue []int32
}

// flowEdge is followed in edges by the edge of the other direction.
type flowEdge struct {
	to, before int32 // before is the previous edge of the same node
	left       int
}

const (
	source int32 = 0
	sink   int32 = 1
)

// reset begins a network of that many nodes, source and sink included.
func (n *network) reset(nodes int) {
	n.head = n.head[:0]
	for range nodes {
		n.head = append(n.head, -1)
	}
	n.edges = n.edges[:0]
}

// add adds an edge.
func (n *network) add(from, to int32, capacity int) {
	n.edges = append(n.edges,
		flowEdge{to: to, before: n.head[from], left: capacity},
		flowEdge{to: from, before: n.head[to]})
	n.head[from], n.head[to] = int32(len(n.edges)-2), int32(len(n.edges)-1)
}

// max returns the largest flow from source to sink (Dinic's algorithm). It uses the network up.
func (n *network) max() int {
	total := 0
	for n.layer() {
		n.next = append(n.next[:0], n.head...)
		for {
			pushed := n.push(source, int(^uint(0)>>1))
			if pushed == 0 {
				break
			}
			total += pushed
		}
	}
	return total
}

// layer computes the distances from the source; false when the sink is out of reach.
func (n *network) layer() bool {
	n.depth = n.depth[:0]
	for range n.head {
		n.depth = append(n.depth, -1)
	}
	n.depth[source] = 0
	n.queue = append(n.queue[:0], source)
	for i := 0; i < len(n.queue); i++ {
		at := n.queue[i]
		for e := n.head[at]; e >= 0; e = n.edges[e].before {
			if to := n.edges[e].to; n.edges[e].left > 0 && n.depth[to] < 0 {
				n.depth[to] = n.depth[at] + 1
				n.queue = append(n.queue, to)
			}
		}
	}
	return n.depth[sink] >= 0
}

// push sends up to limit from the node to the sink along one path. Paths have at most twice as
// many steps as there are requests, so this recursion is shallow.
func (n *network) push(at int32, limit int) int {
	if at == sink {
		return limit
	}
	for ; n.next[at] >= 0; n.next[at] = n.edges[n.next[at]].before {
		e := n.next[at]
		to := n.edges[e].to
		if n.edges[e].left == 0 || n.depth[to] != n.depth[at]+1 {
			continue
		}
		if pushed := n.push(to, min(limit, n.edges[e].left)); pushed > 0 {
			n.edges[e].left -= pushed
			n.edges[e^1].left += pushed
			return pushed
		}
	}
	return 0
}
