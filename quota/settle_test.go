package quota_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
)

func vector(n ...uint64) quota.Vector {
	var v quota.Vector
	copy(v[:], n)
	return v
}

func TestAnOlderObservationInAnyComponentMayNotSettle(t *testing.T) {
	t.Parallel()
	stored := vector(5, 5, 5, 5, 5, 5, 5)
	l := &v1alpha1.DeviceLedgerStatus{Observed: stored.Versions()}
	if !quota.CanSettle(l, quota.Observed{Version: stored}) {
		t.Error("an equal observation may not settle")
	}
	for c := range quota.Components {
		older := stored
		older[c] = 4
		older[(c+1)%quota.Components] = 9
		if quota.CanSettle(l, quota.Observed{Version: older}) {
			t.Errorf("an observation with older %s may settle", c)
		}
	}
	if !quota.CanSettle(&v1alpha1.DeviceLedgerStatus{}, quota.Observed{}) {
		t.Error("a new ledger cannot be settled")
	}
}

func TestMalformedStoredVersionsCountAsNeverObserved(t *testing.T) {
	t.Parallel()
	l := &v1alpha1.DeviceLedgerStatus{Observed: v1alpha1.ObservedVersions{Claims: "x", Pods: "7", Nodes: "-1"}}
	v, err := quota.StoredVersions(l)
	if v != vector(0, 7) || err == nil || !strings.Contains(err.Error(), "observed.claims") || !strings.Contains(err.Error(), "observed.nodes") {
		t.Errorf("%v, %v", v, err)
	}
	if !quota.CanSettle(l, quota.Observed{Version: vector(0, 7)}) || quota.CanSettle(l, quota.Observed{Version: vector(9, 6)}) {
		t.Error("CanSettle disagrees")
	}
}

func TestSettleRecountsAndRecords(t *testing.T) {
	t.Parallel()
	l := v1alpha1.DeviceLedgerStatus{
		Used: builders.List("k", "9", "gone", "1"), Observed: vector(5, 9).Versions(), Rebuilding: true,
		Remembered: []v1alpha1.RememberedCharge{{UID: "old", Charge: builders.List("k", "1")}},
		Conditions: []v1alpha1.LedgerCondition{{Type: "Stale"}},
	}
	o := quota.Observed{
		Version: vector(100, 100), Recorded: vector(7, 8), Used: builders.List("k", "4"),
		Remembered: []v1alpha1.RememberedCharge{{UID: "z", Charge: builders.List("k", "1")}, {UID: "a", Charge: builders.List("k", "2")}},
	}
	before := l.DeepCopy()
	got := quota.Settle(l, o, nil)
	same(t, "used", builders.List("k", "4"), got.Used)
	if got.Observed != vector(7, 9).Versions() {
		t.Errorf("observed %v: want what was recorded, never less than before", got.Observed)
	}
	if len(got.Remembered) != 2 || got.Remembered[0].UID != "a" || !got.Rebuilding || len(got.Conditions) != 1 {
		t.Errorf("settled as %+v", got)
	}
	if diff := cmp.Diff(before, &l); diff != "" {
		t.Errorf("the argument was changed: %s", diff)
	}
}

func TestHoldsEndByObservationOrAgeOnly(t *testing.T) {
	t.Parallel()
	l := v1alpha1.DeviceLedgerStatus{Holds: []v1alpha1.Hold{
		claimHold("seen", "seen", "k", "1"), claimHold("old", "old", "k", "1"), claimHold("young", "young", "k", "1"), claimHold("absent", "absent", "k", "1")}}
	o := quota.Observed{Present: map[types.UID]bool{"seen": true, "absent": false}}
	got := quota.Settle(l, o, func(uid types.UID) bool { return uid == "old" })
	var left []string
	for _, h := range got.Holds {
		left = append(left, string(h.UID))
	}
	if diff := cmp.Diff([]string{"young", "absent"}, left); diff != "" {
		t.Errorf("holds (-want +got):\n%s", diff)
	}
}

func TestTheNewestQuotaIsAdopted(t *testing.T) {
	t.Parallel()
	q := func(uid string, version uint64, limit string) *quota.Quota {
		s, _ := quota.SelectorOf(v1alpha1.LedgerSelector{Annotations: map[string]string{"limit": limit}})
		return &quota.Quota{UID: types.UID(uid), ResourceVersion: version, Hard: builders.List("k", limit), Selector: s}
	}
	l := v1alpha1.DeviceLedgerStatus{CRQUID: "one", CRQResourceVersion: "10", Hard: builders.List("k", "1"),
		Conditions: []v1alpha1.LedgerCondition{{Type: v1alpha1.ConditionEnforced, Key: "k"}}}
	for name, test := range map[string]struct {
		quota *quota.Quota
		want  string
	}{
		"newer":                        {q("one", 11, "2"), "2"},
		"the same":                     {q("one", 10, "2"), "1"},
		"older":                        {q("one", 9, "2"), "1"},
		"recreated":                    {q("two", 12, "2"), "2"},
		"the deleted one, seen late":   {q("zero", 9, "2"), "1"},
		"none: the last one's remains": {nil, "1"},
	} {
		got := quota.Settle(l, quota.Observed{Quota: test.quota}, nil)
		same(t, name, builders.List("k", test.want), got.Hard)
		if conditions := len(got.Conditions); conditions != 1 != (name == "recreated") {
			t.Errorf("%s: %d conditions are left", name, conditions)
		}
		if newer := quota.IsNewer(&l, test.quota); newer != (test.want == "2") {
			t.Errorf("%s: IsNewer is %v", name, newer)
		}
		if test.want == "2" && (got.CRQUID != test.quota.UID || got.Selector.Annotations["limit"] != "2" || got.CRQResourceVersion == "10") {
			t.Errorf("%s: adopted as %+v", name, got)
		}
	}
	if got := quota.Settle(v1alpha1.DeviceLedgerStatus{}, quota.Observed{Quota: q("one", 1, "2")}, nil); got.CRQUID != "one" {
		t.Errorf("a new ledger has %+v", got)
	}
}

func TestHoldsBesideAPodCountTheExcess(t *testing.T) {
	t.Parallel()
	claim := claimHold("c", "claim", "k", "5", "l", "1")
	claim.PodUID = "pod"
	second := claimHold("d", "second", "k", "5")
	second.PodUID = "pod"
	pod := hold(v1alpha1.HoldPod, "a", "p", "pod", "k", "3", "m", "9")
	advisory := pod
	advisory.Advisory = true
	observed := func(kv ...string) quota.Observed {
		return quota.Observed{Present: map[types.UID]bool{"pod": true}, Charges: map[types.UID]corev1.ResourceList{"pod": builders.List(kv...)}}
	}
	for name, test := range map[string]struct {
		holds []v1alpha1.Hold
		o     quota.Observed
		want  map[types.UID]corev1.ResourceList
	}{
		"the pod is in holds":               {[]v1alpha1.Hold{pod, claim}, quota.Observed{}, map[types.UID]corev1.ResourceList{"claim": builders.List("k", "2", "l", "1")}},
		"the pod is observed":               {[]v1alpha1.Hold{claim}, observed("k", "4"), map[types.UID]corev1.ResourceList{"claim": builders.List("k", "1", "l", "1")}},
		"the pod costs more":                {[]v1alpha1.Hold{claim}, observed("k", "7", "l", "1"), map[types.UID]corev1.ResourceList{"claim": {}}},
		"the pod is nowhere":                {[]v1alpha1.Hold{claim}, quota.Observed{}, map[types.UID]corev1.ResourceList{"claim": builders.List("k", "5", "l", "1")}},
		"the pod is observed and not there": {[]v1alpha1.Hold{claim}, quota.Observed{Present: map[types.UID]bool{"pod": false}}, map[types.UID]corev1.ResourceList{"claim": builders.List("k", "5", "l", "1")}},
		"the pod counts nothing: its claim is charged in its stead": {[]v1alpha1.Hold{claim}, observed(), map[types.UID]corev1.ResourceList{"claim": builders.List("k", "5", "l", "1")}},
		"an advisory hold is no charge":                             {[]v1alpha1.Hold{advisory, claim}, quota.Observed{}, map[types.UID]corev1.ResourceList{"claim": builders.List("k", "5", "l", "1")}},
		"only one claim is beside a pod":                            {[]v1alpha1.Hold{pod, claim, second}, quota.Observed{}, map[types.UID]corev1.ResourceList{"claim": builders.List("k", "2", "l", "1"), "second": builders.List("k", "5")}},
		"the pod came after the claim":                              {[]v1alpha1.Hold{claim, pod}, quota.Observed{}, map[types.UID]corev1.ResourceList{"claim": builders.List("k", "2", "l", "1")}},
	} {
		got := quota.Settle(v1alpha1.DeviceLedgerStatus{Holds: test.holds}, test.o, nil)
		for _, h := range got.Holds {
			if want, ok := test.want[h.UID]; ok {
				same(t, name, want, h.Charge)
				if h.Charge == nil {
					t.Errorf("%s: charge is not set", name)
				}
			}
		}
		withoutPods := got // the pod is gone: the full charge is back
		withoutPods.Holds = nil
		for _, h := range got.Holds {
			if h.Kind == v1alpha1.HoldClaim {
				withoutPods.Holds = append(withoutPods.Holds, h)
			}
		}
		for _, h := range quota.Settle(withoutPods, quota.Observed{}, nil).Holds {
			want := builders.List("k", "5", "l", "1")
			if h.UID == "second" {
				want = builders.List("k", "5")
			}
			same(t, name+", then no pod", want, h.Charge)
		}
	}
}

func TestASchedulersClaimKeepsItsHoldUntilItIsRecognised(t *testing.T) {
	t.Parallel()
	claim := claimHold("c", "claim", "k", "5")
	claim.PodUID = "pod"
	l := v1alpha1.DeviceLedgerStatus{Holds: []v1alpha1.Hold{claim}}
	unrecognised := quota.Observed{
		Used:         builders.List("k", "9"), // 5 of the pod, 4 of the claim, which is allocated already
		Present:      map[types.UID]bool{"claim": true, "pod": true},
		Unrecognised: map[types.UID]bool{"claim": true},
		Charges:      map[types.UID]corev1.ResourceList{"claim": builders.List("k", "4"), "pod": builders.List("k", "5")},
	}
	got := quota.Settle(l, unrecognised, nil)
	same(t, "used while it is not recognised", builders.List("k", "5"), got.Used)
	if len(got.Holds) != 1 || len(got.Holds[0].Charge) != 0 {
		t.Errorf("holds: %+v", got.Holds)
	}
	aged := quota.Settle(got, unrecognised, func(types.UID) bool { return true })
	same(t, "used after 40 s: the full charge beside the pod", builders.List("k", "9"), aged.Used)
	if len(aged.Holds) != 0 {
		t.Errorf("holds after 40 s: %+v", aged.Holds)
	}
	recognised := quota.Observed{Used: builders.List("k", "4"), Present: map[types.UID]bool{"claim": true, "pod": true},
		Charges: map[types.UID]corev1.ResourceList{"claim": builders.List("k", "4"), "pod": {}}}
	done := quota.Settle(got, recognised, nil)
	same(t, "used once recognised", builders.List("k", "4"), done.Used)
	if len(done.Holds) != 0 {
		t.Errorf("holds once recognised: %+v", done.Holds)
	}
	// A tenant's claim of that kind has a hold without PodUID: charged in full at once.
	forged := l
	forged.Holds = []v1alpha1.Hold{claimHold("c", "claim", "k", "4")}
	same(t, "forged", builders.List("k", "9"), quota.Settle(forged, unrecognised, nil).Used)
}

func TestASecondClaimBesideAPodCountsInFullAgain(t *testing.T) {
	t.Parallel()
	first, second := claimHold("c", "first", "k", "5"), claimHold("d", "second")
	first.PodUID, second.PodUID, second.Full = "pod", "pod", builders.List("k", "5")
	holds := []v1alpha1.Hold{first, second}
	o := quota.Observed{Present: map[types.UID]bool{"pod": true}, Charges: map[types.UID]corev1.ResourceList{"pod": builders.List("k", "5")}}
	same(t, "second", builders.List("k", "5"), quota.Counted(second, holds[:1], holds, o).Charge)
	same(t, "alone", nil, quota.Counted(second, nil, holds[1:], o).Charge)
}
