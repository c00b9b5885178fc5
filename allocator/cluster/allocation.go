package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/allocator/cluster/feed"
)

// AllocationOptions configure an Allocation.
type AllocationOptions struct {
	// Client reads and writes the API server directly, without a cache.
	Client client.WithWatch
	API    *API
	// Source of the inventory. The Allocation does not start it.
	Source *Source
	// Allocator options; its Features should be those of the API server.
	Allocator allocator.Options
	// Recorder gets Events on claims that cannot be allocated; nil: none.
	Recorder events.EventRecorder
	// Clock is the real one when nil.
	Clock clock.WithTicker
	Log   logr.Logger
}

// Events on claims.
const (
	// ReasonAllocated: the claim was allocated.
	ReasonAllocated = "Allocated"
	// ReasonUnfit: no node has the devices now; the note says why.
	ReasonUnfit = "CannotAllocate"
)

// Allocation allocates pending claims with the embedded allocator, oldest first, on the first
// node by name that has the devices, and releases claims that are being deleted. It is for
// clusters without a DRA scheduler and must not run beside one. One replica, the leader, runs it.
type Allocation struct {
	o    AllocationOptions
	feed *feed.Feed
	wake chan struct{}

	mu     sync.Mutex // protects the following
	claims map[types.UID]*resourceapi.ResourceClaim
	names  map[types.NamespacedName]types.UID
	freed  uint64 // counts what may make room

	tried map[types.UID]attempt // only the worker
}

// attempt is when a claim was found not to fit, and what was said of it.
type attempt struct {
	inventory, freed uint64
	claimVersion     string
	note             string
}

// The mode's own permissions, beside those to read that every manager has: nobody else needs them.
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=update,roleName=devicequota-allocation
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/status,verbs=update,roleName=devicequota-allocation
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/binding,verbs=update,roleName=devicequota-allocation

// NewAllocation returns a reconciler that does nothing until it is started.
func NewAllocation(o AllocationOptions) (*Allocation, error) {
	if o.Client == nil || o.API == nil || o.Source == nil {
		return nil, errors.New("allocation: Client, API and Source are required")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if _, err := o.API.NewList("ResourceClaim"); err != nil {
		return nil, err
	}
	a := &Allocation{
		o: o, wake: make(chan struct{}, 1), claims: map[types.UID]*resourceapi.ResourceClaim{},
		names: map[types.NamespacedName]types.UID{}, tried: map[types.UID]attempt{},
	}
	a.feed = feed.New(feed.Config{
		Name: "claims to allocate", Client: o.Client, Clock: o.Clock, Log: o.Log, Target: claimTarget{a},
		NewList: func() client.ObjectList {
			l, err := o.API.NewList("ResourceClaim")
			if err != nil {
				return &resourceapi.ResourceClaimList{} // not reached: tried above
			}
			return l
		},
		Convert: func(obj runtime.Object) (client.Object, error) { return asObject(o.API.Claim(obj)) },
	})
	o.Source.Subscribe(a.kick)
	return a, nil
}

// NeedLeaderElection is true: two would allocate the same device twice.
func (a *Allocation) NeedLeaderElection() bool { return true }

// Start allocates until ctx ends. It returns when all its goroutines ended.
func (a *Allocation) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { a.feed.Run(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		if !a.feed.Health().Synced || !a.o.Source.Synced() {
			// Something in use might not be known yet. The last one to be received wakes us.
			if !a.pause(ctx, unsyncedPause) {
				return nil
			}
			a.kick()
			continue
		}
		if again := a.pass(ctx); again {
			if !a.pause(ctx, retryPause) {
				return nil
			}
			a.kick()
		}
	}
}

const (
	unsyncedPause = 50 * time.Millisecond
	retryPause    = time.Second
)

func (a *Allocation) pause(ctx context.Context, d time.Duration) bool {
	timer := a.o.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

func (a *Allocation) kick() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// pass releases what is being deleted and allocates what is pending. It returns true when
// something did not succeed that may succeed later without any event.
func (a *Allocation) pass(ctx context.Context) (again bool) {
	claims, freed := a.snapshot()
	var pending []*resourceapi.ResourceClaim
	for _, claim := range claims {
		switch {
		case claim.DeletionTimestamp != nil:
			again = a.failed(ctx, claim, a.release(ctx, claim)) || again
		case claim.Status.Allocation == nil:
			pending = append(pending, claim)
		}
	}
	inventory := a.o.Source.Snapshot().Inventory
	state := allocator.StateOf(claims, a.o.Allocator.Features)
	for _, claim := range pending {
		if ctx.Err() != nil {
			return false
		}
		now := attempt{inventory: inventory.Revision(), freed: freed, claimVersion: claim.ResourceVersion}
		if was, ok := a.tried[claim.UID]; ok && was.inventory == now.inventory && was.freed == now.freed && was.claimVersion == now.claimVersion {
			continue // nothing that could help has changed
		}
		updated, err := a.allocate(ctx, claim, inventory, state, now)
		if updated != nil {
			state.Add(updated)
		}
		again = a.failed(ctx, claim, err) || again
	}
	return again
}

// failed logs an error that a later pass may not have.
func (a *Allocation) failed(ctx context.Context, claim *resourceapi.ResourceClaim, err error) bool {
	if err == nil || ctx.Err() != nil || apierrors.IsNotFound(err) {
		return false
	}
	if !apierrors.IsConflict(err) {
		a.o.Log.Error(err, "claim not reconciled", "namespace", claim.Namespace, "claim", claim.Name)
	}
	return true
}

// allocate finds devices for one claim and writes them. It returns the claim as stored when
// it is allocated.
func (a *Allocation) allocate(ctx context.Context, claim *resourceapi.ResourceClaim, inventory *allocator.Inventory, state allocator.State, now attempt) (*resourceapi.ResourceClaim, error) {
	search, err := allocator.New(inventory, state, a.o.Allocator)
	if err != nil {
		return nil, err
	}
	fit, err := search.Choose(ctx, []*resourceapi.ResourceClaim{claim}, allocator.FirstFit)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		a.unfit(claim, now, err.Error())
		return nil, nil
	}
	if fit.Node == nil || len(fit.Result.Allocations) != 1 {
		note := "no node has the devices"
		if fit.Result.Unfit != nil {
			note = fit.Result.Unfit.String()
		}
		a.unfit(claim, now, note)
		return nil, nil
	}
	updated, err := a.bind(ctx, claim, fit.Result.Allocations[0])
	if err != nil {
		return nil, fmt.Errorf("allocation on node %q: %w", fit.Node.Name, err)
	}
	delete(a.tried, claim.UID)
	if a.o.Recorder != nil {
		a.o.Recorder.Eventf(updated, nil, corev1.EventTypeNormal, ReasonAllocated, "Allocate", "on node %s", fit.Node.Name)
	}
	return updated, nil
}

// unfit remembers the attempt and tells about it, once per reason.
func (a *Allocation) unfit(claim *resourceapi.ResourceClaim, now attempt, note string) {
	now.note = truncate(note)
	if a.tried[claim.UID].note != now.note && a.o.Recorder != nil {
		a.o.Recorder.Eventf(claim, nil, corev1.EventTypeWarning, ReasonUnfit, "Allocate", "%s", now.note)
	}
	a.tried[claim.UID] = now
}

// truncate keeps a note within what an Event may have.
// Source: noteLengthLimit in k8s.io/kubernetes pkg/apis/core/validation/events.go (v1.37).
func truncate(note string) string {
	const limit = 1000
	if len(note) <= limit {
		return note
	}
	cut := limit
	for cut > 0 && note[cut]&0xC0 == 0x80 {
		cut--
	}
	return note[:cut] + " ..."
}

// bind writes the allocation as the scheduler does: the finalizer first, so that the claim
// cannot vanish while its devices are in use, then the status.
// Source: bindClaim in kubernetes pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go (v1.37).
func (a *Allocation) bind(ctx context.Context, claim *resourceapi.ResourceClaim, result resourceapi.AllocationResult) (*resourceapi.ResourceClaim, error) {
	claim = claim.DeepCopy()
	var err error
	if !slices.Contains(claim.Finalizers, resourceapi.Finalizer) {
		claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
		if claim, err = a.update(ctx, claim, false); err != nil {
			return nil, err
		}
	}
	claim.Status.Allocation = &result
	return a.update(ctx, claim, true)
}

// release gives back what a claim holds that is being deleted and that nobody uses.
func (a *Allocation) release(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if len(claim.Status.ReservedFor) > 0 || !slices.Contains(claim.Finalizers, resourceapi.Finalizer) {
		return nil
	}
	claim = claim.DeepCopy()
	var err error
	if claim.Status.Allocation != nil {
		claim.Status.Allocation, claim.Status.Devices = nil, nil
		if claim, err = a.update(ctx, claim, true); err != nil {
			return fmt.Errorf("deallocation: %w", err)
		}
	}
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourceapi.Finalizer })
	_, err = a.update(ctx, claim, false)
	return err
}

// update writes the claim, or its status, in the served version, and returns what is stored.
// The result is the caller's own: neither what was passed in, which events may still refer
// to, nor what the reconciler remembers.
func (a *Allocation) update(ctx context.Context, claim *resourceapi.ResourceClaim, status bool) (*resourceapi.ResourceClaim, error) {
	obj, err := a.o.API.Served(claim.DeepCopy())
	if err != nil {
		return nil, err
	}
	if status {
		err = a.o.Client.Status().Update(ctx, obj)
	} else {
		err = a.o.Client.Update(ctx, obj)
	}
	if err != nil {
		return nil, err
	}
	stored, err := a.o.API.Claim(obj)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(stored.Finalizers) > 0 || stored.DeletionTimestamp == nil {
		a.setLocked(stored.DeepCopy())
	} else {
		a.removeLocked(stored.UID)
	}
	return stored, nil
}
