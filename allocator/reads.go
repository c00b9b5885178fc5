package allocator

import (
	"encoding/binary"
	"slices"
	"strings"

	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// reads is which parts of a device an expression can read, besides the driver and
// allowMultipleAllocations. Devices with equal parts have equal results.
type reads struct {
	attributes, capacities reading
}

// reading is about one of the two maps of a device.
type reading struct {
	all     bool
	domains []string    // everything of these domains, sorted
	names   []qualified // single entries, sorted
}

type qualified struct{ domain, id string }

// Names of the device's fields in CEL.
const (
	celDevice     = "device"
	celDriver     = "driver"
	celShareable  = "allowMultipleAllocations"
	celAttributes = "attributes"
	celCapacity   = "capacity"
)

// readsOf looks at the checked expression. Whatever it does not recognise counts as reading
// everything.
func readsOf(c *cel.CompilationResult) reads {
	everything := reads{attributes: reading{all: true}, capacities: reading{all: true}}
	checked, issues := c.Environment.Compile(c.Expression)
	if issues.Err() != nil {
		return everything
	}
	r := reads{}
	if !r.walk(checked.NativeRep().Expr()) {
		return everything
	}
	r.attributes.sort()
	r.capacities.sort()
	return r
}

func (r *reading) sort() {
	slices.Sort(r.domains)
	r.domains = slices.Compact(r.domains)
	slices.SortFunc(r.names, func(a, b qualified) int {
		return strings.Compare(a.domain+"\x00"+a.id, b.domain+"\x00"+b.id)
	})
	r.names = slices.Compact(r.names)
}

// walk adds what the expression reads. False: it may read anything.
func (r *reads) walk(e celast.Expr) bool {
	if path, ok := devicePath(e); ok {
		return r.add(path)
	}
	switch e.Kind() {
	case celast.LiteralKind, celast.IdentKind, celast.UnspecifiedExprKind:
		return true
	case celast.SelectKind:
		return r.walk(e.AsSelect().Operand())
	case celast.CallKind:
		call := e.AsCall()
		return (!call.IsMemberFunction() || r.walk(call.Target())) && r.walkAll(call.Args())
	case celast.ListKind:
		return r.walkAll(e.AsList().Elements())
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		if c.IterVar() == celDevice || c.IterVar2() == celDevice || c.AccuVar() == celDevice {
			return false // shadows the device
		}
		return r.walkAll([]celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	case celast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			if !r.walk(entry.AsMapEntry().Key()) || !r.walk(entry.AsMapEntry().Value()) {
				return false
			}
		}
		return true
	}
	return false
}

func (r *reads) walkAll(list []celast.Expr) bool {
	for _, e := range list {
		if !r.walk(e) {
			return false
		}
	}
	return true
}

// add takes a path below the device, at most three long.
func (r *reads) add(path []string) bool {
	if len(path) == 0 {
		return false
	}
	var into *reading
	switch path[0] {
	case celAttributes:
		into = &r.attributes
	case celCapacity:
		into = &r.capacities
	default:
		return true // driver, allowMultipleAllocations
	}
	switch len(path) {
	case 1:
		into.all = true
	case 2:
		into.domains = append(into.domains, path[1])
	default:
		into.names = append(into.names, qualified{domain: path[1], id: path[2]})
	}
	return true
}

// devicePath returns the constant path of a chain of selections and indexes that begins at the
// device; ok is false when the expression is none. What follows the third step is of no matter.
func devicePath(e celast.Expr) (path []string, ok bool) {
	switch e.Kind() {
	case celast.IdentKind:
		return nil, e.AsIdent() == celDevice
	case celast.SelectKind:
		s := e.AsSelect()
		path, ok = devicePath(s.Operand())
		return step(path, s.FieldName()), ok
	case celast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != "_[_]" || len(call.Args()) != 2 || call.Args()[1].Kind() != celast.LiteralKind {
			return nil, false
		}
		key, isString := call.Args()[1].AsLiteral().(types.String)
		path, ok = devicePath(call.Args()[0])
		return step(path, string(key)), ok && isString
	}
	return nil, false
}

func step(path []string, name string) []string {
	if len(path) >= 3 {
		return path
	}
	return append(path, name)
}

// valuesOf returns the parts of the device as a key for remembering.
func (r *reads) valuesOf(d *device) string {
	driver := d.slice.api.Spec.Driver
	key := make([]byte, 0, 128)
	key = append(key, flags(d.broken, d.shareable))
	key = appendString(key, driver)
	key = appendParts(key, &r.attributes, driver, d.api.Attributes, appendAttribute)
	key = appendParts(key, &r.capacities, driver, d.api.Capacity, appendCapacity)
	return string(key)
}

func flags(list ...bool) (b byte) {
	for i, f := range list {
		if f {
			b |= 1 << i
		}
	}
	return b
}

// appendParts appends the entries of one map that are read.
func appendParts[V any](key []byte, r *reading, driver string, m map[resourceapi.QualifiedName]V, appendValue func([]byte, *V) []byte) []byte {
	if r.all || len(r.domains) > 0 {
		for _, name := range sortedKeys(m) {
			domain, _ := split(name, driver)
			if r.all || slices.Contains(r.domains, domain) {
				v := m[name]
				key = appendValue(appendString(key, string(name)), &v)
			}
		}
		key = append(key, 0xff)
	}
	for _, n := range r.names {
		if v, ok := m[resourceapi.QualifiedName(n.domain+"/"+n.id)]; ok {
			key = appendValue(append(key, 1), &v)
		}
		if n.domain == driver {
			if v, ok := m[resourceapi.QualifiedName(n.id)]; ok {
				key = appendValue(append(key, 2), &v)
			}
		}
		key = append(key, 0)
	}
	return key
}

// split returns domain and name; names without a domain are of the driver's.
func split(name resourceapi.QualifiedName, driver string) (domain, id string) {
	if domain, id, ok := strings.Cut(string(name), "/"); ok {
		return domain, id
	}
	return driver, string(name)
}

func appendString(key []byte, s string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(s))), s...)
}

func appendCapacity(key []byte, c *resourceapi.DeviceCapacity) []byte {
	a := amountOf(c.Value)
	return binary.AppendUvarint(binary.AppendVarint(key, a.hi), a.lo)
}

func appendAttribute(key []byte, a *resourceapi.DeviceAttribute) []byte {
	key = append(key, flags(a.IntValue != nil, a.BoolValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.IntValues != nil, a.BoolValues != nil, a.StringValues != nil, a.VersionValues != nil))
	if a.IntValue != nil {
		key = binary.AppendVarint(key, *a.IntValue)
	}
	if a.BoolValue != nil {
		key = append(key, flags(*a.BoolValue))
	}
	if a.StringValue != nil {
		key = appendString(key, *a.StringValue)
	}
	if a.VersionValue != nil {
		key = appendString(key, *a.VersionValue)
	}
	if a.IntValues == nil && a.BoolValues == nil && a.StringValues == nil && a.VersionValues == nil {
		return key
	}
	key = binary.AppendUvarint(key, uint64(len(a.IntValues)+len(a.BoolValues)+len(a.StringValues)+len(a.VersionValues)))
	for _, v := range a.IntValues {
		key = binary.AppendVarint(key, v)
	}
	for _, v := range a.BoolValues {
		key = append(key, flags(v))
	}
	for _, v := range append(slices.Clip(a.StringValues), a.VersionValues...) {
		key = appendString(key, v)
	}
	return key
}
