package quota

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Claim returns what an existing claim counts for, as the recount has it: what it holds where
// the quota's true-down applies, else the larger of requested and allocated.
//
// What cannot be computed now counts as remembered, the last known charge of the claim (nil
// when there is none), else as the static worst case. computed is false when anything counts
// so: the charge is not to be remembered, and what was remembered is to be kept.
func (c *Charger) Claim(claim *resourceapi.ResourceClaim, q *Quota, remembered corev1.ResourceList) (charge corev1.ResourceList, computed bool) {
	s := &statement{c: c, claim: claim, q: q, remembered: remembered, computed: true}
	s.requested = newTally(q, false)
	s.requestedKnown = len(c.requested(&claim.Spec, q, s.requested)) == 0
	allocated := claim.Status.Allocation != nil
	if allocated {
		s.allocated = newTally(q, false)
		c.allocated(claim, q, s.allocated)
	}
	down := allocated && (q.TrueDown == TrueDownAlways || q.TrueDown != TrueDownNever && OwnedByItsPod(claim))
	charge = make(corev1.ResourceList, len(q.Keys))
	for i := range q.Keys {
		v := s.amount(i, down)
		if v.Sign() > 0 {
			charge[q.Keys[i].Name] = v.DeepCopy()
		}
	}
	return charge, s.computed
}

// statement puts together what one claim counts for.
type statement struct {
	c                    *Charger
	claim                *resourceapi.ResourceClaim
	q                    *Quota
	remembered           corev1.ResourceList
	requested, allocated *tally
	requestedKnown       bool
	static               corev1.ResourceList
	computed             bool
}

func (s *statement) amount(key int, down bool) resource.Quantity {
	if down {
		if s.allocated.known(key) {
			return s.allocated.values[key]
		}
		return s.fallback(key)
	}
	v := s.requested.values[key]
	if !s.requestedKnown || !s.requested.known(key) {
		v = s.fallback(key)
	}
	if s.allocated == nil {
		return v
	}
	a := s.allocated.values[key]
	if !s.allocated.known(key) {
		a = s.fallback(key)
	}
	if a.Cmp(v) > 0 {
		return a
	}
	return v
}

// known returns true if the amount of the key could be computed.
func (t *tally) known(key int) bool {
	k := &t.q.Keys[key]
	if t.unsure && k.Subject == SubjectExtendedResource {
		_, sure := servesKey(k, "", nil)
		if !sure {
			return false
		}
	}
	for i := range t.unknown {
		if t.unknown[i].Key == k.Name {
			return false
		}
	}
	return true
}

// fallback returns the remembered amount, else the static worst case.
func (s *statement) fallback(key int) resource.Quantity {
	s.computed = false
	name := s.q.Keys[key].Name
	if v, ok := s.remembered[name]; ok {
		return v
	}
	if s.static == nil {
		s.static = s.c.StaticWorst(&s.claim.Spec, s.q)
	}
	return s.static[name]
}

// OwnedByItsPod returns true if the claim's controller reference is a pod and its status is
// reserved for just that pod, by name and UID. Such a claim is not allocated again without
// its pod. Tenants can write owner references; they cannot write status.
func OwnedByItsPod(claim *resourceapi.ResourceClaim) bool {
	if len(claim.Status.ReservedFor) != 1 {
		return false
	}
	owner := podOwner(claim)
	r := &claim.Status.ReservedFor[0]
	return owner != nil && r.APIGroup == "" && r.Resource == "pods" && r.Name == owner.Name && r.UID == owner.UID
}

// podOwner returns the controller reference if it is a pod, else nil.
func podOwner(claim *resourceapi.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" || owner.UID == "" {
		return nil
	}
	return owner
}

// StaticWorst returns the most that a claim with the spec can cost as far as only its classes
// tell: each device is the largest of its class, All means as many as a claim can have, and so
// does a request of a type that is not known, of every class. It is never an error.
func (c *Charger) StaticWorst(spec *resourceapi.ResourceClaimSpec, q *Quota) corev1.ResourceList {
	t := newTally(q, false)
	t.object()
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if admin(r) {
			continue
		}
		alternatives := worstAlternatives(r)
		for key := range q.Keys {
			t.add(key, c.worst(q, key, alternatives), "", "")
		}
	}
	return t.amounts()
}

// worstAlternatives returns the alternatives of a request without their selectors; an
// alternative without a class is of any.
func worstAlternatives(r *resourceapi.DeviceRequest) []*alternative {
	most := func(name, class string, mode resourceapi.DeviceAllocationMode, count int64, capacity *resourceapi.CapacityRequirements) *alternative {
		a := newAlternative(-1, name, class, nil, resourceapi.DeviceAllocationModeExactCount, count, capacity)
		if mode != "" && mode != resourceapi.DeviceAllocationModeExactCount || count < 0 {
			a.count = resourceapi.AllocationResultsMaxSize
		}
		return a
	}
	if e := r.Exactly; e != nil {
		return []*alternative{most("", e.DeviceClassName, e.AllocationMode, e.Count, e.Capacity)}
	}
	var out []*alternative
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		out = append(out, most(s.Name, s.DeviceClassName, s.AllocationMode, s.Count, s.Capacity))
	}
	if len(out) == 0 {
		out = append(out, most("", "", "unknown", 0, nil))
	}
	return out
}

// worst returns the largest amount of the alternatives for one key.
func (c *Charger) worst(q *Quota, key int, alternatives []*alternative) (largest resource.Quantity) {
	k := &q.Keys[key]
	for _, a := range alternatives {
		classes := []string{a.class}
		if a.class == "" {
			classes = c.inv.DeviceClasses()
			if k.Subject == SubjectClass {
				classes = []string{k.Class}
			}
		}
		for _, class := range classes {
			if serves, _ := servesKey(k, class, c.inv.DeviceClass(class)); !serves {
				continue
			}
			one := *a
			one.class = class
			if v := c.amount(&one, q.measureOf(k)).value; v.Cmp(largest) > 0 {
				largest = v
			}
		}
	}
	return largest
}
