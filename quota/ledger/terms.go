package ledger

import (
	quotav1 "github.com/openshift/api/quota/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Terms are what a ledger keeps of its quota: which object, the limits, the selector. The
// quota's version alone does not tell whether they changed: writing its status bumps it.

// sameTerms returns true if the ledger was made by what q says.
func sameTerms(q *quota.Quota, l *v1alpha1.DeviceLedgerStatus) bool {
	return q.UID == l.CRQUID && len(q.Hard) == len(l.Hard) && quota.Equal(q.Hard, l.Hard) &&
		equality.Semantic.DeepEqual(q.Selector.Ledger(), l.Selector)
}

// termsVersion returns the version of the quota that the ledger was made by; 0 when the ledger does not tell.
func termsVersion(l *v1alpha1.DeviceLedgerStatus) uint64 {
	v, err := quota.ParseVersion(l.CRQResourceVersion)
	if err != nil {
		return 0
	}
	return v
}

// ordered compares q with the ledger's terms: 0 when they are the same, 1 when q is newer,
// -1 when it is older. Quotas are ordered by resourceVersion, across UIDs, never by generation.
func ordered(q *quota.Quota, l *v1alpha1.DeviceLedgerStatus) int {
	switch {
	case sameTerms(q, l):
		return 0
	case q.ResourceVersion >= termsVersion(l):
		// Equal versions with other terms: somebody edited the ledger.
		return 1
	default:
		return -1
	}
}

// Edited returns true if somebody else than a Ledger wrote the ledger's next state, or a Ledger
// had to undo that: versions that are none or that went back, or other terms of the same quota's
// version. An edit of use or holds alone does not show; the next settle recounts it.
func Edited(before, next *v1alpha1.DeviceLedger) bool {
	if before.UID != next.UID {
		return false
	}
	was, wasErr := quota.StoredVersions(&before.Status)
	is, isErr := quota.StoredVersions(&next.Status)
	if wasErr != nil || isErr != nil || !is.AtLeast(was) {
		return true
	}
	a, b := &before.Status, &next.Status
	switch va, vb := termsVersion(a), termsVersion(b); {
	case va != vb:
		return vb < va
	default:
		return a.CRQUID != b.CRQUID || !quota.Equal(a.Hard, b.Hard) || !equality.Semantic.DeepEqual(a.Selector, b.Selector)
	}
}

// maySettle returns true if the ledger may be settled by the observation: it is as new as
// the ledger in every component, and its quota as new as the ledger's terms.
func maySettle(l *v1alpha1.DeviceLedgerStatus, o *quota.Observed) bool {
	if !quota.CanSettle(l, *o) {
		return false
	}
	if o.Quota == nil {
		return o.Version[quota.Quotas] >= termsVersion(l)
	}
	return ordered(o.Quota, l) >= 0
}

// quotaOf returns the quota that the ledger tells of, for when there is none anymore. Its
// annotations are lost: keys with a selector of their own are not enforced.
func quotaOf(l *v1alpha1.DeviceLedger, platformKeys bool) *quota.Quota {
	crq := &quotav1.ClusterResourceQuota{}
	crq.Name, crq.UID, crq.ResourceVersion = l.Name, l.Status.CRQUID, l.Status.CRQResourceVersion
	crq.Spec.Quota.Hard = l.Status.Hard
	crq.Spec.Selector.LabelSelector = l.Status.Selector.Labels
	crq.Spec.Selector.AnnotationSelector = l.Status.Selector.Annotations
	q, _ := quota.Parse(crq, quota.ParseOptions{PlatformKeys: platformKeys})
	return q
}
