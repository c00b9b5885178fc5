package allocator

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// request is one request of a claim: its alternatives are those of firstAvailable, or one.
type request struct {
	api          *resourceapi.DeviceRequest
	alternatives []*alternative
}

// alternative is one way to satisfy a request: the request itself, or one of firstAvailable.
type alternative struct {
	claim, request int
	number         int    // among all alternatives of the call
	name           string // as in results: "request" or "request/alternative"

	className   string
	class       *resourceapi.DeviceClass // nil: there is none of that name
	selectors   []resourceapi.DeviceSelector
	all         bool
	count       int64
	admin       bool
	tolerations []resourceapi.DeviceToleration
	capacity    *resourceapi.CapacityRequirements
	derived     map[resourceapi.FullyQualifiedName]string // name -> expression

	programs      []*program // of the class, then of the request
	classPrograms int
	constraints   []*constraint // those of the claim that are about it

	// What the search finds out. status is by position of the device.
	status []status
	needs  []*need // by position, what is beyond its end is nil
	list   []place // of allocation mode All
	// impossible tells why the alternative cannot be used on this node.
	impossible impossible
}

// need returns what the alternative consumes of the device's capacities, nil if that is of no
// matter.
func (a *alternative) need(pos int) *need {
	if pos >= len(a.needs) {
		return nil
	}
	return a.needs[pos]
}

// impossible is why an alternative is not tried.
type impossible struct {
	why  string
	pool *poolView // the pool that keeps allocation mode All from knowing all devices
}

// claimRequests checks the claims and prepares their requests. All errors are about what no
// API server lets pass, or about features that are off.
func (s *search) claimRequests() error {
	s.requestMemory.giveBack()
	s.alternativeMemory.giveBack()
	s.constraintMemory.giveBack()
	s.requests = resized(s.requests, len(s.claims))
	s.constraints = resized(s.constraints, len(s.claims))
	s.alternatives = s.alternatives[:0]
	for c, claim := range s.claims {
		if claim == nil {
			return fmt.Errorf("claims[%d] is nil", c)
		}
		if err := s.claimConstraints(c); err != nil {
			return fmt.Errorf("claim \"%s/%s\", %w", claim.Namespace, claim.Name, err)
		}
		s.requests[c] = s.requests[c][:0]
		for i := range claim.Spec.Devices.Requests {
			r, err := s.newRequest(c, i, &claim.Spec.Devices.Requests[i])
			if err != nil {
				return fmt.Errorf("claim \"%s/%s\", request %q: %w", claim.Namespace, claim.Name, claim.Spec.Devices.Requests[i].Name, err)
			}
			s.requests[c] = append(s.requests[c], r)
		}
	}
	return nil
}

func (s *search) newRequest(claim, index int, api *resourceapi.DeviceRequest) (*request, error) {
	r := s.requestMemory.next()
	r.api, r.alternatives = api, r.alternatives[:0]
	switch {
	case api.Exactly == nil && len(api.FirstAvailable) == 0:
		return nil, errors.New("neither exactly nor firstAvailable is set")
	case api.Exactly != nil && len(api.FirstAvailable) > 0:
		return nil, errors.New("both exactly and firstAvailable are set")
	case api.Exactly == nil && !s.o.Features.PrioritizedList:
		return nil, errors.New("firstAvailable is set, but the feature PrioritizedList is off")
	}
	if e := api.Exactly; e != nil {
		if e.AdminAccess != nil && !s.o.Features.AdminAccess {
			return nil, errors.New("adminAccess is set, but the feature AdminAccess is off")
		}
		a := s.newAlternative(r, claim, index)
		a.name, a.className, a.selectors, a.count = api.Name, e.DeviceClassName, e.Selectors, e.Count
		a.admin, a.tolerations, a.capacity = ptr.Deref(e.AdminAccess, false), e.Tolerations, e.Capacity
		a.derived = derivedOf(e.DerivedAttributes)
		return r, s.prepare(a, e.AllocationMode)
	}
	for i := range api.FirstAvailable {
		sub := &api.FirstAvailable[i]
		a := s.newAlternative(r, claim, index)
		a.name, a.className, a.selectors, a.count = api.Name+"/"+sub.Name, sub.DeviceClassName, sub.Selectors, sub.Count
		a.tolerations, a.capacity, a.derived = sub.Tolerations, sub.Capacity, derivedOf(sub.DerivedAttributes)
		if err := s.prepare(a, sub.AllocationMode); err != nil {
			return nil, fmt.Errorf("alternative %q: %w", sub.Name, err)
		}
	}
	return r, nil
}

// newAlternative adds an alternative of the request of the claim.
func (s *search) newAlternative(r *request, claim, index int) *alternative {
	a := s.alternativeMemory.next()
	*a = alternative{
		claim: claim, request: index, number: len(s.alternatives),
		programs: a.programs[:0], constraints: a.constraints[:0],
		status: a.status, needs: a.needs, list: a.list,
	}
	s.alternatives = append(s.alternatives, a)
	r.alternatives = append(r.alternatives, a)
	return a
}

func derivedOf(list []resourceapi.DeviceDerivedAttribute) map[resourceapi.FullyQualifiedName]string {
	if len(list) == 0 {
		return nil
	}
	m := make(map[resourceapi.FullyQualifiedName]string, len(list))
	for i := range list {
		m[list[i].Name] = list[i].Expression
	}
	return m
}

// prepare checks the alternative and looks up its class and programs.
func (s *search) prepare(a *alternative, mode resourceapi.DeviceAllocationMode) error {
	f := s.o.Features
	switch {
	case a.className == "":
		return errors.New("the device class name is empty")
	case a.capacity != nil && !f.ConsumableCapacity:
		return errors.New("capacity is set, but the feature ConsumableCapacity is off")
	case len(a.derived) > 0 && !f.DerivedAttributes:
		return errors.New("derivedAttributes is set, but the feature DerivedAttributes is off")
	}
	switch mode {
	case resourceapi.DeviceAllocationModeAll:
		a.all = true
	case resourceapi.DeviceAllocationModeExactCount:
		if a.count < 1 {
			return fmt.Errorf("count %d is below 1", a.count)
		}
	default:
		return fmt.Errorf("unknown allocation mode %q", mode)
	}
	a.class = s.inv.DeviceClass(a.className)
	if a.class != nil {
		if err := s.addPrograms(a, a.class.Spec.Selectors); err != nil {
			return fmt.Errorf("class %q: %w", a.className, err)
		}
	}
	a.classPrograms = len(a.programs)
	if err := s.addPrograms(a, a.selectors); err != nil {
		return err
	}
	for _, c := range s.constraints[a.claim] {
		if c.about(a) {
			a.constraints = append(a.constraints, c)
			c.last = a.request
		}
	}
	return nil
}

func (s *search) addPrograms(a *alternative, selectors []resourceapi.DeviceSelector) error {
	for i := range selectors {
		if selectors[i].CEL == nil {
			return fmt.Errorf("selectors[%d] has no CEL expression", i)
		}
		a.programs = append(a.programs, s.inv.engine.selector(selectors[i].CEL.Expression))
	}
	return nil
}

// wants returns how many devices the alternative takes. It may be far beyond 32.
func (a *alternative) wants() int64 {
	if a.all {
		return int64(len(a.list))
	}
	return a.count
}

// excludes tells whether the selectors are false for every device of the driver.
func (a *alternative) excludes(driver string) bool {
	return slices.ContainsFunc(a.programs, func(p *program) bool {
		return p.never(driver)
	})
}

// selectorName names the program in messages as upstream counts them.
func (a *alternative) selectorName(program int) string {
	if program < a.classPrograms {
		return fmt.Sprintf("class %q: selector #%d", a.className, program)
	}
	return fmt.Sprintf("selector #%d", program-a.classPrograms)
}
