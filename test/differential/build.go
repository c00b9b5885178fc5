package differential

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errAllConstraint: a constraint prevents that a request gets all devices.
var errAllConstraint = errors.New("a constraint would not be satisfied")

// errTerms: the node selector of a device has several terms.
var errTerms = errors.New("unsupported ResourceSlice.NodeSelector with several terms")

// build makes the allocation results of a solution. Every share gets the same share ID.
func (c *Case) build(node *corev1.Node, results [][]chosen, served [][]*alternative, bugs Bugs) ([]resourceapi.AllocationResult, error) {
	out := make([]resourceapi.AllocationResult, len(c.Claims))
	for i, claim := range c.Claims {
		out[i].Devices.Results = []resourceapi.DeviceRequestAllocationResult{}
		for _, x := range results[i] {
			out[i].Devices.Results = append(out[i].Devices.Results, c.buildDevice(x))
		}
		out[i].Devices.Config = c.buildConfig(claim, served[i])
		selector, err := buildSelector(node, results[i], bugs)
		if err != nil {
			return nil, fmt.Errorf("claim %d: %w", i, err)
		}
		out[i].NodeSelector = selector
	}
	return out, nil
}

func (c *Case) buildDevice(x chosen) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{
		Request: x.alt.name(), Driver: x.d.key.Driver, Pool: x.d.key.Pool, Device: x.d.key.Device,
		Tolerations: x.alt.tolerations, SkipNodeOperations: x.d.slice.Spec.SkipNodeOperations,
	}
	if x.alt.admin {
		r.AdminAccess = ptr(true)
	}
	if c.Features.DeviceBindingAndStatus {
		r.BindingConditions, r.BindingFailureConditions = x.d.dev.BindingConditions, x.d.dev.BindingFailureConditions
	}
	if multiple(c, x.d) {
		r.ShareID = ptr(types.UID("share"))
		if take, _, _ := amounts(x.alt.capacity, x.d.dev, c.Features.FractionalCapacityRange); len(take) > 0 {
			r.ConsumedCapacity = take
		}
	}
	return r
}

// buildConfig lists the configs of the classes, each class once, then those of the claim.
// A config that applies to every request names none.
func (c *Case) buildConfig(claim *resourceapi.ResourceClaim, served []*alternative) []resourceapi.DeviceAllocationConfiguration {
	var out []resourceapi.DeviceAllocationConfiguration
	requests := map[string][]string{}
	var order []string
	for _, a := range served {
		if len(requests[a.className]) == 0 {
			order = append(order, a.className)
		}
		requests[a.className] = append(requests[a.className], a.name())
	}
	for _, name := range order {
		for _, cfg := range c.class(name).Spec.Config {
			out = append(out, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass, Requests: slices.Clone(requests[name]), DeviceConfiguration: cfg.DeviceConfiguration})
		}
	}
	for _, cfg := range claim.Spec.Devices.Config {
		if len(cfg.Requests) > 0 && !slices.ContainsFunc(served, func(a *alternative) bool { return a.named(cfg.Requests) }) {
			continue
		}
		out = append(out, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim, Requests: cfg.Requests, DeviceConfiguration: cfg.DeviceConfiguration})
	}
	for i := range out {
		if !slices.ContainsFunc(served, func(a *alternative) bool { return !a.named(out[i].Requests) }) {
			out[i].Requests = nil
		}
	}
	return out
}

// buildSelector says where the devices of a claim can be used: on this node only if one of
// them is local or binds, else wherever all their selectors match.
func buildSelector(node *corev1.Node, devices []chosen, bugs Bugs) (*corev1.NodeSelector, error) {
	here := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
		Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name},
	}}}}}
	terms := []corev1.NodeSelectorTerm{{}}
	for _, x := range devices {
		name, selector := x.d.slice.Spec.NodeName, x.d.slice.Spec.NodeSelector
		if isTrue(x.d.slice.Spec.PerDeviceNodeSelection) {
			name, selector = x.d.dev.NodeName, x.d.dev.NodeSelector
		}
		if name != nil || isTrue(x.d.dev.BindsToNode) {
			return here, nil
		}
		if selector == nil || len(selector.NodeSelectorTerms) == 0 {
			continue
		}
		if len(selector.NodeSelectorTerms) > 1 && bugs.Has(P11) {
			return nil, errTerms
		}
		terms = product(terms, selector.NodeSelectorTerms)
	}
	if len(terms) == 1 && len(terms[0].MatchFields)+len(terms[0].MatchExpressions) == 0 {
		return nil, nil
	}
	return &corev1.NodeSelector{NodeSelectorTerms: terms}, nil
}

// product combines selectors that must both match: any term of the one with any of the other.
func product(a, b []corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	var out []corev1.NodeSelectorTerm
	for _, x := range a {
		for _, y := range b {
			out = append(out, corev1.NodeSelectorTerm{
				MatchFields:      merge(slices.Clone(x.MatchFields), y.MatchFields),
				MatchExpressions: merge(slices.Clone(x.MatchExpressions), y.MatchExpressions),
			})
		}
	}
	return out
}

// merge appends the requirements that are not there yet.
func merge(to, from []corev1.NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
	for _, r := range from {
		if !slices.ContainsFunc(to, func(o corev1.NodeSelectorRequirement) bool {
			return o.Key == r.Key && o.Operator == r.Operator && sameSet(o.Values, r.Values)
		}) {
			to = append(to, r)
		}
	}
	return to
}

func sameSet(a, b []string) bool {
	in := func(x, y []string) bool {
		return !slices.ContainsFunc(x, func(v string) bool { return !slices.Contains(y, v) })
	}
	return in(a, b) && in(b, a)
}
