package sim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// account is what counts against one quota.
//
// Invariant: while by is set, byNamespace has exactly the covered projects with the sums of
// their objects, as by charges them, and used is the sum of those.
type account struct {
	quota       *quota.Quota
	by          *quota.Charger
	used        corev1.ResourceList
	byNamespace map[string]corev1.ResourceList
	// uncomputed are the known charges of objects that are not computable now.
	uncomputed map[types.UID]corev1.ResourceList
}

// cost is what one object costs one quota. Source: quota/cluster, cost.
type cost struct {
	quota  *quota.Quota
	by     *quota.Charger
	charge corev1.ResourceList
	// known is the last charge that could be computed, nil when none could.
	known    corev1.ResourceList
	computed bool
}

// coversLocked tells whether the quota covers the project.
func (s *state) coversLocked(q *quota.Quota, p *project) bool {
	return p.known && !s.exempt[p.meta.Name] && q.Selector.Matches(p.meta.Labels, p.meta.Annotations)
}

// costLocked returns what the object costs the quota now.
func (s *state) costLocked(o *object, q *quota.Quota) cost {
	charger := s.chargerLocked()
	c, ok := o.costs[q.Name]
	if ok && c.quota == q && c.by == charger {
		return c
	}
	next := cost{quota: q, by: charger, known: c.known}
	if o.claim != nil {
		next.charge, next.computed = charger.Claim(o.claim, q, c.known)
	} else {
		next.charge, next.computed = charger.CountPod(o.pod, q, c.known)
	}
	if next.computed {
		next.known = next.charge
	}
	o.costs[q.Name] = next
	return next
}

// effectiveLocked is what the object adds to the quota's use: nothing for a pod whose claim is
// charged in its stead.
func (s *state) effectiveLocked(o *object, q *quota.Quota) corev1.ResourceList {
	if o.pod != nil {
		if status := o.pod.Status.ExtendedResourceClaimStatus; status != nil {
			claim := s.names[name{quota.Claims, o.name.namespace, status.ResourceClaimName}]
			if claim != nil && quota.Recognised(claim.claim, o.pod) {
				return nil
			}
		}
	}
	return s.costLocked(o, q).charge
}

// countLocked brings the account up to date.
func (s *state) countLocked(a *account) {
	charger := s.chargerLocked()
	if a.by == charger {
		return
	}
	a.used, a.byNamespace = corev1.ResourceList{}, map[string]corev1.ResourceList{}
	a.uncomputed = map[types.UID]corev1.ResourceList{}
	for _, p := range s.projects {
		if !s.coversLocked(a.quota, p) {
			continue
		}
		sum := corev1.ResourceList{}
		for _, o := range p.objects {
			quota.AddTo(sum, s.includeLocked(o, a))
		}
		a.byNamespace[p.meta.Name] = sum
		quota.AddTo(a.used, sum)
	}
	a.by = charger
}

// recountLocked makes the accounts follow one object that appears, changes or (there is false)
// goes, by what they count for it so far.
func (s *state) recountLocked(o *object, there bool) {
	p := s.projectLocked(o.name.namespace)
	charger := s.chargerLocked()
	for _, a := range s.accounts {
		if !s.coversLocked(a.quota, p) {
			continue
		}
		s.forgetLocked(o, a.quota)
		if a.by != charger {
			a.by = nil // counted anew when somebody asks
			continue
		}
		before := o.counted[a.quota.Name]
		var after corev1.ResourceList
		delete(a.uncomputed, o.uid)
		if there {
			after = s.includeLocked(o, a)
		}
		a.used = quota.Positive(quota.Add(quota.Sub(a.used, before), after))
		a.byNamespace[p.meta.Name] = quota.Positive(quota.Add(quota.Sub(a.byNamespace[p.meta.Name], before), after))
	}
}

// recountOwnerLocked follows a claim whose pod may now be charged by it, or no longer.
func (s *state) recountOwnerLocked(o *object) {
	if o.claim == nil {
		return
	}
	if owner := metav1.GetControllerOfNoCopy(o.claim); owner != nil {
		if pod := s.objects[owner.UID]; pod != nil && pod.pod != nil && asksExtended(pod.pod) {
			s.recountLocked(pod, true)
		}
	}
}

// includeLocked returns what the account counts for the object from now on.
func (s *state) includeLocked(o *object, a *account) corev1.ResourceList {
	charge := s.effectiveLocked(o, a.quota)
	o.counted[a.quota.Name] = charge
	if c := o.costs[a.quota.Name]; c.quota == a.quota && !c.computed && c.known != nil {
		a.uncomputed[o.uid] = c.known
	}
	return charge
}

// forgetLocked makes the object's cost be computed anew; what was known is kept.
func (s *state) forgetLocked(o *object, q *quota.Quota) {
	if c, ok := o.costs[q.Name]; ok {
		o.costs[q.Name] = cost{known: c.known}
	}
}

// recoverLocked makes all accounts be counted anew: projects changed.
func (s *state) recoverLocked() {
	for _, a := range s.accounts {
		a.by = nil
	}
}

// observeLocked recounts one quota, by last when it is gone.
func (s *state) observeLocked(n string, last *quota.Quota, uids []types.UID) quota.Observed {
	o := quota.Observed{Recorded: s.recorded, Used: corev1.ResourceList{}, ByNamespace: map[string]corev1.ResourceList{},
		Present: map[types.UID]bool{}, Charges: map[types.UID]corev1.ResourceList{}, Unrecognised: map[types.UID]bool{}}
	for c := range o.Version {
		o.Version[c] = s.version
	}
	a := s.accounts[n]
	if a != nil {
		o.Quota = a.quota
	} else if last != nil {
		a = &account{quota: last}
	}
	if a != nil {
		s.countLocked(a)
		o.Used, o.ByNamespace = quota.Copy(a.used), maps.Clone(a.byNamespace)
		o.Remembered = a.remembered()
	}
	for _, uid := range uids {
		object := s.objects[uid]
		o.Present[uid] = object != nil || s.gone[uid]
		if object == nil {
			continue
		}
		if a != nil && s.coversLocked(a.quota, s.projectLocked(object.name.namespace)) {
			o.Charges[uid] = s.effectiveLocked(object, a.quota)
		}
		if object.claim != nil {
			o.Unrecognised[uid] = s.unrecognisedLocked(object.claim)
		}
	}
	return o
}

// remembered are the charges of objects that were computable once and are not now, sorted.
func (a *account) remembered() []v1alpha1.RememberedCharge {
	var out []v1alpha1.RememberedCharge
	for _, uid := range slices.Sorted(maps.Keys(a.uncomputed)) {
		out = append(out, v1alpha1.RememberedCharge{UID: uid, Charge: a.uncomputed[uid]})
	}
	return out
}

// unrecognisedLocked tells whether the claim's controller is a running pod whose status does not name it.
func (s *state) unrecognisedLocked(claim *resourceapi.ResourceClaim) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.Kind != "Pod" {
		return false
	}
	o := s.objects[owner.UID]
	return o != nil && o.pod != nil && o.name.namespace == claim.Namespace && asksExtended(o.pod) &&
		!quota.Terminal(o.pod) && !quota.Recognised(claim, o.pod)
}
