package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// cached is the index as an observation: each answer is of the moment it is asked.
type cached struct{ v *View }

var _ ledger.Observation = cached{}

// Observe recounts one quota. Source: ledger.Observation.
func (c cached) Observe(name string, last *quota.Quota, uids []types.UID) quota.Observed {
	x := c.v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	o := newObserved(x.version, x.recorded)
	a := x.accounts[name]
	if a != nil {
		o.Quota = a.quota
		o.Used, o.ByNamespace = a.used, a.byNamespace
		a.shared = true
		o.Remembered = a.rememberedCharges()
	} else {
		o.Used, o.ByNamespace = x.countGone(last)
	}
	for _, uid := range uids {
		o.Present[uid] = x.present(uid)
		object := x.objects[uid]
		if object == nil {
			continue
		}
		if a != nil {
			o.Charges[uid] = costFor(object, a)
		} else if last != nil && x.charger != nil && x.covers(last, object.project) && !object.replaced {
			o.Charges[uid] = computeFor(x.charger, object, last, cost{}).charge
		}
		if object.claim != nil {
			o.Unrecognised[uid] = unrecognised(object.claim, x.ownerPod(object.claim))
		}
	}
	return o
}

// Covering returns the quotas that cover the namespace. Source: ledger.Observation.
func (c cached) Covering(namespace string) ([]*quota.Quota, uint64, bool) {
	x := c.v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.projects[namespace]
	if p == nil || !p.known {
		return nil, 0, false
	}
	quotas := make([]*quota.Quota, 0, len(p.covering))
	for _, a := range p.covering {
		quotas = append(quotas, a.quota)
	}
	return quotas, p.version, true
}

// present tells whether the object was seen, and its project: it is here, or it was and is gone.
// While its namespace was not seen nobody can tell which quotas it counts for.
func (x *index) present(uid types.UID) bool {
	if o := x.objects[uid]; o != nil {
		return o.project.known
	}
	_, gone := x.gone[uid]
	return gone
}

// rememberedCharges are the charges of the account's objects that are not computable now but
// once were, sorted.
func (a *account) rememberedCharges() []v1alpha1.RememberedCharge {
	var out []v1alpha1.RememberedCharge
	for uid, o := range a.uncomputed {
		if c, ok := o.costOf(a); ok {
			out = append(out, v1alpha1.RememberedCharge{UID: uid, Charge: c.known})
		}
	}
	slices.SortFunc(out, compareRemembered)
	return out
}

// countGone counts a quota that is gone by what it was.
func (x *index) countGone(last *quota.Quota) (corev1.ResourceList, map[string]corev1.ResourceList) {
	used, byNamespace := corev1.ResourceList{}, map[string]corev1.ResourceList{}
	if last == nil || x.charger == nil {
		return used, byNamespace
	}
	for _, p := range x.projects {
		if !x.covers(last, p) {
			continue
		}
		sum := corev1.ResourceList{}
		for o := range p.objects {
			if !o.replaced {
				quota.AddTo(sum, computeFor(x.charger, o, last, cost{}).charge)
			}
		}
		byNamespace[p.name] = sum
		quota.AddTo(used, sum)
	}
	return used, byNamespace
}

func costFor(o *object, a *account) corev1.ResourceList {
	c, ok := o.costOf(a)
	if !ok {
		return nil
	}
	return o.effective(c)
}

// unrecognised tells whether the claim's controller is the given pod, which runs and whose
// status does not name the claim.
func unrecognised(claim *resourceapi.ResourceClaim, pod *object) bool {
	return pod != nil && !quota.Terminal(pod.pod) && !quota.Recognised(claim, pod.pod)
}

// newObserved returns an observation with nothing in it.
func newObserved(version, recorded quota.Vector) quota.Observed {
	return quota.Observed{
		Version: version, Recorded: recorded, Used: corev1.ResourceList{}, ByNamespace: map[string]corev1.ResourceList{},
		Present: map[types.UID]bool{}, Charges: map[types.UID]corev1.ResourceList{}, Unrecognised: map[types.UID]bool{},
	}
}

func compareRemembered(a, b v1alpha1.RememberedCharge) int {
	return strings.Compare(string(a.UID), string(b.UID))
}
