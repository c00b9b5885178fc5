package webhooks

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/allocator"
)

// explainSteps bounds the search for an explanation: a few milliseconds. It is a budget of
// steps, not of time, so that the same claim gets the same answer everywhere.
const explainSteps = 20_000

// explainCost bounds what evaluating CEL expressions for an explanation may cost.
const explainCost = 1_000_000

// maxExplanations bounds what is remembered of one inventory, maxExplanation how long each may be
// in bytes: specs, which are kept as hashes, and explanations may be as long as tenants like.
const (
	maxExplanations = 1024
	maxExplanation  = 4096
)

// DeviceExplainer explains from the embedded allocator. It remembers its answers for the
// inventory that it gave them by. Safe for concurrent use.
type DeviceExplainer struct {
	inventory func() *allocator.Inventory

	mu       sync.Mutex // protects following
	revision uint64
	// hash of the spec as JSON -> explanation
	known map[[sha256.Size]byte]string
}

var _ Explainer = (*DeviceExplainer)(nil)

// NewDeviceExplainer returns an explainer over the newest inventory, which is nil while it is
// not synced.
func NewDeviceExplainer(inventory func() *allocator.Inventory) *DeviceExplainer {
	return &DeviceExplainer{inventory: inventory}
}

// Explain implements Explainer.
func (e *DeviceExplainer) Explain(ctx context.Context, claim *resourceapi.ResourceClaim) string {
	inventory := e.inventory()
	if inventory == nil || len(claim.Spec.Devices.Requests) == 0 {
		return ""
	}
	spec, err := json.Marshal(&claim.Spec)
	if err != nil {
		return "" // not a spec that JSON can carry: no request ever was
	}
	key := sha256.Sum256(spec)
	if text, ok := e.remembered(inventory.Revision(), key); ok {
		return text
	}
	text := compute(ctx, inventory, claim)
	if ctx.Err() == nil && len(text) <= maxExplanation {
		e.remember(inventory.Revision(), key, text)
	}
	return text
}

func (e *DeviceExplainer) remembered(revision uint64, key [sha256.Size]byte) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	text, ok := e.known[key]
	return text, ok && e.revision == revision
}

func (e *DeviceExplainer) remember(revision uint64, key [sha256.Size]byte, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.revision != revision || len(e.known) >= maxExplanations || e.known == nil {
		e.revision, e.known = revision, map[[sha256.Size]byte]string{}
	}
	e.known[key] = text
}

// compute asks the allocator, first about one likely node only: nearly every claim fits there.
// An error means that nothing is known: the budget is used up, or an expression fails.
func compute(ctx context.Context, inventory *allocator.Inventory, claim *resourceapi.ResourceClaim) string {
	a, err := allocator.New(inventory, allocator.State{}, allocator.Options{
		Features: allocator.DefaultFeatures(), MaxSteps: explainSteps, MaxCost: explainCost})
	if err != nil {
		return ""
	}
	claims := []*resourceapi.ResourceClaim{claim}
	if node := likelyNode(inventory, &claim.Spec.Devices.Requests[0]); node != nil {
		if r, err := a.Allocate(ctx, node, claims); err == nil && r.Unfit == nil {
			return ""
		}
	}
	unfit, err := a.Explain(ctx, claims)
	if err != nil || unfit == nil || !unfit.Permanent || incomplete(unfit) {
		return ""
	}
	return explanation(unfit)
}

// likelyNode returns the first node that reaches a candidate of the request, nil when none is found.
func likelyNode(inventory *allocator.Inventory, r *resourceapi.DeviceRequest) *corev1.Node {
	var class string
	var selectors []resourceapi.DeviceSelector
	switch {
	case r.Exactly != nil:
		class, selectors = r.Exactly.DeviceClassName, r.Exactly.Selectors
	case len(r.FirstAvailable) > 0:
		class, selectors = r.FirstAvailable[0].DeviceClassName, r.FirstAvailable[0].Selectors
	}
	found, name := false, ""
	// Whether it is within the budget and without error does not matter to a guess.
	_, _ = inventory.Candidates(class, selectors, func(_, _ string, _ *resourceapi.Device, nodes []string) bool {
		if found = nodes == nil || len(nodes) > 0; found && nodes != nil {
			name = nodes[0]
		}
		return !found
	})
	if !found {
		return nil
	}
	if node := inventory.Node(name); node != nil {
		return node
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
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
		if o.Reason == allocator.ReasonClass {
			continue // devices of other classes are no obstacle
		}
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
