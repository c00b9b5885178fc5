package allocator

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ErrSteps tells that the search ran out of its step budget (Options.MaxSteps) or of its
// CEL budget (Options.MaxCost): whether the claims fit is not known.
var ErrSteps = errors.New("search budget used up")

// Defaults of Options.
const (
	// DefaultMaxSteps keeps the hardest searches at about two seconds of CPU time.
	DefaultMaxSteps int64 = 2_000_000
	// DefaultMaxCost is in CEL cost units; a unit takes at most about 0.2 µs of CPU time.
	DefaultMaxCost uint64 = 10_000_000

	plainSteps = 256
)

// Options of an Allocator. The zero value switches every optional feature off, so callers
// that want to behave like kube-scheduler set Features to DefaultFeatures().
type Options struct {
	// Features are the enabled features.
	Features Features

	// MaxSteps bounds one search, in steps: one step is one device tried for one request,
	// or the same amount of other work. Zero means DefaultMaxSteps.
	MaxSteps int64

	// MaxCost bounds what evaluating CEL expressions may cost in one Allocate, in CEL cost
	// units, the remembered results included. Zero means DefaultMaxCost.
	MaxCost uint64

	// NewShareID returns the ID of a new share of a device that allows several allocations.
	// Nil means random UUIDs. It is called once per share of the solution, in result order.
	NewShareID func() types.UID

	// NoExplanation leaves Unfit.Claims empty, which makes it cheap to ask many nodes.
	NoExplanation bool
}

// Result is the outcome of one search: either Unfit is nil and Allocations holds one result
// per claim, in the order of the claims, or Unfit tells why there is none.
type Result struct {
	// Allocations has one entry per claim. The entries are the caller's.
	Allocations []resourceapi.AllocationResult
	// Unfit is nil when the claims fit.
	Unfit *Unfit
	// Steps is the work that was done, also when Unfit is set.
	Steps int64
}

// Allocator searches devices for claims in one Inventory and one State. It is safe for
// concurrent use as long as nobody changes the State.
type Allocator struct {
	inv   *Inventory
	state State
	o     Options
	// plainSteps is how long the plain search goes on, besides a few steps per device; tests
	// set it to be below 0 (no plain search) or large.
	plainSteps int64

	counters sync.Map // *layout -> *available
}

// New returns an Allocator for the devices of inv of which state tells what is in use.
// The State is not copied: use State.Clone to go on changing it. New takes constant time.
// The error tells that an option is out of its range.
func New(inv *Inventory, state State, o Options) (*Allocator, error) {
	if inv == nil {
		return nil, errors.New("inventory is nil")
	}
	if o.MaxSteps < 0 {
		return nil, errors.New("negative MaxSteps")
	}
	if o.MaxSteps == 0 {
		o.MaxSteps = DefaultMaxSteps
	}
	if o.MaxCost == 0 {
		o.MaxCost = DefaultMaxCost
	}
	return &Allocator{inv: inv, state: state, o: o, plainSteps: plainSteps}, nil
}

// Allocate returns the first solution, in upstream's order, that allocates all claims
// together on the node. The claims must not be allocated yet; neither they nor the node nor
// the State are modified: whoever uses the result adds it with State.Add.
//
// That the claims do not fit is no error but Result.Unfit. This includes classes that do not
// exist, pools that are incomplete or invalid, and claims that want more than 32 devices.
// Errors are:
//   - the claims are not what the API server lets pass, or use a feature that is off: neither
//     exactly nor firstAvailable, a selector without expression, an unknown allocation mode, a
//     count below 1, an empty class name, a constraint without attribute;
//   - a CEL expression that does not compile, or fails on a device, of a class or request,
//     and a capacity that is negative or not representable, if the search reaches that device
//     (for allocation mode All: if it is on the node), as upstream;
//   - the node selector of a slice that cannot be parsed;
//   - ErrSteps, when the budget is used up, and the error of ctx: both leave it unknown
//     whether the claims fit.
func (a *Allocator) Allocate(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim) (Result, error) {
	if node == nil {
		return Result{}, errors.New("node is nil")
	}
	s := a.inv.engine.search()
	defer a.inv.engine.done(s)
	if err := s.begin(a, claims); err != nil {
		return Result{}, err
	}
	return s.on(ctx, node)
}

// on allocates the claims of the search on the node.
func (s *search) on(ctx context.Context, node *corev1.Node) (Result, error) {
	if err := s.enter(node); err != nil {
		return Result{}, err
	}
	found, err := s.solve(ctx)
	steps := s.steps
	switch {
	case err != nil:
		return Result{Steps: steps}, err
	case found:
		return Result{Allocations: s.results(), Steps: steps}, nil
	}
	return Result{Unfit: s.unfit(ctx), Steps: steps}, nil
}

// available returns what the devices in use leave of the pool's counters, computed once.
func (a *Allocator) available(v *poolView, used *poolUse) *available {
	if known, found := a.counters.Load(v.layout); found {
		return known.(*available)
	}
	left := v.available(used)
	a.counters.Store(v.layout, left)
	return left
}
