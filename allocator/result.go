package allocator

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
)

// results turns what the search has placed into API objects, which are the caller's.
func (s *search) results() []resourceapi.AllocationResult {
	n := 0
	for c := range s.placed {
		n += len(s.placed[c])
	}
	list, devices := make([]resourceapi.AllocationResult, len(s.claims)), make([]resourceapi.DeviceRequestAllocationResult, n)
	for c := range s.claims {
		r, n := &list[c], len(s.placed[c])
		r.Devices.Results, devices = devices[:n:n], devices[n:]
		for i, p := range s.placed[c] {
			s.deviceResult(&r.Devices.Results[i], p)
		}
		r.Devices.Config = s.configs(c)
		r.NodeSelector = s.nodeSelector(s.placed[c])
	}
	return list
}

func (s *search) deviceResult(r *resourceapi.DeviceRequestAllocationResult, p placed) {
	a, vs := p.alternative, &s.view.slices[p.at.slice]
	d := &vs.devices[p.at.device]
	r.Request, r.Driver, r.Pool, r.Device = a.name, vs.pool.driver, vs.pool.name, d.name
	r.Tolerations = slices.Clone(a.tolerations)
	for i := range r.Tolerations {
		if seconds := r.Tolerations[i].TolerationSeconds; seconds != nil {
			r.Tolerations[i].TolerationSeconds = ptr.To(*seconds)
		}
	}
	r.SkipNodeOperations = slices.Clone(vs.api.Spec.SkipNodeOperations)
	if a.admin {
		r.AdminAccess = ptr.To(true)
	}
	if s.o.Features.DeviceBindingAndStatus {
		r.BindingConditions = slices.Clone(d.api.BindingConditions)
		r.BindingFailureConditions = slices.Clone(d.api.BindingFailureConditions)
	}
	if !d.shareable || !s.o.Features.ConsumableCapacity {
		return
	}
	r.ShareID = ptr.To(s.o.shareID())
	if n := a.need(vs.first + d.index); n != nil && len(n.quantities) > 0 {
		r.ConsumedCapacity = make(map[resourceapi.QualifiedName]resource.Quantity, len(n.quantities))
		for i := range n.quantities {
			r.ConsumedCapacity[d.capacities[i].name] = n.quantities[i].DeepCopy()
		}
	}
}

func (o *Options) shareID() types.UID {
	if o.NewShareID != nil {
		return o.NewShareID()
	}
	return uuid.NewUUID()
}

// configs returns the configuration of the claim's allocation: that of the classes first, each
// class once for all its requests, then that of the claim as far as it is about a chosen
// request. What is about all requests names none.
//
// Source: structured/internal/experimental, Allocator.Allocate (v0.37).
func (s *search) configs(c int) []resourceapi.DeviceAllocationConfiguration {
	ofClass := slices.ContainsFunc(s.chosen[c], func(a *alternative) bool { return len(a.class.Spec.Config) > 0 })
	if !ofClass && len(s.claims[c].Spec.Devices.Config) == 0 {
		return nil
	}
	var list []resourceapi.DeviceAllocationConfiguration
	type span struct{ begin, end int }
	spans := map[string]span{} // class name -> its configs
	for _, a := range s.chosen[c] {
		known, found := spans[a.className]
		if found {
			for i := known.begin; i < known.end; i++ {
				list[i].Requests = append(list[i].Requests, a.name)
			}
			continue
		}
		known.begin = len(list)
		for _, config := range a.class.Spec.Config {
			list = append(list, resourceapi.DeviceAllocationConfiguration{
				Source:              resourceapi.AllocationConfigSourceClass,
				Requests:            []string{a.name},
				DeviceConfiguration: *config.DeviceConfiguration.DeepCopy(),
			})
		}
		known.end = len(list)
		spans[a.className] = known
	}
	for _, config := range s.claims[c].Spec.Devices.Config {
		if len(config.Requests) == 0 || slices.ContainsFunc(s.chosen[c], func(a *alternative) bool { return s.inList(config.Requests, a) }) {
			list = append(list, resourceapi.DeviceAllocationConfiguration{
				Source:              resourceapi.AllocationConfigSourceClaim,
				Requests:            slices.Clone(config.Requests),
				DeviceConfiguration: *config.DeviceConfiguration.DeepCopy(),
			})
		}
	}
	for i := range list {
		other := slices.ContainsFunc(s.chosen[c], func(a *alternative) bool { return !s.inList(list[i].Requests, a) })
		if len(list[i].Requests) > 0 && !other {
			list[i].Requests = nil
		}
	}
	return list
}

// inList tells whether the list names the alternative or its request.
func (s *search) inList(requests []string, a *alternative) bool {
	return slices.Contains(requests, s.requests[a.claim][a.request].api.Name) || slices.Contains(requests, a.name)
}

// nodeSelector returns the nodes on which the allocated devices can be used: the node itself
// if a device is local to it or binds to it, else what all node selectors of the devices have
// in common, nil for all nodes.
//
// Upstream fails on a device whose node selector has several terms. Here the terms are
// multiplied out; if that gives more than maxTerms, those that match the node are kept.
//
// Source: structured/internal/experimental, createNodeSelector (v0.37).
func (s *search) nodeSelector(list []placed) *corev1.NodeSelector {
	var terms []corev1.NodeSelectorTerm
	for _, p := range list {
		vs := &s.view.slices[p.at.slice]
		d := &vs.devices[p.at.device]
		nodeName, selector := vs.api.Spec.NodeName, vs.api.Spec.NodeSelector
		if d.reach != nil {
			nodeName, selector = d.api.NodeName, d.api.NodeSelector
		}
		if nodeName != nil || ptr.Deref(d.api.BindsToNode, false) {
			return onlyNode(s.node.Name)
		}
		if selector != nil && len(selector.NodeSelectorTerms) > 0 {
			if terms == nil {
				terms = []corev1.NodeSelectorTerm{{}}
			}
			terms = s.product(terms, selector.NodeSelectorTerms)
		}
	}
	terms = slices.DeleteFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchFields) == 0 && len(t.MatchExpressions) == 0
	})
	if len(terms) == 0 {
		return nil
	}
	return &corev1.NodeSelector{NodeSelectorTerms: terms}
}

// onlyNode selects the node of that name.
func onlyNode(name string) *corev1.NodeSelector {
	// One piece of memory for all: most allocations need this selector.
	m := &struct {
		selector     corev1.NodeSelector
		terms        [1]corev1.NodeSelectorTerm
		requirements [1]corev1.NodeSelectorRequirement
		values       [1]string
	}{values: [1]string{name}}
	m.requirements[0] = corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: m.values[:]}
	m.terms[0].MatchFields = m.requirements[:]
	m.selector.NodeSelectorTerms = m.terms[:]
	return &m.selector
}

// product returns each of the terms together with each of the others.
func (s *search) product(terms, others []corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	const maxTerms = 32
	if len(terms)*len(others) > maxTerms {
		terms, others = s.matching(terms), s.matching(others)
	}
	if len(terms)*len(others) > maxTerms {
		others = others[:1]
	}
	var result []corev1.NodeSelectorTerm
	for i := range terms {
		for j := range others {
			t := *terms[i].DeepCopy()
			t.MatchFields = union(t.MatchFields, others[j].MatchFields)
			t.MatchExpressions = union(t.MatchExpressions, others[j].MatchExpressions)
			result = append(result, t)
		}
	}
	return result
}

// matching returns the terms that match the node, or all if none does.
func (s *search) matching(terms []corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	var result []corev1.NodeSelectorTerm
	for _, t := range terms {
		r := newReach(nil, nil, &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{t}})
		if ok, err := r.matches(s.node); ok && err == nil {
			result = append(result, t)
		}
	}
	if len(result) == 0 {
		return terms
	}
	return result
}

// union appends the requirements that are not there yet.
func union(to, from []corev1.NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
	for i := range from {
		same := slices.ContainsFunc(to, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == from[i].Key && r.Operator == from[i].Operator && sameSet(r.Values, from[i].Values)
		})
		if !same {
			to = append(to, *from[i].DeepCopy())
		}
	}
	return to
}

func sameSet(a, b []string) bool {
	for _, x := range a {
		if !slices.Contains(b, x) {
			return false
		}
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			return false
		}
	}
	return true
}
