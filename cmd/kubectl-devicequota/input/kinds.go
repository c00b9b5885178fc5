package input

import (
	"fmt"
	"slices"
	"strings"

	quotav1 "github.com/openshift/api/quota/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Groups of resource kinds. A kind that these do not have is a mistake; one of another group is skipped.
var known = []string{"", "apps", "batch", "resource.k8s.io", "quota.openshift.io", "devicequota.io"}

// accepted are the kinds that are read.
var accepted = []schema.GroupKind{
	{Kind: "Namespace"}, {Kind: "Node"}, {Kind: "Pod"},
	{Group: "apps", Kind: "Deployment"}, {Group: "apps", Kind: "ReplicaSet"},
	{Group: "apps", Kind: "StatefulSet"}, {Group: "apps", Kind: "DaemonSet"},
	{Group: "batch", Kind: "Job"}, {Group: "batch", Kind: "CronJob"},
	{Group: "resource.k8s.io", Kind: "DeviceClass"}, {Group: "resource.k8s.io", Kind: "ResourceSlice"},
	{Group: "resource.k8s.io", Kind: "DeviceTaintRule"}, {Group: "resource.k8s.io", Kind: "ResourceClaim"},
	{Group: "resource.k8s.io", Kind: "ResourceClaimTemplate"},
	{Group: "quota.openshift.io", Kind: "ClusterResourceQuota"},
}

// Reader decodes manifests. Safe for concurrent use.
type Reader struct{ scheme *runtime.Scheme }

// NewReader returns a Reader of all kinds and versions that the product knows.
func NewReader() (*Reader, error) {
	scheme := runtime.NewScheme()
	b := runtime.NewSchemeBuilder(corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme,
		quotav1.AddToScheme, v1alpha1.AddToScheme, devices.AddToScheme)
	if err := b.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return &Reader{scheme: scheme}, nil
}

// header is what every object has.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// kindOf returns the kind, and whether it is read. The error tells what is wrong with it.
func (r *Reader) kindOf(h *header) (gvk schema.GroupVersionKind, read bool, err error) {
	switch {
	case h.APIVersion == "" && h.Kind == "":
		return gvk, false, fmt.Errorf("no Kubernetes object: apiVersion and kind are missing")
	case h.APIVersion == "":
		return gvk, false, fmt.Errorf("%s: apiVersion is missing", h.Kind)
	case h.Kind == "":
		return gvk, false, fmt.Errorf("kind is missing")
	}
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return gvk, false, fmt.Errorf("apiVersion: %w", err)
	}
	gvk = gv.WithKind(h.Kind)
	if !slices.Contains(known, gv.Group) || gvk.GroupKind() == (schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "Scenario"}) {
		return gvk, false, nil
	}
	if !r.scheme.Recognizes(gvk) {
		if versions := r.versions(h.Kind); len(versions) > 0 {
			return gvk, false, fmt.Errorf("kind %q is not in apiVersion %q: want %s", h.Kind, h.APIVersion, strings.Join(versions, " or "))
		}
		return gvk, false, fmt.Errorf("apiVersion %q has no kind %q", h.APIVersion, h.Kind)
	}
	return gvk, slices.Contains(accepted, gvk.GroupKind()), nil
}

// versions returns the apiVersions that have the kind, newest first.
func (r *Reader) versions(kind string) []string {
	var out []string
	for gvk := range r.scheme.AllKnownTypes() {
		if gvk.Kind == kind && gvk.Version != runtime.APIVersionInternal {
			out = append(out, gvk.GroupVersion().String())
		}
	}
	slices.SortFunc(out, cmpVersions)
	return out
}

// cmpVersions orders stable versions before betas.
func cmpVersions(a, b string) int {
	beta := func(s string) int {
		if strings.Contains(s, "alpha") {
			return 2
		}
		if strings.Contains(s, "beta") {
			return 1
		}
		return 0
	}
	if d := beta(a) - beta(b); d != 0 {
		return d
	}
	return strings.Compare(b, a)
}
