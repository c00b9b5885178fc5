package quota

import (
	"encoding/binary"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// alternative is one way to satisfy a request: all of it, or one entry of firstAvailable.
type alternative struct {
	index     int // in firstAvailable, -1 for exactly
	name      string
	class     string
	selectors []resourceapi.DeviceSelector
	all       bool
	count     int64
	capacity  map[resourceapi.QualifiedName]resource.Quantity
	cost      *cost
}

// requestPath is where the i-th request of a claim stands.
func requestPath(i int) *field.Path {
	return field.NewPath("spec", "devices", "requests").Index(i)
}

func (a *alternative) path(i int) *field.Path {
	if a.index < 0 {
		return requestPath(i).Child("exactly")
	}
	return requestPath(i).Child("firstAvailable").Index(a.index)
}

func (a *alternative) selectorError(i int, e *selectorError) *field.Error {
	return field.Invalid(a.path(i).Child("selectors").Index(e.index).Child("cel", "expression"),
		a.selectors[e.index].CEL.Expression, e.err.Error())
}

// alternativesOf returns the alternatives of a request, or what is wrong with it. Mode and
// count have their documented defaults where they are not set.
func alternativesOf(r *resourceapi.DeviceRequest, i int) ([]*alternative, field.ErrorList) {
	if errs := checkRequest(r, i); len(errs) > 0 {
		return nil, errs
	}
	if e := r.Exactly; e != nil {
		return []*alternative{newAlternative(-1, "", e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Capacity)}, nil
	}
	out := make([]*alternative, len(r.FirstAvailable))
	for j := range r.FirstAvailable {
		s := &r.FirstAvailable[j]
		out[j] = newAlternative(j, s.Name, s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Capacity)
	}
	return out, nil
}

func newAlternative(index int, name, class string, selectors []resourceapi.DeviceSelector,
	mode resourceapi.DeviceAllocationMode, count int64, capacity *resourceapi.CapacityRequirements) *alternative {
	a := &alternative{index: index, name: name, class: class, selectors: selectors, count: count}
	a.all = mode == resourceapi.DeviceAllocationModeAll
	if a.count == 0 {
		a.count = 1
	}
	if capacity != nil {
		a.capacity = capacity.Requests
	}
	return a
}

// checkRequest returns what makes a request impossible to charge.
func checkRequest(r *resourceapi.DeviceRequest, i int) field.ErrorList {
	path := requestPath(i)
	switch {
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		return field.ErrorList{field.Invalid(path, r.Name, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set")}
	case r.Exactly != nil:
		e := r.Exactly
		return checkAlternative(path.Child("exactly"), e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Capacity)
	case len(r.FirstAvailable) > 0:
		var errs field.ErrorList
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			errs = append(errs, checkAlternative(path.Child("firstAvailable").Index(j), s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Capacity)...)
		}
		return errs
	}
	// Also a request type of a newer API version, or an older version's claim read as v1.
	return field.ErrorList{field.Required(path, "exactly one of `exactly` or `firstAvailable` is required")}
}

func checkAlternative(path *field.Path, class string, selectors []resourceapi.DeviceSelector,
	mode resourceapi.DeviceAllocationMode, count int64, capacity *resourceapi.CapacityRequirements) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(path.Child("deviceClassName"), ""))
	}
	switch mode {
	case "", resourceapi.DeviceAllocationModeExactCount, resourceapi.DeviceAllocationModeAll:
	default:
		errs = append(errs, field.NotSupported(path.Child("allocationMode"), mode,
			[]resourceapi.DeviceAllocationMode{resourceapi.DeviceAllocationModeAll, resourceapi.DeviceAllocationModeExactCount}))
	}
	if count < 0 {
		errs = append(errs, field.Invalid(path.Child("count"), count, "must be greater than zero"))
	}
	for j := range selectors {
		if selectors[j].CEL == nil {
			errs = append(errs, field.Required(path.Child("selectors").Index(j).Child("cel"), ""))
		}
	}
	if capacity == nil {
		return errs
	}
	for _, name := range sortedNames(capacity.Requests) {
		if v := capacity.Requests[name]; v.Sign() < 0 {
			errs = append(errs, field.Invalid(path.Child("capacity", "requests").Key(string(name)), v.String(), "must be greater than or equal to 0"))
		}
	}
	return errs
}

func sortedNames(m map[resourceapi.QualifiedName]resource.Quantity) []resourceapi.QualifiedName {
	out := make([]resourceapi.QualifiedName, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// appendCandidates appends what selects the candidates and their consumption, unambiguously.
func (a *alternative) appendCandidates(b []byte) []byte {
	b = appendString(b, a.class)
	b = binary.AppendUvarint(b, uint64(len(a.selectors)))
	for i := range a.selectors {
		b = appendString(b, a.selectors[i].CEL.Expression)
	}
	for _, name := range sortedNames(a.capacity) {
		v := a.capacity[name]
		b = appendString(b, string(name))
		b = appendString(b, v.String())
	}
	return b
}

// appendShape appends everything that the cost depends on.
func (a *alternative) appendShape(b []byte) []byte {
	mode := byte(0)
	if a.all {
		mode = 1
	}
	b = append(b, mode)
	b = binary.AppendVarint(b, a.count)
	return a.appendCandidates(b)
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}
