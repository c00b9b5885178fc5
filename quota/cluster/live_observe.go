package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// finish takes the inventory of the cache and connects what was read. It is called once,
// before the observation is used.
func (l *live) finish() {
	x := l.v.index
	x.mu.Lock()
	l.charger, l.seeds = x.charger, maps.Clone(x.seeds)
	l.takeVersions(x, quota.Slices, quota.Classes, quota.Nodes)
	l.gone = make(map[types.UID]bool, len(x.gone))
	for uid := range x.gone {
		l.gone[uid] = true
	}
	x.mu.Unlock()

	for _, o := range l.objects {
		if o.pod != nil {
			o.replaced = l.claimOf(o.pod) != nil
		}
		p := l.projects[o.name.namespace]
		if p == nil {
			// Newer than the list of namespaces: covered by nothing that was read.
			p = &liveProject{project: project{name: o.name.namespace}}
			l.projects[o.name.namespace] = p
		}
		p.live = append(p.live, o)
	}
}

// claimOf is index.claimOf for what was read.
func (l *live) claimOf(pod *corev1.Pod) *object {
	claim := l.names[objectName{quota.Claims, pod.Namespace, extendedClaimName(pod)}]
	if claim == nil || !quota.Recognised(claim.claim, pod) {
		return nil
	}
	return claim
}

// Observe recounts one quota. Source: ledger.Observation.
func (l *live) Observe(name string, last *quota.Quota, uids []types.UID) quota.Observed {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := newObserved(l.version, l.recorded)
	o.FromCache = l.cached
	a := l.accounts[name]
	if a != nil {
		o.Quota = a.quota
	} else if last != nil {
		a = &account{quota: last}
	}
	asked := make(map[types.UID]bool, len(uids))
	for _, uid := range uids {
		asked[uid] = true
		object := l.objects[uid]
		o.Present[uid] = l.present(uid)
		if object != nil && object.claim != nil {
			o.Unrecognised[uid] = unrecognised(object.claim, l.ownerPod(object))
		}
	}
	if a != nil && l.charger != nil {
		l.count(a, asked, &o)
	}
	return o
}

// present is index.present for what was read.
func (l *live) present(uid types.UID) bool {
	if o := l.objects[uid]; o != nil {
		return l.projects[o.name.namespace].known
	}
	return l.gone[uid]
}

// count adds up what the account's projects use, and tells of the objects asked for what
// they contribute.
func (l *live) count(a *account, asked map[types.UID]bool, o *quota.Observed) {
	same := map[*quota.Quota]bool{} // versions of the quota -> charge alike
	for _, p := range l.projects {
		if !l.v.index.covers(a.quota, &p.project) {
			continue
		}
		sum := corev1.ResourceList{}
		for _, object := range p.live {
			c := l.costLocked(object, a, same)
			quota.AddTo(sum, object.effective(c))
			if asked[object.uid] {
				o.Charges[object.uid] = object.effective(c)
			}
			if !c.computed && c.known != nil {
				o.Remembered = append(o.Remembered, v1alpha1.RememberedCharge{UID: object.uid, Charge: c.known})
			}
		}
		o.ByNamespace[p.name] = sum
		quota.AddTo(o.Used, sum)
	}
	slices.SortFunc(o.Remembered, compareRemembered)
}

// costLocked returns what the object costs the account: as the cache computed it, if that was
// by the same inventory for a quota that charges alike, else computed and kept.
func (l *live) costLocked(o *object, a *account, same map[*quota.Quota]bool) cost {
	known := l.seeds[seedKey{a.quota.Name, o.uid}]
	for _, c := range o.costs {
		if c.quota == nil || c.quota.Name != a.quota.Name {
			continue
		}
		alike, asked := same[c.quota]
		if !asked {
			alike = sameCharging(c.quota, a.quota)
			same[c.quota] = alike
		}
		if alike && c.by == l.charger {
			return c
		}
		if c.known != nil {
			known = c.known
		}
	}
	c := computeFor(l.charger, o, a.quota, cost{known: known})
	o.costs = append(slices.Clone(o.costs), c)
	return c
}

// Covering returns the quotas that cover the namespace. Source: ledger.Observation.
func (l *live) Covering(namespace string) ([]*quota.Quota, uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.projects[namespace]
	if p == nil || !p.known {
		return nil, 0, false
	}
	var quotas []*quota.Quota
	for _, a := range sortedAccounts(l.accounts) {
		if l.v.index.covers(a.quota, &p.project) {
			quotas = append(quotas, a.quota)
		}
	}
	return quotas, p.version, true
}

// ownerPod is index.ownerPod for what was read.
func (l *live) ownerPod(claim *object) *object {
	ref := metav1.GetControllerOfNoCopy(claim.claim)
	if ref == nil {
		return nil
	}
	pod := l.objects[ref.UID]
	if pod == nil || pod.pod == nil || pod.name.namespace != claim.name.namespace {
		return nil
	}
	return pod
}
