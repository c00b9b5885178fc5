package cluster

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
)

// setObject adds the object or replaces the one of the same name. It returns false if nothing
// changed that charging reads.
func (x *index) setObject(o *object) bool {
	old := x.names[o.name]
	if old != nil && old.uid != o.uid {
		// Its deletion was missed: the name is free only when the object is gone.
		x.removeObject(old)
		old = nil
	}
	if old != nil {
		o.project, o.costs, o.replaced = old.project, old.costs, old.replaced
		delete(o.project.objects, old)
		for _, c := range o.costs {
			if c.account.uncomputed[o.uid] == old {
				c.account.uncomputed[o.uid] = o
			}
		}
	} else {
		o.project = x.projectOf(o.name.namespace)
		x.chargedPods += o.podCount()
	}
	o.project.objects[o] = struct{}{}
	x.names[o.name], x.objects[o.uid] = o, o
	changed := old == nil || !sameCost(old, o)
	if changed {
		x.charge(o)
		x.recognise(o)
		if old != nil {
			x.recognise(old) // its controller may have been another pod
		}
	}
	return changed
}

// podCount is 1 for a pod that asks for extended resources, else 0.
func (o *object) podCount() int {
	if o.pod != nil && asksExtended(o.pod) {
		return 1
	}
	return 0
}

// sameCost tells whether nothing changed that charging reads.
func sameCost(a, b *object) bool {
	if a.claim != nil && b.claim != nil {
		return equalClaims(a.claim, b.claim)
	}
	// What pods ask for is immutable; their status decides whether they are charged.
	return a.pod != nil && b.pod != nil && quota.Terminal(a.pod) == quota.Terminal(b.pod) && extendedClaimName(a.pod) == extendedClaimName(b.pod)
}

// removeObject forgets the object, which is gone.
func (x *index) removeObject(o *object) {
	for _, c := range o.costs {
		delete(c.account.uncomputed, o.uid)
		x.adjust(c.account, o.name.namespace, o.effective(c), nil)
	}
	o.costs = nil
	delete(o.project.objects, o)
	delete(x.names, o.name)
	delete(x.objects, o.uid)
	x.chargedPods -= o.podCount()
	x.dropIfEmpty(o.project)
	x.noteGone(o.uid)
	if o.claim != nil {
		x.recognise(o) // no longer
	}
}

// noteGone remembers the deletion for as long as a hold may wait for the object.
func (x *index) noteGone(uid types.UID) {
	now := x.clock.Now()
	x.gone[uid] = now
	if len(x.gone)%1024 != 0 {
		return
	}
	for old, at := range x.gone {
		if now.Sub(at) > goneFor {
			delete(x.gone, old)
		}
	}
}

// charge computes the object's costs anew for all accounts that cover it.
func (x *index) charge(o *object) {
	costs := make([]cost, 0, len(o.project.covering))
	for _, a := range o.project.covering {
		last, _ := x.lastCost(o, a)
		costs = append(costs, x.compute(o, last))
	}
	x.setCosts(o, costs)
}

// lastCost returns the object's cost for the account; when there is none, one that knows no
// more than what a ledger remembers, to be computed.
func (x *index) lastCost(o *object, a *account) (cost, bool) {
	c, ok := o.costOf(a)
	if !ok {
		c = cost{account: a, known: x.seeds[seedKey{a.quota.Name, o.uid}]}
	}
	return c, ok
}

// setCosts replaces the object's costs, which are for the accounts that cover its project.
func (x *index) setCosts(o *object, costs []cost) {
	before := o.costs
	o.costs = costs
	for _, c := range before {
		if _, still := o.costOf(c.account); !still {
			delete(c.account.uncomputed, o.uid)
			x.adjust(c.account, o.name.namespace, o.effective(c), nil)
		}
	}
	for _, c := range costs {
		var was corev1.ResourceList
		for _, b := range before {
			if b.account == c.account {
				was = o.effective(b)
			}
		}
		if c.computed || c.known == nil {
			delete(c.account.uncomputed, o.uid)
		} else {
			c.account.uncomputed[o.uid] = o
		}
		x.adjust(c.account, o.name.namespace, was, o.effective(c))
	}
}

// compute returns the cost with the charge by the present inventory.
func (x *index) compute(o *object, c cost) cost {
	if x.charger == nil {
		return cost{account: c.account, known: c.known, computed: true}
	}
	return computeCost(x.charger, o, c)
}

// computeCost charges the object to the account's quota. It takes no lock.
func computeCost(charger *quota.Charger, o *object, c cost) cost {
	q := c.account.quota
	return computeFor(charger, o, q, c)
}

// computeFor is computeCost for the given version of the quota.
func computeFor(charger *quota.Charger, o *object, q *quota.Quota, c cost) cost {
	out := cost{account: c.account, quota: q, by: charger, known: c.known}
	if o.claim != nil {
		out.charge, out.computed = charger.Claim(o.claim, q, c.known)
	} else {
		out.charge, out.computed = charger.CountPod(o.pod, q, c.known)
	}
	if out.computed {
		out.known = out.charge
	}
	return out
}

// recognise decides which pod is charged by the scheduler's claim in its stead.
//
// Source: DESIGN section 4: the pod's status names the claim and the claim's controller
// reference has the pod's UID. Tenants can write annotations and references, not status.
func (x *index) recognise(o *object) {
	if o.pod != nil {
		if x.objects[o.uid] == o {
			x.setReplaced(o, x.claimOf(o.pod) != nil)
		}
		return
	}
	if pod := x.ownerPod(o.claim); pod != nil {
		x.setReplaced(pod, x.claimOf(pod.pod) != nil)
	}
}

func (x *index) setReplaced(pod *object, is bool) {
	if pod.replaced == is {
		return
	}
	for _, c := range pod.costs {
		before := pod.effective(c)
		after := c.charge
		if is {
			after = nil
		}
		x.adjust(c.account, pod.name.namespace, before, after)
	}
	pod.replaced = is
}

// claimOf returns the claim that stands for the pod's extended resources, nil when none does.
func (x *index) claimOf(pod *corev1.Pod) *object {
	claim := x.names[objectName{quota.Claims, pod.Namespace, extendedClaimName(pod)}]
	if claim == nil || !quota.Recognised(claim.claim, pod) {
		return nil
	}
	return claim
}

// ownerPod returns the pod that is the claim's controller, nil when it is not known.
func (x *index) ownerPod(claim *resourceapi.ResourceClaim) *object {
	ref := metav1.GetControllerOfNoCopy(claim)
	if ref == nil || ref.Kind != "Pod" {
		return nil
	}
	pod := x.objects[ref.UID]
	if pod == nil || pod.pod == nil || pod.name.namespace != claim.Namespace {
		return nil
	}
	return pod
}

func extendedClaimName(pod *corev1.Pod) string {
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		return s.ResourceClaimName
	}
	return ""
}
