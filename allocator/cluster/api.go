package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	draapiv1beta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	draapiv1beta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
)

// Versions of resource.k8s.io, most preferred first.
const (
	V1      = "v1"
	V1beta2 = "v1beta2"
	V1beta1 = "v1beta1"

	v1alpha3 = "v1alpha3"
)

// ErrNotServed tells that the API server has no resource.k8s.io version that we read.
var ErrNotServed = errors.New("the API server serves none of resource.k8s.io/v1, v1beta2 and v1beta1: enable Dynamic Resource Allocation")

// API reads and writes resource.k8s.io in one served version. Safe for concurrent use.
type API struct {
	// Version is the served version that is used.
	Version string
	// TaintRules is the served version of DeviceTaintRules, empty when there are none.
	TaintRules string
	// CountersBesideDevices: slices may have both; see allocator.BuilderOptions.
	CountersBesideDevices bool

	scheme *runtime.Scheme
}

// NewAPI returns the API in the given version; taintRules may be empty.
func NewAPI(version, taintRules string) (*API, error) {
	switch version {
	case V1, V1beta2, V1beta1:
	default:
		return nil, fmt.Errorf("resource.k8s.io version %q: want %s, %s or %s", version, V1, V1beta2, V1beta1)
	}
	switch taintRules {
	case "", V1, V1beta2, v1alpha3:
	default:
		return nil, fmt.Errorf("version %q of devicetaintrules: want %s, %s or %s", taintRules, V1, V1beta2, v1alpha3)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{AddToScheme, draapiv1beta1.AddToScheme, draapiv1beta2.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return &API{Version: version, TaintRules: taintRules, scheme: scheme}, nil
}

// AddToScheme adds all versions of resource.k8s.io that may be read.
func AddToScheme(scheme *runtime.Scheme) error {
	sb := runtime.NewSchemeBuilder(resourceapi.AddToScheme, resourcev1beta2.AddToScheme, resourcev1beta1.AddToScheme, resourcev1alpha3.AddToScheme)
	return sb.AddToScheme(scheme)
}

// DiscoverAPI asks the API server for its most preferred version. ErrNotServed when it has
// none; another error when it could not be asked.
func DiscoverAPI(ctx context.Context, d discovery.DiscoveryInterface) (*API, error) {
	return discoverAPI(ctx, d, "")
}

// DiscoverVersion is DiscoverAPI for a version that somebody chose. It is an error that the API
// server does not have it.
func DiscoverVersion(ctx context.Context, d discovery.DiscoveryInterface, version string) (*API, error) {
	return discoverAPI(ctx, d, version)
}

// firstSeparateCounters is the Kubernetes version that accepts only slices with counters or with
// devices, not with both.
const firstSeparateCounters = "1.35.0"

func discoverAPI(ctx context.Context, d discovery.DiscoveryInterface, chosen string) (*API, error) {
	served, err := discover(ctx, d)
	if err != nil {
		return nil, err
	}
	claims := served.of("resourceclaims", V1, V1beta2, V1beta1)
	if len(claims) == 0 {
		return nil, ErrNotServed
	}
	if chosen == "" {
		chosen = claims[0]
	}
	if !slices.Contains(claims, chosen) {
		return nil, fmt.Errorf("the API server does not serve resource.k8s.io/%s: it serves %s", chosen, strings.Join(claims, ", "))
	}
	info, err := d.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	kubernetes, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	api, err := NewAPI(chosen, served.taintRules())
	if err != nil {
		return nil, err
	}
	api.CountersBesideDevices = kubernetes.LessThan(utilversion.MustParseGeneric(firstSeparateCounters))
	return api, nil
}

// Outdated asks the API server whether it still serves what a reads, and returns what has
// changed, empty when nothing has: after an upgrade another version may be left, or device taint
// rules may have come. A server that has nothing to read instead is not outdated.
func (a *API) Outdated(ctx context.Context, d discovery.DiscoveryInterface) (string, error) {
	served, err := discover(ctx, d)
	if err != nil {
		return "", err
	}
	claims := served.of("resourceclaims", V1, V1beta2, V1beta1)
	switch rules := served.taintRules(); {
	case len(claims) == 0:
		return "", nil
	case !slices.Contains(claims, a.Version):
		return fmt.Sprintf("resource.k8s.io/%s is served no more, %s is", a.Version, claims[0]), nil
	case a.TaintRules == "" && rules != "":
		return fmt.Sprintf("devicetaintrules are served in resource.k8s.io/%s now", rules), nil
	case a.TaintRules != "" && !served[a.TaintRules+"/devicetaintrules"]:
		return fmt.Sprintf("devicetaintrules are served no more in resource.k8s.io/%s", a.TaintRules), nil
	}
	return "", nil
}

// servedResources has "version/resource" for each resource of resource.k8s.io that is served.
type servedResources map[string]bool

// of returns those of the versions in which the resource is served, in the given order.
func (s servedResources) of(resource string, versions ...string) []string {
	return slices.DeleteFunc(versions, func(v string) bool { return !s[v+"/"+resource] })
}

// taintRules returns the most preferred version of device taint rules, empty when there is none.
func (s servedResources) taintRules() string {
	rules := s.of("devicetaintrules", V1, V1beta2, v1alpha3)
	if len(rules) == 0 {
		return ""
	}
	return rules[0]
}

func discover(ctx context.Context, d discovery.DiscoveryInterface) (servedResources, error) {
	served := servedResources{}
	for _, version := range []string{V1, V1beta2, V1beta1, v1alpha3} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list, err := d.ServerResourcesForGroupVersion(resourceapi.GroupName + "/" + version)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("discovery of resource.k8s.io/%s: %w", version, err)
		}
		for _, r := range list.APIResources {
			served[version+"/"+r.Name] = true
		}
	}
	return served, nil
}

// GroupVersion returns the served group version.
func (a *API) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: resourceapi.GroupName, Version: a.Version}
}

// New returns an empty object of the kind in the served version.
func (a *API) New(kind string) (client.Object, error) {
	return a.object(a.GroupVersion().WithKind(kind))
}

func (a *API) object(gvk schema.GroupVersionKind) (client.Object, error) {
	o, err := a.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	c, ok := o.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%s is no object", gvk)
	}
	return c, nil
}

// NewList returns an empty list of the kind in the served version.
func (a *API) NewList(kind string) (client.ObjectList, error) {
	return a.list(a.GroupVersion().WithKind(kind + "List"))
}

func (a *API) list(gvk schema.GroupVersionKind) (client.ObjectList, error) {
	o, err := a.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	l, ok := o.(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("%s is no list", gvk)
	}
	return l, nil
}

// Claim returns the claim of any known version as defaulted v1 claim. It takes ownership of obj.
func (a *API) Claim(obj runtime.Object) (*resourceapi.ResourceClaim, error) {
	claim, err := convertTo(a.scheme, obj, &resourceapi.ResourceClaim{})
	if err != nil {
		return nil, err
	}
	allocator.DefaultClaimSpec(&claim.Spec)
	return claim, nil
}

// Claims returns the claims of a list of any known version. It takes ownership of the list.
func (a *API) Claims(list client.ObjectList) ([]*resourceapi.ResourceClaim, error) {
	objs, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	claims := make([]*resourceapi.ResourceClaim, 0, len(objs))
	for _, obj := range objs {
		claim, err := a.Claim(obj)
		if err != nil {
			return nil, err
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// Template returns the template of any known version as defaulted v1 template. It takes ownership of obj.
func (a *API) Template(obj runtime.Object) (*resourceapi.ResourceClaimTemplate, error) {
	t, err := convertTo(a.scheme, obj, &resourceapi.ResourceClaimTemplate{})
	if err != nil {
		return nil, err
	}
	allocator.DefaultClaimSpec(&t.Spec.Spec)
	return t, nil
}

// Slice returns the slice of any known version as v1. It takes ownership of obj.
func (a *API) Slice(obj runtime.Object) (*resourceapi.ResourceSlice, error) {
	return convertTo(a.scheme, obj, &resourceapi.ResourceSlice{})
}

// Class returns the class of any known version as v1. It takes ownership of obj.
func (a *API) Class(obj runtime.Object) (*resourceapi.DeviceClass, error) {
	return convertTo(a.scheme, obj, &resourceapi.DeviceClass{})
}

// TaintRule returns the rule of any known version as v1. It takes ownership of obj.
func (a *API) TaintRule(obj runtime.Object) (*resourceapi.DeviceTaintRule, error) {
	if rule, ok := obj.(*resourcev1alpha3.DeviceTaintRule); ok {
		return taintRuleV1alpha3(rule), nil
	}
	return convertTo(a.scheme, obj, &resourceapi.DeviceTaintRule{})
}

// Served returns the claim in the served version, to be written.
func (a *API) Served(claim *resourceapi.ResourceClaim) (client.Object, error) {
	if a.Version == V1 {
		return claim, nil
	}
	out, err := a.New("ResourceClaim")
	if err != nil {
		return nil, err
	}
	return out, a.scheme.Convert(claim, out, nil)
}

// convertTo returns obj itself when it already is a T.
func convertTo[T runtime.Object](scheme *runtime.Scheme, obj runtime.Object, out T) (T, error) {
	if same, ok := obj.(T); ok {
		return same, nil
	}
	if err := scheme.Convert(obj, out, nil); err != nil {
		return out, err
	}
	// Conversion does not carry the type; typed clients leave it empty too.
	out.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return out, nil
}

// PartialList returns an empty metadata-only list of the kind.
func PartialList(gv schema.GroupVersion, kind string) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(gv.WithKind(kind + "List"))
	return l
}

func isNotFound(err error) bool {
	if err == nil {
		return false
	}
	var status interface{ Status() metav1.Status }
	return errors.As(err, &status) && status.Status().Code == 404 || meta.IsNoMatchError(err)
}
