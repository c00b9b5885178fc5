package differential

import (
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
)

// mayServe reports whether a pool that cannot be used now might hold devices for the
// request. It cannot if some selector is false for every device of the driver: false
// when nothing but the driver is known.
func (c *Case) mayServe(a *alternative, p *poolView) bool {
	for _, list := range [][]resourceapi.DeviceSelector{a.class.Spec.Selectors, a.selectors} {
		for _, s := range list {
			if s.CEL != nil && neverTrue(s.CEL.Expression, p.driver) {
				return false
			}
		}
	}
	return true
}

// neverTrues remembers the answers by expression and driver.
var neverTrues sync.Map

func neverTrue(expression, driver string) bool {
	key := driver + "\n" + expression
	if known, ok := neverTrues.Load(key); ok {
		return known.(bool)
	}
	answer := partiallyFalse(expression, driver)
	neverTrues.Store(key, answer)
	return answer
}

// partiallyFalse evaluates the expression with everything but the driver unknown.
func partiallyFalse(expression, driver string) bool {
	compiled := sharedCache.GetOrCompile(expression)
	if compiled.Error != nil {
		return false
	}
	ast, issues := compiled.Environment.Compile(expression)
	if issues.Err() != nil {
		return false
	}
	program, err := compiled.Environment.Program(ast, cel.EvalOptions(cel.OptPartialEval))
	if err != nil {
		return false
	}
	vars, err := cel.PartialVars(map[string]any{"device": map[string]any{"driver": driver}},
		cel.AttributePattern("device").QualString("attributes"),
		cel.AttributePattern("device").QualString("capacity"),
		cel.AttributePattern("device").QualString("allowMultipleAllocations"))
	if err != nil {
		return false
	}
	result, _, err := program.Eval(vars)
	return err == nil && result == types.False
}
