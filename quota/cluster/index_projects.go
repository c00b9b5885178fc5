package cluster

import (
	"maps"
	"slices"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
)

// setProject takes over the namespace's labels and annotations.
func (x *index) setProject(namespace metav1.Object, version uint64) {
	p := x.projectOf(namespace.GetName())
	same := p.known && maps.Equal(p.labels, namespace.GetLabels()) && maps.Equal(p.annotations, namespace.GetAnnotations())
	p.known, p.version = true, version
	p.labels, p.annotations = namespace.GetLabels(), namespace.GetAnnotations()
	if !same {
		x.cover(p)
	}
}

// removeProject forgets the namespace, which is gone. Its objects are covered by nothing any more.
func (x *index) removeProject(p *project) {
	p.known, p.version, p.labels, p.annotations = false, 0, nil, nil
	x.cover(p)
	x.dropIfEmpty(p)
}

// covers tells whether the quota covers the project.
func (x *index) covers(q *quota.Quota, p *project) bool {
	return p.known && !x.exempt[p.name] && q.Selector.Matches(p.labels, p.annotations)
}

// cover finds the accounts that cover the project and moves its objects' charges there.
func (x *index) cover(p *project) {
	var covering []*account
	for _, a := range x.accounts {
		if x.covers(a.quota, p) {
			covering = append(covering, a)
		}
	}
	slices.SortFunc(covering, compareAccounts)
	x.setCovering(p, covering)
}

func (x *index) setCovering(p *project, covering []*account) {
	before := p.covering
	if slices.Equal(before, covering) {
		return
	}
	p.covering = covering
	for _, a := range covering {
		if !slices.Contains(before, a) {
			a.own()
			a.byNamespace[p.name] = corev1.ResourceList{}
			x.changed(Change{Quota: a.quota.Name, Namespace: p.name})
		}
	}
	for o := range p.objects {
		x.recover(o)
	}
	for _, a := range before {
		if !slices.Contains(covering, a) {
			a.own()
			delete(a.byNamespace, p.name)
			x.changed(Change{Quota: a.quota.Name, Namespace: p.name})
		}
	}
}

// recover gives the object costs for the accounts that cover it now, and keeps those it has.
func (x *index) recover(o *object) {
	costs := make([]cost, 0, len(o.project.covering))
	for _, a := range o.project.covering {
		c, ok := x.lastCost(o, a)
		if !ok {
			c = x.compute(o, c)
		}
		costs = append(costs, c)
	}
	x.setCosts(o, costs)
}

// setQuota takes over a version of a quota. It returns false if only its status changed:
// then the quota stays the version that it was, so that our own status writes settle nothing.
func (x *index) setQuota(crq *quotav1.ClusterResourceQuota) bool {
	a := x.accounts[crq.Name]
	if a != nil && sameQuota(a.crq, crq) {
		if !equality.Semantic.DeepEqual(a.crq.Status, crq.Status) {
			x.changed(Change{Quota: crq.Name, StatusOnly: true})
		}
		a.crq = crq
		return false
	}
	q, _ := quota.Parse(crq, x.parse) // its errors become conditions where it is settled
	switch {
	case a == nil:
		a = &account{quota: q, crq: crq, byNamespace: map[string]corev1.ResourceList{}, uncomputed: map[types.UID]*object{}}
		x.accounts[q.Name] = a
		x.coverAll(a)
	case sameCharging(a.quota, q):
		a.quota, a.crq = q, crq
	default:
		a.quota, a.crq = q, crq
		x.coverAll(a)
		x.rechargeAll(a)
	}
	x.changed(Change{Quota: q.Name})
	return true
}

// sameQuota tells whether nothing but the status changed.
func sameQuota(a, b *quotav1.ClusterResourceQuota) bool {
	return a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		maps.Equal(a.Annotations, b.Annotations) && equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// removeQuota forgets the quota, which is gone.
func (x *index) removeQuota(name string) {
	a := x.accounts[name]
	if a == nil {
		return
	}
	delete(x.accounts, name)
	for namespace := range a.byNamespace {
		p := x.projects[namespace]
		x.setCovering(p, without(p.covering, a))
	}
	x.changed(Change{Quota: name})
}

// coverAll finds the projects that the account covers.
func (x *index) coverAll(a *account) {
	for _, p := range x.projects {
		is, was := x.covers(a.quota, p), slices.Contains(p.covering, a)
		switch {
		case is && !was:
			covering := append(slices.Clone(p.covering), a)
			slices.SortFunc(covering, compareAccounts)
			x.setCovering(p, covering)
		case was && !is:
			x.setCovering(p, without(p.covering, a))
		}
	}
}

// rechargeAll computes the account's charges anew.
func (x *index) rechargeAll(a *account) {
	for namespace := range a.byNamespace {
		for o := range x.projects[namespace].objects {
			costs := slices.Clone(o.costs)
			for i, c := range costs {
				if c.account == a && c.quota != a.quota {
					costs[i] = x.compute(o, c)
				}
			}
			x.setCosts(o, costs)
		}
	}
}

func without(accounts []*account, a *account) []*account {
	return slices.DeleteFunc(slices.Clone(accounts), func(b *account) bool { return a == b })
}
