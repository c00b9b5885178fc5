package allocator

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
)

// Reason is why a device cannot be used for a request. A device counts for the first one that
// holds, in this order.
type Reason string

// The reasons, in the order in which they are looked at.
const (
	ReasonClass      Reason = "Class"      // a selector of the class is false
	ReasonSelector   Reason = "Selector"   // a selector of the request is false
	ReasonError      Reason = "Error"      // a selector, or reading a capacity, fails on the device
	ReasonNode       Reason = "Node"       // the device is not for this node
	ReasonFeature    Reason = "Feature"    // the device needs a feature that is off, or that the node lacks
	ReasonTaint      Reason = "Taint"      // a taint is not tolerated
	ReasonCapacity   Reason = "Capacity"   // the device never has the capacity, or not in the wanted step
	ReasonAttribute  Reason = "Attribute"  // a constraint names an attribute that the device lacks
	ReasonInUse      Reason = "InUse"      // the device is allocated
	ReasonShared     Reason = "Shared"     // not enough capacity is left: other claims hold it
	ReasonCounter    Reason = "Counter"    // a counter does not suffice: other devices consume it
	ReasonGroup      Reason = "Group"      // allocated devices are of other compatibility groups
	ReasonConstraint Reason = "Constraint" // a constraint, together with the other devices of the claim
	ReasonTaken      Reason = "Taken"      // usable, but other requests of this call need it
)

// Unfit tells why claims do not fit. It is deterministic.
type Unfit struct {
	// Node is the node that was asked; empty when the question was about all devices.
	Node string
	// Summary is one sentence.
	Summary string
	// Permanent tells that no device that is published now could ever satisfy the claims,
	// whatever is in use. It is about this node when Node is set.
	Permanent bool
	// Pools are pools of which no device can be used now. Sorted by driver and pool.
	Pools []UnfitPool
	// Claims has one entry per claim that has an obstacle of its own, in the order of the
	// claims; all claims when each would fit alone. Empty with Options.NoExplanation.
	Claims []UnfitClaim
}

// UnfitPool is a pool of which no device can be used now.
type UnfitPool struct {
	Driver, Pool string
	// Invalid distinguishes an invalid pool from an incomplete one.
	Invalid bool
	// Why is what is wrong.
	Why string
}

// UnfitClaim tells about the requests of one claim.
type UnfitClaim struct {
	// Namespace and Name are the claim's.
	Namespace, Name string
	// Requests has one entry per request, and one per alternative of firstAvailable.
	Requests []UnfitRequest
}

// UnfitRequest tells how the devices fall out for one request or alternative.
type UnfitRequest struct {
	// Request is "request" or "request/alternative".
	Request string
	// Class is the device class, and UnknownClass tells that there is none of that name.
	Class        string
	UnknownClass bool
	// Wanted is how many devices it asks for; for allocation mode All, how many match.
	Wanted int64
	// All tells allocation mode All.
	All bool
	// Devices is how many devices were looked at, Usable how many of them could be used alone.
	Devices, Usable int
	// Obstacles say why the others could not, ordered as the reasons are.
	Obstacles []Obstacle
	// Permanent tells that too few devices would be left even if nothing were in use.
	Permanent bool
	// Miss is the closest miss in words, empty when there is nothing to say, for example
	// "needs memory >= 80Gi; the largest free device has 40Gi".
	Miss string
}

// Obstacle counts the devices that fall to one reason and detail.
type Obstacle struct {
	Reason Reason
	// Detail is the expression, taint, counter, capacity, constraint with value, or what
	// else the reason is about; see Reason.
	Detail string
	// Devices is how many devices.
	Devices int
	// Claims is how many allocations hold the devices, for InUse and Shared.
	Claims int
}

// String is the whole explanation as text of several lines.
func (u *Unfit) String() string { return u.Summary }

// unfit explains why the search found nothing.
func (s *search) unfit(ctx context.Context) (*Unfit, error) {
	return &Unfit{Node: s.node.Name, Summary: "the claims do not fit"}, nil
}

// Explain answers without a node: could any published devices ever satisfy the claims, if
// nothing were in use? It returns nil when they could on some node (or when the question could
// not be decided within the budget), else an Unfit with Permanent set. Nodes are those that
// the Builder knows and those that slices name. Errors are those of Allocate.
func (a *Allocator) Explain(ctx context.Context, claims []*resourceapi.ResourceClaim) (*Unfit, error) {
	return nil, nil
}
