package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// constraint is one constraint of a claim together with the devices that it has seen in the
// search so far. If both attributes are set, matchAttribute wins, as upstream.
type constraint struct {
	claim, index int
	name         resourceapi.FullyQualifiedName
	domain, id   string // of the name
	distinct     bool
	requests     []string
	last         int // the last request of the claim that it is about, -1 for none

	// devices is how many devices are in; common is what they agree on (matchAttribute), seen
	// are the values of all of them (distinctAttribute).
	devices int
	common  value
	seen    []value
}

// claimConstraints prepares the constraints of a claim.
func (s *search) claimConstraints(claim int) error {
	devices := &s.claims[claim].Spec.Devices
	list := s.constraints[claim][:0]
	for i := range devices.Constraints {
		api := &devices.Constraints[i]
		c := s.constraintMemory.next()
		*c = constraint{claim: claim, index: i, requests: api.Requests, last: -1, seen: c.seen[:0]}
		switch {
		case api.MatchAttribute != nil:
			c.name = *api.MatchAttribute
		case api.DistinctAttribute != nil:
			c.name, c.distinct = *api.DistinctAttribute, true
		default:
			return fmt.Errorf("constraints[%d]: neither matchAttribute nor distinctAttribute is set", i)
		}
		c.domain, c.id, _ = strings.Cut(string(c.name), "/")
		list = append(list, c)
	}
	s.constraints[claim] = list
	return nil
}

// about tells whether devices of the alternative fall under the constraint: it names no
// requests, or the request, or the alternative as "request/alternative".
func (c *constraint) about(a *alternative) bool {
	if len(c.requests) == 0 || slices.Contains(c.requests, a.name) {
		return true
	}
	parent, _, isAlternative := strings.Cut(a.name, "/")
	return isAlternative && slices.Contains(c.requests, parent)
}

// kind is the type of an attribute.
type kind uint8

const (
	kindOther kind = iota // none that can be compared
	kindInt
	kindBool
	kindString
	kindVersion
)

// value is the value of an attribute, as a set: one element, or the elements of a list.
type value struct {
	kind kind
	element
	more []element // the other elements, sorted together with the first one
}

type element struct {
	number int64
	text   string
}

// scalarValue is the value without the feature ListTypeAttributes. Lists are of no kind.
func scalarValue(a *resourceapi.DeviceAttribute) value {
	switch {
	case a.StringValue != nil:
		return value{kind: kindString, element: element{text: *a.StringValue}}
	case a.IntValue != nil:
		return value{kind: kindInt, element: element{number: *a.IntValue}}
	case a.BoolValue != nil:
		return value{kind: kindBool, element: element{number: int64(flags(*a.BoolValue))}}
	case a.VersionValue != nil:
		// Versions are in their minimal form, so equal versions are equal strings.
		return value{kind: kindVersion, element: element{text: *a.VersionValue}}
	}
	return value{}
}

// listValue is the value with the feature ListTypeAttributes: a scalar is a list of one.
func listValue(a *resourceapi.DeviceAttribute) value {
	number := func(n int64) element { return element{number: n} }
	truth := func(b bool) element { return element{number: int64(flags(b))} }
	text := func(s string) element { return element{text: s} }
	switch {
	case len(a.IntValues) > 0:
		return valueOf(kindInt, a.IntValues, number)
	case len(a.BoolValues) > 0:
		return valueOf(kindBool, a.BoolValues, truth)
	case len(a.StringValues) > 0:
		return valueOf(kindString, a.StringValues, text)
	case len(a.VersionValues) > 0:
		return valueOf(kindVersion, a.VersionValues, text)
	}
	return scalarValue(a)
}

func valueOf[T any](k kind, list []T, convert func(T) element) value {
	elements := make([]element, len(list))
	for i := range list {
		elements[i] = convert(list[i])
	}
	return setOf(k, elements)
}

// setOf makes a value of at least one element.
func setOf(k kind, elements []element) value {
	slices.SortFunc(elements, func(a, b element) int {
		return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.text, b.text))
	})
	elements = slices.Compact(elements)
	return value{kind: k, element: elements[0], more: elements[1:]}
}

// intersect returns the elements of both; ok is false when there are none.
func (v value) intersect(w value) (both value, ok bool) {
	switch {
	case v.kind != w.kind || v.kind == kindOther:
		return value{}, false
	case len(v.more) == 0 && len(w.more) == 0:
		return v, v.element == w.element
	}
	var elements []element
	for _, e := range v.all() {
		if e == w.element || slices.Contains(w.more, e) {
			elements = append(elements, e)
		}
	}
	if len(elements) == 0 {
		return value{}, false
	}
	return value{kind: v.kind, element: elements[0], more: elements[1:]}, true
}

func (v value) all() []element { return append([]element{v.element}, v.more...) }

// admits tells whether a device with the value may join, and for matchAttribute what all then
// have in common. lists is the feature ListTypeAttributes.
//
// Source: structured/internal/experimental, matchAttributeConstraint and
// distinctAttributeConstraint (v0.37). Without the feature a value of no kind may be the first.
func (c *constraint) admits(v value, lists bool) (common value, ok bool) {
	if c.devices == 0 {
		return v, v.kind != kindOther || !lists
	}
	if !c.distinct {
		return c.common.intersect(v)
	}
	if v.kind == kindOther {
		return value{}, false
	}
	for _, seen := range c.seen {
		if _, overlap := seen.intersect(v); overlap {
			return value{}, false
		}
	}
	return value{}, true
}

// attribute returns the device's value of the constraint's attribute for the alternative; found
// is false when the device has none. The error is that of a derived attribute.
func (s *search) attribute(ctx context.Context, c *constraint, a *alternative, d *device) (v value, found bool, err error) {
	var attr *resourceapi.DeviceAttribute
	if expression, derived := a.derived[c.name]; derived {
		if attr, err = s.derived(ctx, expression, d); err != nil {
			return value{}, false, fmt.Errorf("derived attribute %q: %w", c.name, err)
		}
	} else {
		attr = c.published(d)
	}
	switch {
	case attr == nil:
		return value{}, false, nil
	case s.o.Features.ListTypeAttributes:
		return listValue(attr), true, nil
	}
	return scalarValue(attr), true, nil
}

// published returns the attribute that the driver published: under its full name, or without
// domain if that is the driver's.
func (c *constraint) published(d *device) *resourceapi.DeviceAttribute {
	if attr, ok := d.api.Attributes[resourceapi.QualifiedName(c.name)]; ok {
		return &attr
	}
	if c.domain != d.slice.api.Spec.Driver || c.id == "" {
		return nil
	}
	if attr, ok := d.api.Attributes[resourceapi.QualifiedName(c.id)]; ok {
		return &attr
	}
	return nil
}

type derivedKey struct {
	expression string
	device     *device
}

// derived evaluates a derived attribute, once per device and expression.
func (s *search) derived(ctx context.Context, expression string, d *device) (*resourceapi.DeviceAttribute, error) {
	key := derivedKey{expression: expression, device: d}
	if attr, found := s.derivedValues[key]; found {
		return attr, nil
	}
	p := s.inv.engine.derivedAttribute(expression)
	if p.err != nil {
		return nil, p.err
	}
	attr, details, err := p.result.EvaluateDerivedAttribute(ctx, d.celDevice())
	if details != nil && details.ActualCost() != nil {
		s.cost += *details.ActualCost()
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("on device %q: CEL runtime error: %w", d.id(), cel.EnhanceRuntimeError(err))
	case s.cost > s.o.MaxCost:
		return nil, ErrSteps
	}
	if s.derivedValues == nil {
		s.derivedValues = map[derivedKey]*resourceapi.DeviceAttribute{}
	}
	s.derivedValues[key] = attr
	return attr, nil
}
