package allocator

import (
	"fmt"
	"strings"
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
	// Permanent tells that the devices that are published now could not satisfy the claims even
	// if nothing were in use. It is about this node when Node is set. It is not set while a
	// pool that may matter is incomplete or invalid, nor with Options.NoExplanation.
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
	// Devices is how many devices were looked at, Usable how many of them could be used now,
	// each alone.
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

// String is the whole explanation as text of several lines, without a line break at its end.
func (u *Unfit) String() string {
	var b strings.Builder
	b.WriteString(u.Summary)
	for _, c := range u.Claims {
		for _, r := range c.Requests {
			fmt.Fprintf(&b, "\nclaim %q, request %q: %s", c.Namespace+"/"+c.Name, r.Request, r.String())
		}
	}
	for _, p := range u.Pools {
		state := "incomplete"
		if p.Invalid {
			state = "invalid"
		}
		fmt.Fprintf(&b, "\npool %q of driver %q is %s: %s", p.Pool, p.Driver, state, p.Why)
	}
	return b.String()
}

// String is the explanation for the request in one line.
func (r *UnfitRequest) String() string {
	if r.UnknownClass {
		return fmt.Sprintf("device class %q does not exist", r.Class)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "class %q: wants %s; %d of %s usable", r.Class, r.wanted(), r.Usable, plural(r.Devices, "device"))
	for i, o := range r.Obstacles {
		separator := "; "
		if i == 0 {
			separator = ": "
		}
		b.WriteString(separator + o.String())
	}
	if r.Miss != "" {
		b.WriteString("; " + r.Miss)
	}
	if r.Permanent {
		b.WriteString("; no matter what is in use")
	}
	return b.String()
}

func (r *UnfitRequest) wanted() string {
	switch {
	case !r.All:
		return plural(r.Wanted, "device")
	case r.Wanted == 0:
		return "all matching devices (there are none)"
	}
	return fmt.Sprintf("all %d matching devices", r.Wanted)
}

// texts say in words what a reason is; %s is the detail.
var texts = map[Reason]string{
	ReasonClass:      "not of the class (%s)",
	ReasonSelector:   "do not match selector (%s)",
	ReasonError:      "fail on a selector or capacity (%s)",
	ReasonNode:       "not for this node%s",
	ReasonFeature:    "need a feature that is missing (%s)",
	ReasonTaint:      "tainted (%s)",
	ReasonCapacity:   "never have the capacity (%s)",
	ReasonAttribute:  "lack attribute %s of a constraint",
	ReasonInUse:      "in use%s",
	ReasonShared:     "have too little capacity left (%s)",
	ReasonCounter:    "need more than what is left of counter %s",
	ReasonGroup:      "of other compatibility groups than what is allocated on counter set %s",
	ReasonConstraint: "usable, but not together: %s",
	ReasonTaken:      "usable, but needed by other requests%s",
}

// String is the obstacle in words.
func (o *Obstacle) String() string {
	s := fmt.Sprintf("%d "+texts[o.Reason], o.Devices, o.Detail)
	if o.Claims > 0 {
		s += fmt.Sprintf(" (%s)", plural(o.Claims, "allocation"))
	}
	return s
}

func plural[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
