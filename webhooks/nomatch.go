package webhooks

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/allocator"
)

// explainSteps bounds the search for an explanation: a few milliseconds. It is a budget of
// steps, not of time, so that the same claim gets the same answer everywhere.
const explainSteps = 20_000

// explainCost bounds what evaluating CEL expressions for an explanation may cost.
const explainCost = 1_000_000

// DeviceExplainer explains from the embedded allocator. Safe for concurrent use.
type DeviceExplainer struct {
	// Inventory returns the newest inventory, nil while it is not synced.
	Inventory func() *allocator.Inventory
}

var _ Explainer = DeviceExplainer{}

// Explain implements Explainer.
func (e DeviceExplainer) Explain(ctx context.Context, claim *resourceapi.ResourceClaim) string {
	inventory := e.Inventory()
	if inventory == nil || len(claim.Spec.Devices.Requests) == 0 {
		return ""
	}
	a, err := allocator.New(inventory, allocator.State{}, allocator.Options{
		Features: allocator.DefaultFeatures(), MaxSteps: explainSteps, MaxCost: explainCost})
	if err != nil {
		return ""
	}
	// An error means that nothing is known: the search's budget, or an expression that fails.
	unfit, err := a.Explain(ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil || unfit == nil || !unfit.Permanent || incomplete(unfit) {
		return ""
	}
	return explanation(unfit)
}

func incomplete(u *allocator.Unfit) bool {
	for _, p := range u.Pools {
		if !p.Invalid {
			return true
		}
	}
	return false
}

// explanation returns the requests that no device satisfies, in one line. A class that does
// not exist is another reason, so a claim that fails by that alone has none here.
func explanation(u *allocator.Unfit) string {
	var parts []string
	unknown := false
	for _, c := range u.Claims {
		for _, r := range c.Requests {
			if r.UnknownClass {
				unknown = true
				continue
			}
			if r.Permanent {
				parts = append(parts, requestText(r))
			}
		}
	}
	if len(parts) > 0 {
		return strings.Join(parts, "; ")
	}
	if unknown {
		return ""
	}
	return u.Summary
}

func requestText(r allocator.UnfitRequest) string {
	var b strings.Builder
	wanted := fmt.Sprint(r.Wanted)
	if r.All {
		wanted = "all"
	}
	fmt.Fprintf(&b, "request %q, class %q: wants %s, %d devices published, %d usable", r.Request, r.Class, wanted, r.Devices, r.Usable)
	for _, o := range r.Obstacles {
		fmt.Fprintf(&b, ", %d fail %s", o.Devices, o.Reason)
		if o.Detail != "" {
			fmt.Fprintf(&b, " (%s)", o.Detail)
		}
	}
	if r.Miss != "" {
		b.WriteString(", ")
		b.WriteString(r.Miss)
	}
	return b.String()
}
