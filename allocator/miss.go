package allocator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// miss says in words what would be needed and what the closest device has: for a capacity
// request, or for a comparison in a selector.
func (s *search) miss(ctx context.Context, a *alternative, u *UnfitRequest) string {
	if int64(u.Usable) >= max(u.Wanted, 1) {
		return ""
	}
	if text := s.capacityMiss(ctx, a); text != "" {
		return text
	}
	for _, p := range a.programs[a.classPrograms:] {
		for _, c := range p.comparisons() {
			if text := s.comparisonMiss(ctx, a, c); text != "" {
				return text
			}
		}
	}
	return ""
}

// capacityMiss looks at what the request asks of capacities.
func (s *search) capacityMiss(ctx context.Context, a *alternative) string {
	if a.capacity == nil {
		return ""
	}
	for _, name := range sortedKeys(a.capacity.Requests) {
		want := a.capacity.Requests[name]
		best, found, enough := amount{}, false, false
		var format resource.Format
		s.selected(ctx, a, func(vs *viewSlice, d *device) {
			for _, c := range d.capacities {
				if c.name != name || s.inUse(a, vs, d, d.shareable) {
					continue
				}
				left := c.value
				if use := s.use(vs).of(d.name); use != nil {
					left = left.sub(use.capacity[name])
				}
				enough = enough || left.cmp(amountOf(want)) >= 0
				if !found || left.cmp(best) > 0 {
					best, found, format = left, true, c.api.Value.Format
				}
			}
		})
		if found && !enough {
			return fmt.Sprintf("needs %s >= %s; the largest free device has %s", name, want.String(), best.quantity(format).String())
		}
	}
	return ""
}

// selected calls f for the devices that all selectors select.
func (s *search) selected(ctx context.Context, a *alternative, f func(vs *viewSlice, d *device)) {
	for i := range s.view.slices {
		vs := &s.view.slices[i]
		for j := range vs.devices {
			if reason, _, err := s.selection(ctx, a, &vs.devices[j]); reason == "" && err == nil {
				f(vs, &vs.devices[j])
			}
		}
	}
}

// comparison is a part of a selector, joined with && to the others, that compares an attribute
// or capacity with a constant.
type comparison struct {
	domain, id string
	capacity   bool
	operator   string // >=, >, <=, <, ==
	text       string // the constant as in the expression
	quantity   *resource.Quantity
	number     *int64
	str        *string
}

// comparisons returns those of the selector.
func (p *program) comparisons() []comparison {
	if p.err != nil {
		return nil
	}
	checked, issues := p.result.Environment.Compile(p.key.expression)
	if issues.Err() != nil {
		return nil
	}
	return conjuncts(checked.NativeRep().Expr(), nil)
}

func conjuncts(e celast.Expr, list []comparison) []comparison {
	if e.Kind() != celast.CallKind {
		return list
	}
	call := e.AsCall()
	if call.FunctionName() == "_&&_" {
		return conjuncts(call.Args()[1], conjuncts(call.Args()[0], list))
	}
	if c, ok := compared(call); ok {
		list = append(list, c)
	}
	return list
}

var operators = map[string]string{
	"_>=_": ">=", "_>_": ">", "_<=_": "<=", "_<_": "<", "_==_": "==",
	"isGreaterThan": ">", "isLessThan": "<",
}

// compared recognises device.attributes[d].n OP constant, device.capacity[d].n.compareTo(
// quantity(q)) OP 0 and device.capacity[d].n.isGreaterThan(quantity(q)).
func compared(call celast.CallExpr) (c comparison, ok bool) {
	c.operator, ok = operators[call.FunctionName()]
	if !ok {
		return c, false
	}
	if call.IsMemberFunction() {
		return c, c.of(call.Target()) && len(call.Args()) == 1 && c.quantityOf(call.Args()[0])
	}
	left, right := call.Args()[0], call.Args()[1]
	if left.Kind() == celast.CallKind && left.AsCall().FunctionName() == "compareTo" && left.AsCall().IsMemberFunction() {
		zero := right.Kind() == celast.LiteralKind && right.AsLiteral() == types.Int(0)
		inner := left.AsCall()
		return c, zero && c.of(inner.Target()) && len(inner.Args()) == 1 && c.quantityOf(inner.Args()[0])
	}
	return c, c.of(left) && c.literal(right)
}

// of takes the attribute or capacity that the expression is.
func (c *comparison) of(e celast.Expr) bool {
	path, ok := devicePath(e)
	if !ok || len(path) != 3 || path[0] != celAttributes && path[0] != celCapacity {
		return false
	}
	c.capacity, c.domain, c.id = path[0] == celCapacity, path[1], path[2]
	return true
}

func (c *comparison) literal(e celast.Expr) bool {
	if e.Kind() != celast.LiteralKind {
		return false
	}
	switch v := e.AsLiteral().(type) {
	case types.Int:
		n := int64(v)
		c.number, c.text = &n, fmt.Sprint(n)
	case types.String:
		s := string(v)
		c.str, c.text = &s, fmt.Sprintf("%q", s)
	default:
		return false
	}
	return true
}

func (c *comparison) quantityOf(e celast.Expr) bool {
	if e.Kind() != celast.CallKind || e.AsCall().FunctionName() != "quantity" || len(e.AsCall().Args()) != 1 {
		return false
	}
	arg := e.AsCall().Args()[0]
	if arg.Kind() != celast.LiteralKind {
		return false
	}
	text, ok := arg.AsLiteral().(types.String)
	if !ok {
		return false
	}
	q, err := resource.ParseQuantity(string(text))
	if err != nil {
		return false
	}
	c.quantity, c.text = &q, string(text)
	return true
}

// comparisonMiss looks at the free devices of the class: does one of them pass the comparison,
// and if not, which comes closest?
func (s *search) comparisonMiss(ctx context.Context, a *alternative, c comparison) string {
	class := *a
	class.programs = a.programs[:a.classPrograms]
	var best *amount
	bestText, passes := "", false
	var others []string
	s.selected(ctx, &class, func(vs *viewSlice, d *device) {
		if s.inUse(a, vs, d, d.shareable) {
			return
		}
		x, text, ok := c.valueOn(d)
		if !ok {
			return
		}
		if c.str != nil {
			passes = passes || text == c.text
			others = append(others, text)
			return
		}
		passes = passes || c.holds(x)
		if best == nil || c.closer(x, *best) {
			best, bestText = &x, text
		}
	})
	name := c.domain + "/" + c.id
	switch {
	case passes || best == nil && len(others) == 0:
		return ""
	case c.str != nil:
		slices.Sort(others)
		others = slices.Compact(others)
		const most = 5
		if len(others) > most {
			others = append(others[:most], "...")
		}
		return fmt.Sprintf("needs %s %s %s; free devices have %s", name, c.operator, c.text, strings.Join(others, ", "))
	case c.operator == "<" || c.operator == "<=":
		return fmt.Sprintf("needs %s %s %s; the smallest free device has %s", name, c.operator, c.text, bestText)
	case c.operator == "==":
		return fmt.Sprintf("needs %s == %s; the closest free device has %s", name, c.text, bestText)
	}
	return fmt.Sprintf("needs %s %s %s; the largest free device has %s", name, c.operator, c.text, bestText)
}

// constant is the constant as an amount.
func (c *comparison) constant() amount {
	if c.quantity != nil {
		return amountOf(*c.quantity)
	}
	return nanos(*c.number)
}

// valueOn returns the device's value; ok is false if it has none of the constant's type.
func (c *comparison) valueOn(d *device) (x amount, text string, ok bool) {
	full, bare := resourceapi.QualifiedName(c.domain+"/"+c.id), resourceapi.QualifiedName(c.id)
	own := c.domain == d.slice.api.Spec.Driver
	if c.capacity {
		v, found := d.api.Capacity[full]
		if !found && own {
			v, found = d.api.Capacity[bare]
		}
		return amountOf(v.Value), v.Value.String(), found && c.quantity != nil
	}
	v, found := d.api.Attributes[full]
	if !found && own {
		v, found = d.api.Attributes[bare]
	}
	switch {
	case !found:
	case v.IntValue != nil && c.number != nil:
		return nanos(*v.IntValue), fmt.Sprint(*v.IntValue), true
	case v.StringValue != nil && c.str != nil:
		return amount{}, fmt.Sprintf("%q", *v.StringValue), true
	}
	return amount{}, "", false
}

func (c *comparison) holds(x amount) bool {
	order := x.cmp(c.constant())
	switch c.operator {
	case ">=":
		return order >= 0
	case ">":
		return order > 0
	case "<=":
		return order <= 0
	case "<":
		return order < 0
	}
	return order == 0
}

// closer tells whether x comes closer to passing than y.
func (c *comparison) closer(x, y amount) bool {
	switch c.operator {
	case ">=", ">":
		return x.cmp(y) > 0
	case "<", "<=":
		return x.cmp(y) < 0
	}
	return distance(x, c.constant()).cmp(distance(y, c.constant())) < 0
}

func distance(x, y amount) amount {
	d := x.sub(y)
	if d.sign() < 0 {
		return y.sub(x)
	}
	return d
}
