package webhooks

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// place is where in an object a request or alternative is; its path is made for errors only,
// since paths cost more than the checks.
type place struct {
	root string // path of the claim's spec: spec or spec.spec
	// request is the index of the request; alternative that in firstAvailable, or -1.
	request, alternative int
}

// Roots of places.
const (
	claimRoot    = "spec"
	templateRoot = "spec.spec"
)

func (p place) requestPath() *field.Path {
	root := field.NewPath("spec")
	if p.root == templateRoot {
		root = root.Child("spec")
	}
	return root.Child("devices", "requests").Index(p.request)
}

// path is that of the fields: of exactly, or of the alternative.
func (p place) path() *field.Path {
	if p.alternative < 0 {
		return p.requestPath().Child("exactly")
	}
	return p.requestPath().Child("firstAvailable").Index(p.alternative)
}

// validateSpec returns what is wrong with the shape of a claim. The API server has found
// most of it before validating webhooks run; offline, and for mutated or future objects,
// nobody has. A request that cannot be read must never count as zero devices.
func validateSpec(spec *resourceapi.ResourceClaimSpec, root string) field.ErrorList {
	var errs field.ErrorList
	if n := len(spec.Devices.Requests); n > resourceapi.DeviceRequestsMaxSize {
		return field.ErrorList{field.TooMany(field.NewPath(root, "devices", "requests"), n, resourceapi.DeviceRequestsMaxSize)}
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		p := place{root, i, -1}
		switch {
		case r.Exactly == nil && len(r.FirstAvailable) == 0:
			errs = append(errs, field.Required(p.requestPath(), "exactly one of `exactly` or `firstAvailable` is required"))
		case r.Exactly != nil && len(r.FirstAvailable) > 0:
			errs = append(errs, field.Invalid(p.requestPath(), r.Name, "exactly one of `exactly` or `firstAvailable` is required, but both are set"))
		case r.Exactly != nil:
			e := r.Exactly
			errs = append(errs, validateRequest(e.DeviceClassName, e.AllocationMode, e.Count, e.Selectors, p)...)
		default:
			errs = append(errs, validateAlternatives(r.FirstAvailable, p)...)
		}
	}
	return errs
}

func validateAlternatives(subs []resourceapi.DeviceSubRequest, p place) field.ErrorList {
	if len(subs) > resourceapi.FirstAvailableDeviceRequestMaxSize {
		return field.ErrorList{field.TooMany(p.requestPath().Child("firstAvailable"), len(subs), resourceapi.FirstAvailableDeviceRequestMaxSize)}
	}
	var errs field.ErrorList
	for j := range subs {
		s := &subs[j]
		p.alternative = j
		errs = append(errs, validateRequest(s.DeviceClassName, s.AllocationMode, s.Count, s.Selectors, p)...)
	}
	return errs
}

func validateRequest(class string, mode resourceapi.DeviceAllocationMode, count int64,
	selectors []resourceapi.DeviceSelector, p place,
) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(p.path().Child("deviceClassName"), ""))
	}
	switch mode {
	case resourceapi.DeviceAllocationModeExactCount:
		if count < 0 {
			errs = append(errs, field.Invalid(p.path().Child("count"), count, "must be greater than zero"))
		}
	case resourceapi.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs, field.Invalid(p.path().Child("count"), count, "must not be specified when allocationMode is 'All'"))
		}
	default:
		errs = append(errs, field.NotSupported(p.path().Child("allocationMode"), mode,
			[]resourceapi.DeviceAllocationMode{resourceapi.DeviceAllocationModeAll, resourceapi.DeviceAllocationModeExactCount}))
	}
	if n := len(selectors); n > resourceapi.DeviceSelectorsMaxSize {
		return append(errs, field.TooMany(p.path().Child("selectors"), n, resourceapi.DeviceSelectorsMaxSize))
	}
	for k := range selectors {
		if selectors[k].CEL == nil {
			errs = append(errs, field.Required(p.path().Child("selectors").Index(k).Child("cel"), ""))
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
func (c *compiler) validate(spec *resourceapi.ResourceClaimSpec, root string) field.ErrorList {
	var errs field.ErrorList
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			errs = append(errs, c.selectors(r.Exactly.Selectors, place{root, i, -1})...)
		}
		for j := range r.FirstAvailable {
			errs = append(errs, c.selectors(r.FirstAvailable[j].Selectors, place{root, i, j})...)
		}
	}
	return errs
}

func (c *compiler) selectors(selectors []resourceapi.DeviceSelector, p place) field.ErrorList {
	var errs field.ErrorList
	for k := range selectors {
		if selectors[k].CEL == nil {
			continue
		}
		expression := selectors[k].CEL.Expression
		path := func() *field.Path { return p.path().Child("selectors").Index(k).Child("cel", "expression") }
		if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
			errs = append(errs, field.TooLong(path(), "", resourceapi.CELSelectorExpressionMaxLength))
			continue
		}
		if result := c.cache.GetOrCompile(expression); result.Error != nil {
			errs = append(errs, field.Invalid(path(), expression, result.Error.Detail))
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
