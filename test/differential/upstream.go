package differential

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Verdict is the kind of an answer.
type Verdict string

const (
	// Fits: there is a result.
	Fits Verdict = "fits"
	// DoesNotFit: the claims cannot be allocated on the node.
	DoesNotFit Verdict = "does not fit"
	// Fails: a fatal error.
	Fails Verdict = "error"
	// GivesUp: the step budget ended.
	GivesUp Verdict = "gives up"
	// Panics: the allocator panicked.
	Panics Verdict = "panic"
)

// Answer is what one allocator says about one node.
type Answer struct {
	Verdict Verdict
	Results []resourceapi.AllocationResult
	// Err is set for Fails and Panics.
	Err error
	// OnTheWay tells that a search met the error on some device; only the enumeration knows.
	OnTheWay bool
	// Steps counts the allocator's own steps.
	Steps int64
}

func (a Answer) String() string {
	switch a.Verdict {
	case Fits:
		return "fits: " + describe(a.Results)
	case Fails, Panics:
		return fmt.Sprintf("%s: %v", a.Verdict, a.Err)
	default:
		return string(a.Verdict)
	}
}

// describe lists the devices of a result in short form.
func describe(results []resourceapi.AllocationResult) string {
	out := ""
	for i, r := range results {
		out += fmt.Sprintf(" claim%d[", i)
		for _, d := range r.Devices.Results {
			out += fmt.Sprintf(" %s=%s/%s/%s", d.Request, d.Driver, d.Pool, d.Device)
		}
		out += " ]"
	}
	return out
}

// Upstream is upstream's allocator for one case. Like the scheduler's, one
// allocator serves all nodes.
type Upstream struct {
	allocator structured.Allocator
	budget    int64
}

// classes implements upstream's lister.
type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var out []*resourceapi.DeviceClass
	for _, class := range c {
		out = append(out, class)
	}
	return out, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}, name)
}

// sharedCache holds compiled expressions for the whole process; the results do not depend on it.
var sharedCache = dracel.NewCache(1000, dracel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})

// NewUpstream prepares upstream's allocator; budget limits the calls of its search function.
func NewUpstream(c *Case, budget int64) (*Upstream, error) {
	lister := classes{}
	for _, class := range c.Classes {
		lister[class.Name] = class
	}
	allocator, err := structured.NewAllocator(context.Background(), c.Features, UpstreamState(c), lister, c.Slices, sharedCache)
	if err != nil {
		return nil, err
	}
	return &Upstream{allocator: allocator, budget: budget}, nil
}

// NewUpstreamMaker returns a function that makes upstream's allocator for the case, with
// all that the scheduler keeps between scheduling attempts prepared beforehand.
func NewUpstreamMaker(c *Case) func(ctx context.Context) (structured.Allocator, error) {
	lister, state := classes{}, UpstreamState(c)
	for _, class := range c.Classes {
		lister[class.Name] = class
	}
	return func(ctx context.Context) (structured.Allocator, error) {
		return structured.NewAllocator(ctx, c.Features, state, lister, c.Slices, sharedCache)
	}
}

// UpstreamState converts the allocated claims as the scheduler does.
func UpstreamState(c *Case) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range c.Allocated {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if c.Features.ConsumableCapacity && r.ShareID != nil {
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
				if r.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
				}
				continue
			}
			state.AllocatedDevices.Insert(id)
		}
	}
	return state
}

// stepContext ends after a number of looks at it, so that a budget does not
// depend on the speed of the machine: upstream's search looks once per step.
type stepContext struct {
	context.Context
	left *atomic.Int64
}

var errSteps = errors.New("step budget used up")

func (c stepContext) Err() error {
	if c.left.Add(-1) < 0 {
		return errSteps
	}
	return nil
}

func (c stepContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Allocate asks upstream about one node.
func (u *Upstream) Allocate(node *corev1.Node, claims []*resourceapi.ResourceClaim) (answer Answer) {
	left := &atomic.Int64{}
	left.Store(u.budget)
	defer func() {
		if r := recover(); r != nil {
			answer = Answer{Verdict: Panics, Err: fmt.Errorf("%v", r)}
		}
		answer.Steps = u.budget - max(left.Load(), 0)
	}()
	results, err := u.allocator.Allocate(stepContext{context.Background(), left}, node, claims)
	switch {
	case left.Load() < 0:
		return Answer{Verdict: GivesUp}
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return Answer{Verdict: DoesNotFit, Err: err}
	case err != nil:
		return Answer{Verdict: Fails, Err: err}
	case results == nil && len(claims) > 0:
		return Answer{Verdict: DoesNotFit}
	}
	return Answer{Verdict: Fits, Results: results}
}
