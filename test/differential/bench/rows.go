package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/devicequota/devicequota/allocator"
	d "github.com/devicequota/devicequota/test/differential"
)

// row is one line of the first table.
type row struct {
	name  string
	goal  float64
	build func() *d.Case
	// claim adds the claim to the cluster.
	claim func(c *d.Case)
	// nodes chooses the nodes that are asked, one after the other.
	nodes func(c *d.Case) []*corev1.Node
	// index asks our allocator for all nodes with Nodes instead.
	index bool
}

func oneNode(c *d.Case) []*corev1.Node  { return c.Nodes[len(c.Nodes)/2+1 : len(c.Nodes)/2+2] }
func allNodes(c *d.Case) []*corev1.Node { return c.Nodes }
func nodes20(c *d.Case) []*corev1.Node  { return some(c, 20) }

func want(requests ...resourceapi.DeviceRequest) func(c *d.Case) {
	return func(c *d.Case) { c.AddClaim(requests...) }
}

func rows() []row {
	small := func() *d.Case { return gpus(1000) }
	nics := func() *d.Case { return withNICs(100) }
	pair := func(n int64) func(c *d.Case) {
		return func(c *d.Case) {
			c.AddClaim(d.Want("gpu", n, isGPU), d.Want("nic", n, isNIC)).Match(d.Driver + "/numa")
		}
	}
	out := []row{}
	for _, n := range []int64{1, 2, 8} {
		out = append(out, row{fmt.Sprintf("1000 nodes × 8 GPUs, %d of them, one node", n), 20, small, want(d.Want("r", n, bigEnough)), oneNode, false})
	}
	for _, how := range []string{"", ", with Nodes"} {
		index := how != ""
		for _, n := range []int64{1, 2, 8} {
			out = append(out, row{fmt.Sprintf("1000 nodes × 8 GPUs, %d of them, all nodes%s", n, how), 20, small, want(d.Want("r", n, bigEnough)), allNodes, index})
		}
		out = append(out,
			row{"1000 nodes × 8 GPUs, 9 of them (infeasible), all nodes" + how, 20, small, want(d.Want("r", 9, bigEnough)), allNodes, index},
			row{"1000 nodes × 8 GPUs, no such model (infeasible), all nodes" + how, 20, small, want(d.Want("r", 1, noSuch)), allNodes, index},
			row{"5000 nodes × 8 GPUs, no such model (infeasible), all nodes" + how, 20, func() *d.Case { return gpus(5000) }, want(d.Want("r", 1, noSuch)), allNodes, index})
	}
	out = append(out,
		row{"5000 nodes × 8 GPUs, 2 of them, one node", 20, func() *d.Case { return gpus(5000) }, want(d.Want("r", 2, bigEnough)), oneNode, false},
		row{"one pool over 1000 nodes × 8, 2 of them, 20 nodes", 20, func() *d.Case { return spanning(1000) }, want(d.Want("r", 2, bigEnough)), nodes20, false},
		row{"2 GPUs + 2 NICs with matchAttribute, 20 nodes", 10, nics, pair(2), nodes20, false},
		row{"4 GPUs + 4 NICs with matchAttribute, 20 nodes", 10, nics, pair(4), nodes20, false},
		row{"partitions 1g + 3g + 7g of 8 GPUs, 20 nodes", 10, func() *d.Case { return mig(100) },
			want(d.Want("a", 1, profile("1g")), d.Want("b", 1, profile("3g")), d.Want("c", 1, profile("7g"))), nodes20, false},
		row{"partitions 14 × 1g, 2 × 3g, 2 × 7g of 8 GPUs, 20 nodes", 10, func() *d.Case { return mig(100) },
			want(d.Want("a", 14, profile("1g")), d.Want("b", 2, profile("3g")), d.Want("c", 2, profile("7g"))), nodes20, false})
	for _, shares := range []int{0, 1000, 64000} {
		out = append(out, row{fmt.Sprintf("shared NICs, %d shares in use, one more, 20 nodes", shares), 10, func() *d.Case { return shareable(100, shares) },
			want(d.WantCapacity("r", "bandwidth", "2500M")), nodes20, false})
	}
	return out
}

// plainTable compares both allocators where upstream is not exponential.
func plainTable(out *bytes.Buffer, o options) error {
	fmt.Fprintf(out, "Upstream gets a new allocator for each call, as in each scheduling attempt, then is asked for each node in turn; ours is asked in the same way, or (\"with Nodes\") for all nodes at once.\nCPU time includes garbage collection; the median of %d rounds.\n\n", o.rounds)
	fmt.Fprintln(out, "| case | upstream CPU | ours CPU | ratio | goal | upstream allocs | ours allocs | ratio |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|")
	for _, r := range rows() {
		if !o.match.MatchString(r.name) {
			continue
		}
		c := r.build()
		r.claim(c)
		a, b, err := r.measure(c, o)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprintf(out, "| %s | %s | %s | %.3g | %.0f | %s | %s | %.3g |\n", r.name, short(a.cpu), short(b.cpu), float64(a.cpu)/float64(b.cpu), r.goal, count(a.allocs), count(b.allocs), a.allocs/max(b.allocs, 1))
	}
	fmt.Fprintln(out)
	return nil
}

func (r *row) measure(c *d.Case, o options) (a, b sample, err error) {
	ctx, asked := context.Background(), r.nodes(c)
	up := d.NewUpstreamMaker(c)
	inv, f := d.OurInventory(c), d.OurFeatures(c.Features)
	state := allocator.StateOf(c.Allocated, f)
	var failed error
	upstream := func() {
		theirs, err := up(ctx)
		for _, node := range asked {
			if err == nil {
				_, err = theirs.Allocate(ctx, node, c.Claims)
			}
		}
		failed = errors.Join(failed, err)
	}
	ours := func() {
		mine, err := allocator.New(inv, state, allocator.Options{Features: f, NoExplanation: true})
		if err == nil && r.index {
			for _, err = range mine.Nodes(ctx, c.Claims) {
				failed = errors.Join(failed, err)
			}
			return
		}
		for _, node := range asked {
			if err == nil {
				_, err = mine.Allocate(ctx, node, c.Claims)
			}
		}
		failed = errors.Join(failed, err)
	}
	if err := sameAnswers(ctx, up, inv, state, c, asked); err != nil {
		return a, b, err
	}
	a, b = compare(o.rounds, upstream, ours)
	return a, b, failed
}

// sameAnswers makes sure that both do the same work: the same devices, or none, on every node.
func sameAnswers(ctx context.Context, up func(context.Context) (structured.Allocator, error), inv *allocator.Inventory, state allocator.State, c *d.Case, asked []*corev1.Node) error {
	theirs, err := up(ctx)
	if err != nil {
		return err
	}
	mine, err := allocator.New(inv, state, allocator.Options{Features: d.OurFeatures(c.Features)})
	if err != nil {
		return err
	}
	for _, node := range asked {
		a, errA := theirs.Allocate(ctx, node, c.Claims)
		b, errB := mine.Allocate(ctx, node, c.Claims)
		if errA != nil || errB != nil {
			return fmt.Errorf("upstream: %w, ours: %w", errA, errB)
		}
		if (a == nil) != (b.Unfit != nil) {
			return fmt.Errorf("node %s: only one of both finds a solution", node.Name)
		}
		if a != nil {
			if diff := d.DiffResults(a, b.Allocations); diff != "" {
				return fmt.Errorf("node %s: upstream -, ours +:\n%s", node.Name, diff)
			}
		}
	}
	return nil
}
