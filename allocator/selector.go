package allocator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

// CompileSelector tells whether the API server would accept the CEL expression as a device
// selector of a new object: it compiles, is at most 10 KiB long, and its estimated cost is
// within the API's limit.
//
// Source: kubernetes pkg/apis/resource/validation/validation.go, validateCELSelector (v1.37).
func CompileSelector(expression string) error {
	switch {
	case expression == "":
		return errors.New("expression is empty")
	case len(expression) > resourceapi.CELSelectorExpressionMaxLength:
		return fmt.Errorf("expression is longer than %d bytes", resourceapi.CELSelectorExpressionMaxLength)
	}
	env := environment.NewExpressions
	result := cel.GetCompiler(celFeatures()).CompileCELExpression(expression, cel.Options{EnvType: &env})
	switch {
	case result.Error != nil:
		return result.Error
	case result.MaxCost > resourceapi.CELSelectorExpressionMaxCost:
		return fmt.Errorf("estimated cost %d exceeds the limit of %d", result.MaxCost, resourceapi.CELSelectorExpressionMaxCost)
	}
	return nil
}

// celFeatures matter for new expressions only: stored ones get everything.
func celFeatures() cel.Features { return cel.Features{EnableConsumableCapacity: true} }

// engine compiles expressions and remembers them with their results. It is shared by all
// Inventories of a Builder and safe for concurrent use.
type engine struct {
	compile func(expression string, o cel.Options) cel.CompilationResult

	searches sync.Pool // of *search
	results  atomic.Pointer[results]

	mu       sync.Mutex // protects following
	programs map[programKey]*program
	// length of all their expressions.
	length int
}

// search returns a search to begin; done gives it back.
func (e *engine) search() *search {
	if s, ok := e.searches.Get().(*search); ok {
		return s
	}
	return &search{}
}

func (e *engine) done(s *search) { e.searches.Put(s) }

type programKey struct {
	expression string
	derived    bool
}

// Bounds of what is remembered, whoever wrote the expressions: a tenant may send a new one with
// each claim. Whatever exceeds them is forgotten and made again.
const (
	maxPrograms        = 2048
	maxExpressions     = 256 << 10 // length of the expressions of all programs
	maxResults         = 64 << 20  // memory of the results of all programs by value
	maxOutcomesOfSlice = 16        // programs with results by device, per slice
)

func newEngine() *engine {
	e := &engine{
		compile:  cel.GetCompiler(celFeatures()).CompileCELExpression,
		programs: map[programKey]*program{},
	}
	e.results.Store(&results{})
	return e
}

// results are what programs said, by the values that they read. Safe for concurrent use.
type results struct {
	size atomic.Int64
	of   sync.Map // resultKey -> outcome
}

type resultKey struct {
	program *program
	values  string
}

// resultSize is about what a result takes beside the values.
const resultSize = 160

// remember keeps a result, and forgets all others when they take too much memory.
func (e *engine) remember(key resultKey, o outcome) {
	r, added := e.results.Load(), int64(len(key.values)+resultSize)
	if r.size.Add(added) > maxResults {
		next := &results{}
		next.size.Store(added)
		if !e.results.CompareAndSwap(r, next) {
			return
		}
		r = next
	}
	r.of.Store(key, o)
}

// program is a compiled expression, or the reason why it does not compile.
type program struct {
	engine *engine
	key    programKey
	result cel.CompilationResult
	err    error
	reads  reads

	nevers sync.Map // driver -> bool
}

// selector returns the compiled selector. Errors are in it.
func (e *engine) selector(expression string) *program {
	return e.program(programKey{expression: expression})
}

// derived returns the compiled expression of a derived attribute.
func (e *engine) derivedAttribute(expression string) *program {
	return e.program(programKey{expression: expression, derived: true})
}

func (e *engine) program(key programKey) *program {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.programs[key]; p != nil {
		return p
	}
	p := &program{engine: e, key: key}
	p.result = e.compile(key.expression, cel.Options{DisableCostEstimation: true, DerivedAttribute: key.derived})
	if p.result.Error != nil {
		p.err = fmt.Errorf("CEL compile error: %w", p.result.Error)
	} else {
		p.reads = readsOf(&p.result)
	}
	if e.length += len(key.expression); len(e.programs) >= maxPrograms || e.length > maxExpressions {
		clear(e.programs)
		e.results.Store(&results{}) // they keep their programs
		e.length = len(key.expression)
	}
	e.programs[key] = p
	return p
}

// outcome is the result of a selector on a device, with its cost in the upper bits.
type outcome uint32

const (
	outcomeUnknown outcome = iota
	outcomeFalse
	outcomeTrue
	outcomeError

	outcomeMask  = 3
	outcomeShift = 2
)

func (o outcome) kind() outcome { return o & outcomeMask }
func (o outcome) cost() uint64  { return uint64(o >> outcomeShift) }

// outcomes are the results of one program on the devices of one slice.
type outcomes struct {
	program *program
	devices []atomic.Uint32
	// unknown is how many devices have no outcome yet, hits how many are not false.
	unknown, hits atomic.Int32
}

// none tells that the program is known to be false for all devices of the slice.
func (o *outcomes) none() bool { return o.unknown.Load() == 0 && o.hits.Load() == 0 }

// outcomesOf returns what is remembered of the program on the slice.
func (s *slice) outcomesOf(p *program) *outcomes {
	if known := s.known(p); known != nil {
		return known
	}
	added := &outcomes{program: p, devices: make([]atomic.Uint32, len(s.devices))}
	added.unknown.Store(int32(len(s.devices)))
	next := []*outcomes{added}
	list := s.outcomes.Load()
	if list != nil {
		next = append(next, (*list)[:min(len(*list), maxOutcomesOfSlice-1)]...)
	}
	s.outcomes.CompareAndSwap(list, &next) // whoever loses evaluates again
	return added
}

// known returns what is remembered of the program, nil if that is nothing.
func (s *slice) known(p *program) *outcomes {
	if list := s.outcomes.Load(); list != nil {
		for _, o := range *list {
			if o.program == p {
				return o
			}
		}
	}
	return nil
}

// noneFor tells that a selector of the alternative is known to be false for all devices of the
// slice.
func (s *slice) noneFor(a *alternative) bool {
	for _, p := range a.programs {
		if o := s.known(p); o != nil && o.none() {
			return true
		}
	}
	return false
}

// on returns the outcome for the device. The error is that of ctx only.
func (o *outcomes) on(ctx context.Context, d *device) (outcome, error) {
	if known := outcome(o.devices[d.index].Load()); known != outcomeUnknown {
		return known, nil
	}
	result, err := o.program.remembered(ctx, d)
	if err != nil {
		return outcomeUnknown, err
	}
	if o.devices[d.index].CompareAndSwap(uint32(outcomeUnknown), uint32(result)) {
		if result.kind() != outcomeFalse {
			o.hits.Add(1)
		}
		o.unknown.Add(-1)
	}
	return result, nil
}

// remembered returns the outcome for the device, from memory if the program has seen a device
// with the same values of what it reads.
func (p *program) remembered(ctx context.Context, d *device) (outcome, error) {
	if p.err != nil {
		return outcomeError, nil
	}
	key := resultKey{p, p.reads.valuesOf(d)}
	if known, found := p.engine.results.Load().of.Load(key); found {
		return known.(outcome), nil
	}
	matches, cost, err := p.evaluate(ctx, d)
	if ctxErr := ctx.Err(); err != nil && ctxErr != nil {
		return outcomeUnknown, context.Cause(ctx)
	}
	result := outcomeFalse
	switch {
	case err != nil:
		result = outcomeError
	case matches:
		result = outcomeTrue
	}
	result |= outcome(cost << outcomeShift)
	p.engine.remember(key, result)
	return result, nil
}

// evaluate runs the selector on the device.
func (p *program) evaluate(ctx context.Context, d *device) (matches bool, cost uint64, err error) {
	matches, details, err := p.result.DeviceMatches(ctx, d.celDevice())
	if details != nil && details.ActualCost() != nil {
		cost = min(*details.ActualCost(), 1<<(32-outcomeShift)-1)
	}
	return matches, cost, err
}

// failure returns why the selector fails on the device; it is not remembered.
func (p *program) failure(ctx context.Context, d *device) error {
	if p.err != nil {
		return p.err
	}
	_, _, err := p.evaluate(ctx, d)
	if err == nil {
		return errors.New("CEL runtime error: unstable result")
	}
	return fmt.Errorf("on device %q: CEL runtime error: %w", d.id(), cel.EnhanceRuntimeError(err))
}

// never tells whether the selector is false for every device of the driver: when only the driver
// is known and all else unknown.
func (p *program) never(driver string) bool {
	if p.err != nil {
		return false
	}
	if known, found := p.nevers.Load(driver); found {
		return known.(bool)
	}
	never := p.partiallyFalse(driver)
	p.nevers.Store(driver, never)
	return never
}

func (p *program) partiallyFalse(driver string) bool {
	checked, issues := p.result.Environment.Compile(p.key.expression)
	if issues.Err() != nil {
		return false
	}
	partial, err := p.result.Environment.Program(checked, celgo.EvalOptions(celgo.OptPartialEval))
	if err != nil {
		return false
	}
	vars, err := celgo.PartialVars(
		map[string]any{celDevice: map[string]any{celDriver: driver}},
		celgo.AttributePattern(celDevice).QualString(celAttributes),
		celgo.AttributePattern(celDevice).QualString(celCapacity),
		celgo.AttributePattern(celDevice).QualString(celShareable))
	if err != nil {
		return false
	}
	result, _, err := partial.Eval(vars)
	return err == nil && result == types.False
}

func (d *device) celDevice() cel.Device {
	return cel.Device{
		Driver:                   d.slice.api.Spec.Driver,
		AllowMultipleAllocations: d.api.AllowMultipleAllocations,
		Attributes:               d.api.Attributes,
		Capacity:                 d.api.Capacity,
	}
}
