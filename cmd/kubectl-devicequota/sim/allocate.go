package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
)

// Pending is a claim that could not be allocated.
type Pending struct {
	Claim types.NamespacedName
	Why   string
}

// Allocation is what an Allocate did.
type Allocation struct {
	// Allocated claims, in the order of their creation.
	Allocated []types.NamespacedName
	// Pending claims, in the order of their creation.
	Pending []Pending
}

// Allocate lets the embedded allocator allocate all pending claims: in the order of their
// creation, each on the first node by name that has its devices, as the allocation reconciler does.
func (c *Cluster) Allocate(ctx context.Context) (Allocation, error) {
	var out Allocation
	claims := c.state.claims()
	inventory := c.state.inventory()
	state := allocator.StateOf(claims, c.o.Allocator.Features)
	for _, claim := range claims {
		if claim.Status.Allocation != nil || claim.DeletionTimestamp != nil {
			continue
		}
		key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		result, why, err := c.place(ctx, inventory, state, claim)
		if err != nil {
			return out, err
		}
		if result == nil {
			out.Pending = append(out.Pending, Pending{Claim: key, Why: why})
			continue
		}
		claim = claim.DeepCopy()
		claim.Status.Allocation = result
		c.setAllocated(claim)
		state.Add(claim)
		out.Allocated = append(out.Allocated, key)
	}
	c.clock.advance(time.Second)
	return out, c.settleAll(ctx)
}

// place returns the claim's allocation on the first node that fits, or why there is none.
func (c *Cluster) place(ctx context.Context, inventory *allocator.Inventory, state allocator.State, claim *resourceapi.ResourceClaim,
) (result *resourceapi.AllocationResult, why string, err error) {
	a, err := allocator.New(inventory, state, c.o.Allocator)
	if err != nil {
		return nil, "", err
	}
	claims := []*resourceapi.ResourceClaim{claim}
	fit, err := a.Choose(ctx, claims, allocator.FirstFit)
	switch {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case err != nil:
		return nil, err.Error(), nil
	case fit.Node != nil && len(fit.Result.Allocations) == 1:
		return &fit.Result.Allocations[0], "", nil
	case fit.Result.Unfit != nil:
		return nil, fit.Result.Unfit.String(), nil
	}
	return nil, "no node has the devices", nil
}

// setAllocated stores an allocated claim, which keeps its devices until it is gone.
func (c *Cluster) setAllocated(claim *resourceapi.ResourceClaim) {
	if !slices.Contains(claim.Finalizers, resourceapi.Finalizer) {
		claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
	}
	c.setClaim(claim)
}

// SetAllocation gives a claim the devices, whatever the allocator thinks, reserved for the pods
// of these names in its namespace. Without devices it keeps those that it has. The error tells
// that there is no such claim or pod, or no devices.
func (c *Cluster) SetAllocation(ctx context.Context, key types.NamespacedName, results []resourceapi.DeviceRequestAllocationResult, reservedFor []string) error {
	o := c.state.get(quota.Claims, key.Namespace, key.Name)
	if o == nil {
		return fmt.Errorf("resourceclaims %q not found", key)
	}
	claim := o.claim.DeepCopy()
	if len(results) > 0 {
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	} else if claim.Status.Allocation == nil {
		return fmt.Errorf("resourceclaims %q has no devices to reserve", key)
	}
	claim.Status.ReservedFor = nil
	for _, n := range reservedFor {
		pod := c.state.get(quota.Pods, key.Namespace, n)
		if pod == nil {
			return fmt.Errorf("pods %q not found", key.Namespace+"/"+n)
		}
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: n, UID: pod.uid})
	}
	c.setAllocated(claim)
	c.clock.advance(time.Second)
	return c.settleAll(ctx)
}

// SetStatus gives a claim the status, as the scheduler does. Pods that it belongs to or is reserved
// for are found by name, since their UIDs are others here. The error tells that there is no such claim.
func (c *Cluster) SetStatus(ctx context.Context, key types.NamespacedName, status resourceapi.ResourceClaimStatus) error {
	o := c.state.get(quota.Claims, key.Namespace, key.Name)
	if o == nil {
		return fmt.Errorf("resourceclaims %q not found", key)
	}
	claim := o.claim.DeepCopy()
	claim.Status = *status.DeepCopy()
	for i := range claim.Status.ReservedFor {
		r := &claim.Status.ReservedFor[i]
		if pod := c.state.get(quota.Pods, key.Namespace, r.Name); pod != nil && r.Resource == "pods" {
			r.UID = pod.uid
		}
	}
	for i := range claim.OwnerReferences {
		r := &claim.OwnerReferences[i]
		if pod := c.state.get(quota.Pods, key.Namespace, r.Name); pod != nil && r.Kind == "Pod" {
			r.UID = pod.uid
		}
	}
	if claim.Status.Allocation == nil {
		c.setClaim(claim)
	} else {
		c.setAllocated(claim)
	}
	c.clock.advance(time.Second)
	return c.settleProject(ctx, key.Namespace)
}

// Pending returns the claims without devices, in the order of their creation.
func (c *Cluster) Pending() []types.NamespacedName {
	var out []types.NamespacedName
	for _, claim := range c.state.claims() {
		if claim.Status.Allocation == nil && claim.DeletionTimestamp == nil {
			out = append(out, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
		}
	}
	return out
}

// Release takes a claim's devices and reservations away. The error tells that there is no such claim.
func (c *Cluster) Release(ctx context.Context, key types.NamespacedName) error {
	o := c.state.get(quota.Claims, key.Namespace, key.Name)
	if o == nil {
		return fmt.Errorf("resourceclaims %q not found", key)
	}
	claim := o.claim.DeepCopy()
	claim.Status = resourceapi.ResourceClaimStatus{}
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourceapi.Finalizer })
	c.setClaim(claim)
	if claim.DeletionTimestamp != nil {
		c.deleteClaim(key.Namespace, key.Name)
	}
	c.clock.advance(time.Second)
	return c.settleAll(ctx)
}
