package webhooks

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// validateSpec returns what is wrong with the shape of a claim. The API server has found
// most of it before validating webhooks run; offline, and for mutated or future objects,
// nobody has. A request that cannot be read must never count as zero devices.
func validateSpec(spec *resourceapi.ResourceClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	requests := path.Child("devices", "requests")
	if n := len(spec.Devices.Requests); n > resourceapi.DeviceRequestsMaxSize {
		return field.ErrorList{field.TooMany(requests, n, resourceapi.DeviceRequestsMaxSize)}
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		p := requests.Index(i)
		switch {
		case r.Exactly == nil && len(r.FirstAvailable) == 0:
			errs = append(errs, field.Required(p, "exactly one of `exactly` or `firstAvailable` is required"))
		case r.Exactly != nil && len(r.FirstAvailable) > 0:
			errs = append(errs, field.Invalid(p, r.Name, "exactly one of `exactly` or `firstAvailable` is required, but both are set"))
		case r.Exactly != nil:
			e := r.Exactly
			errs = append(errs, validateRequest(e.DeviceClassName, e.AllocationMode, e.Count, e.Selectors, p.Child("exactly"))...)
		default:
			errs = append(errs, validateAlternatives(r.FirstAvailable, p.Child("firstAvailable"))...)
		}
	}
	return errs
}

func validateAlternatives(subs []resourceapi.DeviceSubRequest, path *field.Path) field.ErrorList {
	if len(subs) > resourceapi.FirstAvailableDeviceRequestMaxSize {
		return field.ErrorList{field.TooMany(path, len(subs), resourceapi.FirstAvailableDeviceRequestMaxSize)}
	}
	var errs field.ErrorList
	for j := range subs {
		s := &subs[j]
		errs = append(errs, validateRequest(s.DeviceClassName, s.AllocationMode, s.Count, s.Selectors, path.Index(j))...)
	}
	return errs
}

func validateRequest(class string, mode resourceapi.DeviceAllocationMode, count int64,
	selectors []resourceapi.DeviceSelector, path *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(path.Child("deviceClassName"), ""))
	}
	switch mode {
	case resourceapi.DeviceAllocationModeExactCount:
		if count < 0 {
			errs = append(errs, field.Invalid(path.Child("count"), count, "must be greater than zero"))
		}
	case resourceapi.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs, field.Invalid(path.Child("count"), count, "must not be specified when allocationMode is 'All'"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("allocationMode"), mode,
			[]resourceapi.DeviceAllocationMode{resourceapi.DeviceAllocationModeAll, resourceapi.DeviceAllocationModeExactCount}))
	}
	if n := len(selectors); n > resourceapi.DeviceSelectorsMaxSize {
		return append(errs, field.TooMany(path.Child("selectors"), n, resourceapi.DeviceSelectorsMaxSize))
	}
	for k := range selectors {
		if selectors[k].CEL == nil {
			errs = append(errs, field.Required(path.Child("selectors").Index(k).Child("cel"), ""))
		}
	}
	return errs
}

// compiler compiles CEL device selectors as the API server does, each expression once. Safe
// for concurrent use.
type compiler struct {
	cache *dracel.Cache
}

// compiledExpressions is how many expressions are remembered.
const compiledExpressions = 256

// compilerFeatures are lenient: an API server with fewer features has refused the rest already.
func compilerFeatures() dracel.Features {
	return dracel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true}
}

func newCompiler() *compiler {
	return &compiler{cache: dracel.NewCache(compiledExpressions, compilerFeatures())}
}

// validate returns the selectors of the claim that do not compile.
func (c *compiler) validate(spec *resourceapi.ResourceClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	requests := path.Child("devices", "requests")
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			errs = append(errs, c.selectors(r.Exactly.Selectors, requests.Index(i).Child("exactly", "selectors"))...)
		}
		for j := range r.FirstAvailable {
			p := requests.Index(i).Child("firstAvailable").Index(j).Child("selectors")
			errs = append(errs, c.selectors(r.FirstAvailable[j].Selectors, p)...)
		}
	}
	return errs
}

func (c *compiler) selectors(selectors []resourceapi.DeviceSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for k := range selectors {
		if selectors[k].CEL == nil {
			continue
		}
		expression := selectors[k].CEL.Expression
		p := path.Index(k).Child("cel", "expression")
		if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
			errs = append(errs, field.TooLong(p, "", resourceapi.CELSelectorExpressionMaxLength))
			continue
		}
		if result := c.cache.GetOrCompile(expression); result.Error != nil {
			errs = append(errs, field.Invalid(p, expression, result.Error.Detail))
		}
	}
	return errs
}

// classesOf returns the classes that the claim asks for, sorted, each once.
func classesOf(spec *resourceapi.ResourceClaimSpec) []string {
	var out []string
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			out = append(out, r.Exactly.DeviceClassName)
		}
		for j := range r.FirstAvailable {
			out = append(out, r.FirstAvailable[j].DeviceClassName)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// asksForAdminAccess tells whether a request of the claim does; alternatives cannot.
func asksForAdminAccess(spec *resourceapi.ResourceClaimSpec) bool {
	return slices.ContainsFunc(spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess
	})
}

// newExpression checks an expression that is written now: it must compile, and cost no more
// than the API server lets a device selector cost.
// Source: kubernetes pkg/apis/resource/validation/validation.go, validateCELSelector (v1.37).
func (c *compiler) newExpression(expression string) error {
	if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
		return fmt.Errorf("longer than %d characters", resourceapi.CELSelectorExpressionMaxLength)
	}
	result := dracel.GetCompiler(compilerFeatures()).CompileCELExpression(expression, dracel.Options{})
	if result.Error != nil {
		return errors.New(result.Error.Detail)
	}
	if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		return fmt.Errorf("too complex: may cost %d, the limit is %d", result.MaxCost, uint64(resourceapi.CELSelectorExpressionMaxCost))
	}
	return nil
}
