package quota

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Charge is what one object costs one quota.
type Charge struct {
	// Amounts are the costs by key, only keys that the quota limits; zero amounts are omitted.
	Amounts corev1.ResourceList
	// Unknown are the keys whose amount nobody tells. Amounts may hold a lower bound for them.
	Unknown []UnknownCharge
	// Rules say how each amount came about, in the order of the claim's requests.
	Rules []Rule
	// UnknownClasses are the requested classes that do not exist, sorted.
	UnknownClasses []string
}

// UnknownCharge is a limited key whose amount no published device and no declared footprint tells.
type UnknownCharge struct {
	Key     corev1.ResourceName
	Request string
	Why     string
}

// Rule says how one request was charged for one key.
type Rule struct {
	Key     corev1.ResourceName
	Request string
	Text    string
}

// Charger charges claims and pods by one Inventory. It remembers what it computed: make one
// per Inventory and keep it. Safe for concurrent use. The answers depend on nothing but the
// arguments and the Inventory.
type Charger struct {
	inv Inventory
	// quota signature -> what alternatives cost it
	costs memo[*memo[*cost]]
	// candidates and measure -> footprint
	footprints memo[*footprint]

	aliasesOnce sync.Once
	aliases     map[string][]string // class -> other classes of its devices
}

// How much a Charger remembers: enough for every shape of claim that people write, bounded
// because tenants choose the shapes. Forgetting costs time only.
const (
	maxSignatures = 1024
	maxCosts      = 2048
	maxFootprints = 8192
)

// NewCharger returns a Charger for the Inventory.
func NewCharger(inv Inventory) *Charger {
	c := &Charger{inv: inv}
	c.costs.limit, c.footprints.limit = maxSignatures, maxFootprints
	return c
}

// Inventory returns the Inventory that the Charger charges by.
func (c *Charger) Inventory() Inventory { return c.inv }

// InvalidClaimError says that a claim's spec cannot be charged. The paths begin at "spec".
type InvalidClaimError struct {
	List field.ErrorList
}

// Error returns all problems, each with the field's name.
func (e *InvalidClaimError) Error() string {
	msgs := make([]string, len(e.List))
	for i, err := range e.List {
		msgs[i] = err.Error()
	}
	return strings.Join(msgs, "; ")
}

// Requested returns what a claim with the spec costs the quota before it is allocated: per
// key, no allocation of it by the Inventory costs more.
//
// The error is an InvalidClaimError: a request is neither exactly nor firstAvailable, a count
// is negative, an allocation mode is unknown, or a selector does not compile.
func (c *Charger) Requested(spec *resourceapi.ResourceClaimSpec, q *Quota) (Charge, error) {
	t := newTally(q, true)
	if errs := c.requested(spec, q, t); len(errs) > 0 {
		return Charge{}, &InvalidClaimError{List: errs}
	}
	return t.charge(), nil
}

// requested adds the requested charge of a claim to the tally.
func (c *Charger) requested(spec *resourceapi.ResourceClaimSpec, q *Quota, t *tally) field.ErrorList {
	t.object()
	costs := c.costsOf(q)
	var errs field.ErrorList
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if admin(r) {
			errs = append(errs, checkRequest(r, i)...)
			continue
		}
		alternatives, e := alternativesOf(r, i)
		for _, a := range alternatives {
			a.cost = c.cost(costs, q, a)
			if err := a.cost.err; err != nil {
				e = append(e, a.selectorError(i, err))
			}
		}
		if errs = append(errs, e...); len(errs) == 0 {
			t.request(r.Name, alternatives)
		}
	}
	return errs
}

// admin: a request with adminAccess uses devices beside their users and costs nothing.
func admin(r *resourceapi.DeviceRequest) bool {
	return r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess
}

// servesKey returns true if devices that are requested through the class count for the key,
// those that match for a selector key. sure is false when that cannot be told because the class
// does not exist.
//
// A class counts for the extended resource that it names, also when a newer class serves
// pods that ask for it: all spellings limit the same devices.
func servesKey(k *Key, class string, object *resourceapi.DeviceClass) (serves, sure bool) {
	switch k.Subject {
	case SubjectSelector:
		return true, true
	case SubjectClass:
		return k.Class == class, true
	case SubjectExtendedResource:
		if implicit, ok := strings.CutPrefix(string(k.ExtendedResource), implicitPrefix); ok {
			return implicit == class, true
		}
		if object == nil {
			return false, false
		}
		name := object.Spec.ExtendedResourceName
		return name != nil && *name == string(k.ExtendedResource), true
	}
	return false, true
}
