package quota

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Component is a resource whose versions are observed. Versions compare only within one.
type Component int

const (
	Claims Component = iota
	Pods
	Namespaces
	Quotas
	Slices
	Classes
	Nodes

	// Components is how many there are.
	Components
)

// String returns the plural resource name.
func (c Component) String() string {
	return [Components]string{"claims", "pods", "namespaces", "crqs", "slices", "classes", "nodes"}[c]
}

// Vector is a resourceVersion per component; 0 means never read.
type Vector [Components]uint64

// AtLeast returns true if v is no older than w in every component.
func (v Vector) AtLeast(w Vector) bool {
	for c := range v {
		if v[c] < w[c] {
			return false
		}
	}
	return true
}

// Max returns the component-wise larger versions.
func (v Vector) Max(w Vector) Vector {
	for c := range v {
		v[c] = max(v[c], w[c])
	}
	return v
}

// VectorOf returns the vector that a ledger stores; the error names the malformed component.
func VectorOf(o v1alpha1.ObservedVersions) (Vector, error) {
	var v Vector
	for c, s := range [Components]string{o.Claims, o.Pods, o.Namespaces, o.CRQs, o.Slices, o.Classes, o.Nodes} {
		n, err := ParseVersion(s)
		if err != nil {
			return Vector{}, fmt.Errorf("observed.%s: %w", Component(c), err)
		}
		v[c] = n
	}
	return v, nil
}

// Versions returns the vector as a ledger stores it.
func (v Vector) Versions() v1alpha1.ObservedVersions {
	s := func(c Component) string {
		if v[c] == 0 {
			return ""
		}
		return strconv.FormatUint(v[c], 10)
	}
	return v1alpha1.ObservedVersions{Claims: s(Claims), Pods: s(Pods), Namespaces: s(Namespaces), CRQs: s(Quotas),
		Slices: s(Slices), Classes: s(Classes), Nodes: s(Nodes)}
}

// ParseVersion returns a resourceVersion as a number; empty is 0.
func ParseVersion(resourceVersion string) (uint64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is not a number", resourceVersion)
	}
	return n, nil
}

// Observed is one quota's account as one observation has it.
type Observed struct {
	// Version is, per component, the smallest list or store version the observation was
	// read at: everything up to it is contained.
	Version Vector
	// Recorded is, per component, the largest version of an object that the observation
	// contains. It is what a settle records, because a list's own version runs ahead of idle caches.
	Recorded Vector
	// FromCache, of a live observation, are the components that were taken from a cache all the
	// same: other replicas may have seen more of them before it began.
	FromCache [Components]bool
	// Quota as observed; nil when the observation has none of that name.
	Quota *Quota
	// Used is the total charge of all observed objects.
	Used corev1.ResourceList
	// ByNamespace is the split of Used by project; it sums up to Used.
	// namespace -> charge
	ByNamespace map[string]corev1.ResourceList
	// Present tells for the objects that were asked for whether the observation contains
	// them, whatever project they are in, and that project: an object in a namespace that was
	// not observed yet may be covered or not. Asked for are the holds' objects and their pods.
	Present map[types.UID]bool
	// Charges are what those of them that are counted in Used contribute to it. A pod whose
	// claim is charged in its stead contributes nothing.
	Charges map[types.UID]corev1.ResourceList
	// Unrecognised are those of them that are claims for extended resources of a pod whose
	// status does not name them yet (see Recognised). They are counted in Used in full.
	Unrecognised map[types.UID]bool
	// Remembered are the charges of objects that could not be computed in this observation.
	Remembered []v1alpha1.RememberedCharge
}
