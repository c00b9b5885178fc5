package differential

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/devicequota/devicequota/allocator"
)

// Ours is the allocator under test for one case.
type Ours struct {
	allocator *allocator.Allocator
}

// OurFeatures converts the feature gates, which have the same names.
func OurFeatures(f structured.Features) allocator.Features {
	return allocator.Features{
		AdminAccess: f.AdminAccess, CompatibilityGroups: f.CompatibilityGroups, ConsumableCapacity: f.ConsumableCapacity,
		DerivedAttributes: f.DerivedAttributes, DeviceBindingAndStatus: f.DeviceBindingAndStatus, DeviceTaints: f.DeviceTaints,
		FractionalCapacityRange: f.FractionalCapacityRange, ListTypeAttributes: f.ListTypeAttributes,
		OptionalNodeOperations: f.OptionalNodeOperations, PartitionableDevices: f.PartitionableDevices, PrioritizedList: f.PrioritizedList,
	}
}

// OurInventory builds the inventory of the case.
func OurInventory(c *Case) *allocator.Inventory {
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	for _, class := range c.Classes {
		b.SetClass(class)
	}
	for _, slice := range c.Slices {
		b.SetSlice(slice)
	}
	for _, node := range c.Nodes {
		b.SetNode(node)
	}
	return b.Snapshot()
}

// NewOurs prepares our allocator; zero steps mean its default.
func NewOurs(c *Case, steps int64) (*Ours, error) {
	return NewOursOn(c, OurInventory(c), steps)
}

// NewOursOn prepares our allocator on an inventory that exists already.
func NewOursOn(c *Case, inv *allocator.Inventory, steps int64) (*Ours, error) {
	f := OurFeatures(c.Features)
	a, err := allocator.New(inv, allocator.StateOf(c.Allocated, f), allocator.Options{Features: f, MaxSteps: steps})
	if err != nil {
		return nil, err
	}
	return &Ours{allocator: a}, nil
}

// Allocate asks our allocator about one node.
func (o *Ours) Allocate(node *corev1.Node, claims []*resourceapi.ResourceClaim) (answer Answer) {
	defer func() {
		if r := recover(); r != nil {
			answer = Answer{Verdict: Panics, Err: fmt.Errorf("%v\n%s", r, debug.Stack())}
		}
	}()
	result, err := o.allocator.Allocate(context.Background(), node, claims)
	switch {
	case errors.Is(err, allocator.ErrSteps):
		return Answer{Verdict: GivesUp, Steps: result.Steps}
	case err != nil:
		return Answer{Verdict: Fails, Err: err, Steps: result.Steps}
	case result.Unfit != nil:
		return Answer{Verdict: DoesNotFit, Steps: result.Steps, Err: errors.New(result.Unfit.String())}
	}
	return Answer{Verdict: Fits, Results: result.Allocations, Steps: result.Steps}
}
