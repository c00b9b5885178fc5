package quota

import (
	"slices"
	"strings"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// ParseOptions say how a ClusterResourceQuota is read.
type ParseOptions struct {
	// PlatformKeys: Kubernetes' own keys are left to the platform (OpenShift since 4.21).
	PlatformKeys bool
	// Enforcement of quotas without the annotation; empty means Enforce.
	Enforcement Enforcement
	// Compile checks a CEL device selector; nil checks nothing.
	Compile func(expression string) error
}

// Parse reads a ClusterResourceQuota. It returns a usable quota together with every error
// found, sorted as found: keys that cannot be enforced are in NotEnforced, values that make
// no sense are read as their defaults, a malformed selector selects nothing.
//
// Names that are not about devices are no errors: see NotEnforced.
func Parse(crq *quotav1.ClusterResourceQuota, o ParseOptions) (*Quota, field.ErrorList) {
	q := &Quota{
		Name: crq.Name, UID: crq.UID, Created: crq.CreationTimestamp.Time, Deleting: crq.DeletionTimestamp != nil,
		Hard: Copy(crq.Spec.Quota.Hard),
	}
	var errs field.ErrorList
	var err error
	if q.ResourceVersion, err = ParseVersion(crq.ResourceVersion); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "resourceVersion"), crq.ResourceVersion, err.Error()))
	}
	errs = append(errs, q.parseAnnotations(crq.Annotations)...)
	if _, own := crq.Annotations[EnforcementAnnotation]; !own && o.Enforcement != "" {
		q.Enforcement = o.Enforcement
	}
	errs = append(errs, q.parseKeys(crq, o)...)
	errs = append(errs, q.parseSelector(crq.Spec.Selector)...)
	q.signature = q.sign()
	return q, errs
}

func (q *Quota) parseAnnotations(annotations map[string]string) field.ErrorList {
	var errs field.ErrorList
	q.Enforcement, errs = oneOf(errs, annotations, EnforcementAnnotation, Enforce, Warn, Audit)
	q.UnknownFootprint, errs = oneOf(errs, annotations, UnknownFootprintAnnotation, DenyUnknown, AllowUnknown)
	q.TrueDown, errs = oneOf(errs, annotations, TrueDownAnnotation, TrueDownOwned, TrueDownAlways, TrueDownNever)
	return errs
}

// oneOf returns the annotation's value, the first of the valid values by default.
func oneOf[T ~string](errs field.ErrorList, annotations map[string]string, name string, valid ...T) (T, field.ErrorList) {
	value, ok := annotations[name]
	if !ok {
		return valid[0], errs
	}
	if !slices.Contains(valid, T(value)) {
		return valid[0], append(errs, field.NotSupported(annotationPath(name), T(value), valid))
	}
	return T(value), errs
}

func annotationPath(name string) *field.Path {
	return field.NewPath("metadata", "annotations").Key(name)
}

// parseKeys sorts the keys into Keys, PlatformKeys and NotEnforced.
func (q *Quota) parseKeys(crq *quotav1.ClusterResourceQuota, o ParseOptions) field.ErrorList {
	var errs field.ErrorList
	q.Selectors = map[string]string{}
	// Source: MatchesNoScopeFunc in pkg/quota/v1/evaluator/core/resource_claims.go (v1.37).
	q.Scoped = len(crq.Spec.Quota.Scopes) > 0 || crq.Spec.Quota.ScopeSelector != nil
	for _, name := range SortedKeys(q.Hard) {
		path := field.NewPath("spec", "quota", "hard").Key(string(name))
		key, ours, err := ParseKey(name)
		if err != nil {
			errs = append(errs, field.Invalid(path, string(name), err.Error()))
		}
		if ours && err == nil {
			errs = append(errs, checkLimit(key, q.Hard[name], path)...)
		}
		enforce := ours && err == nil && !q.Scoped
		if enforce && key.Subject == SubjectSelector {
			errs = append(errs, q.parseExpression(key.Selector, crq.Annotations, path, o.Compile)...)
			_, enforce = q.Selectors[key.Selector]
		}
		switch {
		case enforce && key.Platform && o.PlatformKeys:
			q.PlatformKeys = append(q.PlatformKeys, name)
		case enforce:
			q.Keys = append(q.Keys, key)
		default:
			q.NotEnforced = append(q.NotEnforced, name)
		}
	}
	return errs
}

// checkLimit: limits are not negative; those that count are whole.
func checkLimit(key Key, limit resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if limit.Sign() < 0 {
		errs = append(errs, field.Invalid(path, limit.String(), "must be greater than or equal to 0"))
	}
	if whole := limit.DeepCopy(); (key.Measure == MeasureDevices || key.Measure == MeasureObjects) && !whole.RoundUp(0) {
		errs = append(errs, field.Invalid(path, limit.String(), "must be an integer"))
	}
	return errs
}

// parseExpression finds the selector of a key; once per selector. One that does not compile
// is kept: charges by it are unknown, which denies rather than admits.
func (q *Quota) parseExpression(name string, annotations map[string]string, key *field.Path, compile func(string) error) field.ErrorList {
	if _, done := q.Selectors[name]; done {
		return nil
	}
	annotation := SelectorAnnotationPrefix + name
	expression, ok := annotations[annotation]
	if !ok {
		return field.ErrorList{field.Invalid(key, name, "no annotation "+annotation+" tells what the selector selects")}
	}
	if strings.TrimSpace(expression) == "" {
		return field.ErrorList{field.Required(annotationPath(annotation), "must be a CEL device selector")}
	}
	q.Selectors[name] = expression
	if compile != nil {
		if err := compile(expression); err != nil {
			return field.ErrorList{field.Invalid(annotationPath(annotation), expression, err.Error())}
		}
	}
	return nil
}

// parseSelector reads the project selector. An empty one is an error and selects everything,
// as the platform has it.
// Source: ValidateClusterResourceQuota in openshift/kubernetes openshift-kube-apiserver/admission/customresourcevalidation.
func (q *Quota) parseSelector(s quotav1.ClusterResourceQuotaSelector) field.ErrorList {
	path := field.NewPath("spec", "selector")
	var errs field.ErrorList
	if s.LabelSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(s.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("labels"))...)
		if len(s.LabelSelector.MatchLabels)+len(s.LabelSelector.MatchExpressions) == 0 {
			errs = append(errs, field.Invalid(path.Child("labels"), "{}", "must restrict the selected projects"))
		}
	}
	for _, k := range sortedStrings(s.AnnotationSelector) {
		for _, msg := range validation.IsQualifiedName(strings.ToLower(k)) {
			errs = append(errs, field.Invalid(path.Child("annotations").Key(k), k, msg))
		}
	}
	if s.LabelSelector == nil && len(s.AnnotationSelector) == 0 {
		errs = append(errs, field.Required(path, "must restrict the selected projects"))
	}
	var err error
	q.Selector, err = SelectorOf(v1alpha1.LedgerSelector{Labels: s.LabelSelector, Annotations: s.AnnotationSelector})
	if err != nil && len(errs) == 0 {
		errs = append(errs, field.Invalid(path.Child("labels"), "", err.Error()))
	}
	return errs
}

// sortedStrings returns the keys of m, sorted.
func sortedStrings[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// sign returns a text that is equal for quotas that charge alike.
func (q *Quota) sign() string {
	var b strings.Builder
	for i := range q.Keys {
		k := &q.Keys[i]
		b.WriteString(string(k.Name))
		if k.Subject == SubjectSelector {
			b.WriteByte('\x01')
			b.WriteString(q.Selectors[k.Selector])
		}
		b.WriteByte('\x00')
	}
	return b.String()
}

// Limits returns true if the quota enforces the key.
func (q *Quota) Limits(name corev1.ResourceName) bool {
	for i := range q.Keys {
		if q.Keys[i].Name == name {
			return true
		}
	}
	return false
}
