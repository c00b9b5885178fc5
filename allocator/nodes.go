package allocator

import (
	"context"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeFit is a node on which claims fit.
type NodeFit struct {
	Node   *corev1.Node
	Result Result
	// Stranded is the score of BestFit, see Choose; lower is better. Only Choose with BestFit
	// computes it.
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
// names, each with its allocation. Nodes are not searched if none of their slices can serve one
// of the requests, judging by the driver and by what is remembered of the selectors. What
// Allocate calls an error is yielded with its node and ends nothing, except that claims which
// are in error themselves yield one error without a node. The caller that asks about many nodes
// saves time compared with Allocate: the claims are prepared once.
func (a *Allocator) Nodes(ctx context.Context, claims []*resourceapi.ResourceClaim) iter.Seq2[NodeFit, error] {
	return a.nodes(ctx, claims, FirstFit)
}

func (a *Allocator) nodes(ctx context.Context, claims []*resourceapi.ResourceClaim, choice Choice) iter.Seq2[NodeFit, error] {
	quick := a.quick()
	return func(yield func(NodeFit, error) bool) {
		s := a.inv.engine.search()
		defer a.inv.engine.done(s)
		if err := s.begin(quick, claims); err != nil {
			yield(NodeFit{}, err)
			return
		}
		reached := a.inv.reached(s.requests)
		a.inv.nodes.all(func(name string, node *corev1.Node) bool {
			if !reached(name) {
				return true
			}
			fit := NodeFit{Node: node}
			var err error
			fit.Result, err = s.on(ctx, node)
			switch {
			case err != nil:
			case fit.Result.Unfit != nil:
				return true
			case choice == BestFit:
				fit.Stranded = s.stranded()
			}
			return yield(fit, err) && ctx.Err() == nil
		})
	}
}

// reached is the index: it returns whether each request may find a device on the node.
func (inv *Inventory) reached(requests [][]*request) func(node string) bool {
	list := slices.Concat(requests...)
	if len(list) > 64 {
		return func(string) bool { return true }
	}
	full := uint64(1)<<len(list) - 1
	everywhere, byNode := uint64(0), map[string]uint64{}
	byDriver := map[string][]*alternative{} // the alternatives whose selectors allow the driver
	inv.pools.all(func(_ string, p *pool) bool {
		allowed, known := byDriver[p.driver]
		if !known {
			allowed = allowing(list, p.driver)
			byDriver[p.driver] = allowed
		}
		for _, c := range p.generations {
			for _, s := range c.slices {
				served := s.serves(list, allowed)
				if node := s.reach.nodeName; node == "" {
					everywhere |= served
				} else if served != 0 {
					byNode[node] |= served
				}
			}
		}
		return true
	})
	return func(node string) bool { return byNode[node]|everywhere == full }
}

// allowing returns the alternatives whose selectors may be true for devices of the driver.
func allowing(list []*request, driver string) (allowed []*alternative) {
	for _, r := range list {
		for _, a := range r.alternatives {
			if a.class != nil && !a.excludes(driver) {
				allowed = append(allowed, a)
			}
		}
	}
	return allowed
}

// serves returns, as bits in the order of the requests, which of them the slice may serve.
func (s *slice) serves(list []*request, allowed []*alternative) (served uint64) {
	for _, a := range allowed {
		if s.noneFor(a) {
			continue
		}
		for i, r := range list {
			if slices.Contains(r.alternatives, a) {
				served |= 1 << i
			}
		}
	}
	return served
}

// quick is the same allocator without explanations.
func (a *Allocator) quick() *Allocator {
	o := a.o
	o.NoExplanation = true
	return &Allocator{inv: a.inv, state: a.state, o: o, plainSteps: a.plainSteps}
}

// Choose returns the node that the choice prefers: the first one, or for BestFit the one that
// the allocation leaves with the least Stranded. That is the sum, over all counters and shared
// capacities that the node reaches, of the part that is free and that no free device can use
// any more, each as a share of its total; plus a thousandth of the part that is free at all,
// whole devices included, so that among equals the fullest node is taken.
//
// When the claims fit on no node, Node is nil
// and Result.Unfit tells why, taken over all nodes. Errors are those of Allocate; an error on
// one node counts only if the claims fit on no other one.
func (a *Allocator) Choose(ctx context.Context, claims []*resourceapi.ResourceClaim, choice Choice) (NodeFit, error) {
	var best NodeFit
	var failure error
	for fit, err := range a.nodes(ctx, claims, choice) {
		switch {
		case err != nil:
			failure = cmpFirst(failure, err)
			continue
		case choice == FirstFit:
			return fit, nil
		}
		if best.Node == nil || fit.Stranded < best.Stranded {
			best = fit
		}
	}
	if err := ctx.Err(); err != nil {
		return NodeFit{}, fmt.Errorf("search aborted: %w", context.Cause(ctx))
	}
	if best.Node != nil || failure != nil {
		return best, failure
	}
	unfit, err := a.clusterUnfit(ctx, claims)
	return NodeFit{Result: Result{Unfit: unfit}}, err
}

func cmpFirst(first, next error) error {
	if first != nil {
		return first
	}
	return next
}

// Explain answers without a node: could any published devices ever satisfy the claims, if
// nothing were in use? It returns nil when they could on some node, when that is not known (a
// pool that may matter is incomplete or invalid, or the budget is used up), else an Unfit with
// Permanent set. Nodes are those that the Builder knows and those that slices name. Errors are
// those of Allocate.
func (a *Allocator) Explain(ctx context.Context, claims []*resourceapi.ResourceClaim) (*Unfit, error) {
	empty := a.quick()
	empty.state = State{features: a.state.features}
	empty.o.NoExplanation = a.o.NoExplanation
	if fits, err := empty.fitsSomewhere(ctx, claims); fits || err != nil {
		return nil, err
	}
	unfit, err := empty.clusterUnfit(ctx, claims)
	if err != nil || !unfit.Permanent {
		return nil, err
	}
	return unfit, nil
}

// fitsSomewhere tells whether the claims fit on a node. Not knowing counts as fitting.
func (a *Allocator) fitsSomewhere(ctx context.Context, claims []*resourceapi.ResourceClaim) (bool, error) {
	s := a.inv.engine.search()
	defer a.inv.engine.done(s)
	if err := s.begin(a.quick(), claims); err != nil {
		return false, err
	}
	reached := a.inv.reached(s.requests)
	for _, node := range a.inv.allNodes() {
		if !reached(node.Name) {
			continue
		}
		r, err := s.on(ctx, node)
		if err != nil {
			return false, err
		}
		if r.Unfit == nil {
			return true, nil
		}
	}
	return false, nil
}

// allNodes returns the nodes that the Builder knows and those that slices name, and one without
// a name that stands for any other node.
func (inv *Inventory) allNodes() []*corev1.Node {
	list := []*corev1.Node{{}}
	for _, name := range merged(keysOf(inv.nodes), keysOf(inv.local)) {
		node := inv.Node(name)
		if node == nil {
			node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
		list = append(list, node)
	}
	return list
}

// clusterUnfit explains why the claims fit on no node, counting the devices of all nodes.
func (a *Allocator) clusterUnfit(ctx context.Context, claims []*resourceapi.ResourceClaim) (*Unfit, error) {
	s := a.inv.engine.search()
	defer a.inv.engine.done(s)
	if err := s.begin(a, claims); err != nil {
		return nil, err
	}
	s.enterView(nil, a.inv.clusterView(a.o.Features.poolFilter()))
	u := &Unfit{Summary: "the claims fit on no node"}
	fits := func(ctx context.Context, claims []*resourceapi.ResourceClaim, empty bool) bool {
		asked := a.quick()
		if empty {
			asked.state = State{features: a.state.features}
		}
		found, err := asked.fitsSomewhere(ctx, claims)
		return found || err != nil
	}
	if a.o.NoExplanation {
		u.Permanent = !s.hidden() && !fits(ctx, claims, true)
		return u, nil
	}
	if err := s.listAll(ctx); err != nil {
		return nil, err
	}
	s.explain(ctx, u, fits)
	for i := range u.Claims {
		spread(&u.Claims[i])
	}
	return u, nil
}

// spread adds that devices are there but not on one node, where nothing else explains it.
func spread(c *UnfitClaim) {
	for i := range c.Requests {
		r := &c.Requests[i]
		taken := slices.IndexFunc(r.Obstacles, func(o Obstacle) bool { return o.Reason == ReasonTaken })
		if taken >= 0 {
			r.Obstacles[taken] = Obstacle{Reason: ReasonNode, Detail: " together with the others", Devices: r.Usable}
		}
	}
}

// clusterView is the newest content of all pools, whatever node it is for.
func (inv *Inventory) clusterView(f poolFilter) *nodeView {
	v := &nodeView{}
	inv.pools.all(func(_ string, p *pool) bool {
		c := p.generations[0]
		relevant := f.visibleOf(c.slices)
		facts := c.factsFor(f)
		pv := &poolView{pool: p}
		switch {
		case facts.wanted < 0:
			pv.reject("slices disagree about the number of slices")
		case int64(facts.count) != facts.wanted:
			pv.obstacle = fmt.Sprintf("%d of %d slices are published", facts.count, facts.wanted)
		default:
			pv.fill(relevant, c, facts, f)
		}
		v.add(pv)
		return true
	})
	return v
}
