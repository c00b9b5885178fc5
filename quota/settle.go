package quota

import (
	"cmp"
	"errors"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// StoredVersions returns the versions that a ledger has observed. A malformed component is 0,
// and the error names it: such a ledger was written by somebody else, and any observation is
// better than it.
func StoredVersions(l *v1alpha1.DeviceLedgerStatus) (Vector, error) {
	o := l.Observed
	var v Vector
	var errs []error
	for c, s := range [Components]*string{&o.Claims, &o.Pods, &o.Namespaces, &o.CRQs, &o.Slices, &o.Classes, &o.Nodes} {
		n, err := ParseVersion(*s)
		if err != nil {
			errs = append(errs, &componentError{Component(c), err})
			continue
		}
		v[c] = n
	}
	return v, errors.Join(errs...)
}

type componentError struct {
	component Component
	err       error
}

func (e *componentError) Error() string {
	return "observed." + e.component.String() + ": " + e.err.Error()
}
func (e *componentError) Unwrap() error { return e.err }

// CanSettle returns true if the observation is at least as new as what the ledger was counted
// from, in every component. Malformed stored versions count as 0: see StoredVersions.
func CanSettle(l *v1alpha1.DeviceLedgerStatus, o Observed) bool {
	stored, _ := StoredVersions(l)
	return o.Version.AtLeast(stored)
}

// IsNewer returns true if the quota is newer than the version of it that the ledger has.
// Quotas are ordered by resourceVersion, which survives deletion and creation under the same
// name; never by generation, which annotations do not change.
func IsNewer(l *v1alpha1.DeviceLedgerStatus, q *Quota) bool {
	if q == nil {
		return false
	}
	known, err := ParseVersion(l.CRQResourceVersion)
	return err != nil || l.CRQUID == "" || q.ResourceVersion > known
}

// Adopt returns the ledger with the limits and selector of the quota if it is newer. What was
// said of a quota that is gone is not said of another one of its name: whether its ledger was
// removed in between or not, its conditions are new.
func Adopt(l v1alpha1.DeviceLedgerStatus, q *Quota) v1alpha1.DeviceLedgerStatus {
	if !IsNewer(&l, q) {
		return l
	}
	if l.CRQUID != q.UID {
		l.Conditions = nil
	}
	l.CRQUID = q.UID
	l.CRQResourceVersion = strconv.FormatUint(q.ResourceVersion, 10)
	l.Hard = Copy(q.Hard)
	l.Selector = q.Selector.Ledger()
	return l
}

// Settle returns the ledger as the observation has it: use recounted, holds ended whose
// object is observed or aged, the newest quota adopted, the charges of holds beside a pod
// computed anew. The caller has asked CanSettle. l is not changed and shares nothing with the
// result that either may change.
//
// aged tells that a hold is old enough that an object which the observation does not contain
// will never come, and that the observation may say so; nil means none is.
//
// The scheduler's claim for a pod's extended resources keeps its hold, and is taken out of
// Used, while the pod's status does not name it yet and the hold has not aged: else it would
// be charged beside the pod.
func Settle(l v1alpha1.DeviceLedgerStatus, o Observed, aged func(types.UID) bool) v1alpha1.DeviceLedgerStatus {
	out := *l.DeepCopy()
	out.Used = Copy(o.Used)
	stored, _ := StoredVersions(&l)
	out.Observed = stored.Max(o.Recorded).Versions()
	out.Holds = nil
	for _, h := range l.DeepCopy().Holds {
		old := aged != nil && aged(h.UID)
		waits := h.PodUID != "" && o.Unrecognised[h.UID] && !old
		switch {
		case waits:
			out.Used = Excess(out.Used, o.Charges[h.UID])
		case o.Present[h.UID], old:
			continue
		}
		out.Holds = append(out.Holds, h)
	}
	for i := range out.Holds {
		out.Holds[i] = Counted(out.Holds[i], out.Holds[:i], out.Holds, o)
	}
	out.Remembered = slices.Clone(o.Remembered)
	for i := range out.Remembered {
		out.Remembered[i].Charge = Copy(out.Remembered[i].Charge)
	}
	slices.SortFunc(out.Remembered, func(a, b v1alpha1.RememberedCharge) int { return cmp.Compare(a.UID, b.UID) })
	return Adopt(out, o.Quota)
}

// Counted returns the hold with its Charge as it counts now. With PodUID that is the excess
// of Full (at first: Charge) over what the pod counts for in the observation or in holds, or all
// of it when the pod is in neither, or when one of before, the holds that come first, is
// beside the same pod already.
func Counted(h v1alpha1.Hold, before, holds []v1alpha1.Hold, o Observed) v1alpha1.Hold {
	if h.PodUID == "" || h.Advisory {
		return h
	}
	if h.Full == nil {
		h.Full = h.Charge
	}
	h.Charge = Copy(h.Full)
	for i := range before {
		if before[i].PodUID == h.PodUID && before[i].UID != h.UID {
			return h
		}
	}
	h.Charge = Excess(h.Full, podCharge(h.PodUID, holds, o))
	return h
}

// podCharge returns what a pod counts for: in the observation, else in its hold.
func podCharge(pod types.UID, holds []v1alpha1.Hold, o Observed) corev1.ResourceList {
	if o.Present[pod] {
		return o.Charges[pod]
	}
	for i := range holds {
		if holds[i].UID == pod && holds[i].Kind == v1alpha1.HoldPod && !holds[i].Advisory {
			return holds[i].Charge
		}
	}
	return nil
}
