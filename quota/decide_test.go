package quota_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
)

func hold(kind v1alpha1.HoldKind, namespace, name, uid string, kv ...string) v1alpha1.Hold {
	return v1alpha1.Hold{UID: types.UID(uid), Kind: kind, Namespace: namespace, Name: name, Charge: builders.List(kv...)}
}

func claimHold(name, uid string, kv ...string) v1alpha1.Hold {
	return hold(v1alpha1.HoldClaim, "a", name, uid, kv...)
}

func TestDenialTextBeginsAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	charge := quota.Charge{
		Amounts: builders.List("b/devices", "4", "a/memory", "160Gi", "fits", "1"),
		Rules: []quota.Rule{{Key: "b/devices", Request: "gpu", Text: "4 devices"}, {Key: "fits", Request: "gpu", Text: "1 x"},
			{Key: "a/memory", Request: "gpu", Text: "largest of alternatives x, y: 4 devices x 40Gi"}},
	}
	d := quota.Deny("team-a", []corev1.ResourceName{"a/memory", "b/devices"}, charge,
		builders.List("a/memory", "500Gi", "b/devices", "6", "fits", "9"), builders.List("a/memory", "640Gi", "b/devices", "8", "fits", "10"),
		builders.List("b/devices", "2"), builders.List("a/memory", "500Gi", "b/devices", "6"))
	want := `exceeded quota: team-a, requested: a/memory=160Gi,b/devices=4, used: a/memory=500Gi,b/devices=6, limited: a/memory=640Gi,b/devices=8` +
		`; charged: a/memory: request "gpu": largest of alternatives x, y: 4 devices x 40Gi, b/devices: request "gpu": 4 devices` +
		`; used by this project: a/memory=0,b/devices=2, by the others together: a/memory=500Gi,b/devices=4`
	if diff := cmp.Diff(want, d.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDenialOfAnUnknownFootprintNamesTheKeysAndWhy(t *testing.T) {
	t.Parallel()
	u := []quota.UnknownCharge{{Key: "k/b", Request: "gpu", Why: "nobody tells"}, {Key: "k/a", Why: "no device"}, {Key: "k/b", Request: "x", Why: "neither"}}
	want := `status unknown for quota: team-a, resources: k/a,k/b; FootprintUnknown: k/b: request "gpu": nobody tells, k/a: no device, k/b: request "x": neither`
	if got := (quota.Denial{Quota: "team-a", Unknown: u}).Error(); got != want {
		t.Errorf("want %s\ngot  %s", want, got)
	}
	both := quota.Deny("team-a", []corev1.ResourceName{"k/c"}, quota.Charge{Amounts: builders.List("k/c", "2")}, nil, builders.List("k/c", "1"), nil, nil)
	both.Unknown = u[1:2]
	want = `exceeded quota: team-a, requested: k/c=2, used: k/c=0, limited: k/c=1; status unknown for quota: team-a, resources: k/a; FootprintUnknown: k/a: no device`
	if got := both.Error(); got != want {
		t.Errorf("want %s\ngot  %s", want, got)
	}
}

func TestHoldSum(t *testing.T) {
	t.Parallel()
	pod := func(uid string, kv ...string) v1alpha1.Hold { return hold(v1alpha1.HoldPod, "a", "p", uid, kv...) }
	advisory := pod("adv", "k", "100")
	advisory.Advisory = true
	other := claimHold("c", "other", "k", "5")
	other.Namespace = "b"
	add := func(h v1alpha1.Hold) *v1alpha1.Hold { return &h }
	for name, test := range map[string]struct {
		holds    []v1alpha1.Hold
		skip     types.UID
		add      *v1alpha1.Hold
		advisory bool
		want     corev1.ResourceList
	}{
		"none":                              {nil, "", nil, false, nil},
		"different names are added":         {[]v1alpha1.Hold{claimHold("c", "1", "k", "2"), claimHold("d", "2", "k", "3", "l", "1")}, "", nil, false, builders.List("k", "5", "l", "1")},
		"one name counts as its maximum":    {[]v1alpha1.Hold{claimHold("c", "1", "k", "2", "l", "7"), claimHold("c", "2", "k", "3")}, "", nil, false, builders.List("k", "3", "l", "7")},
		"in another project it is another":  {[]v1alpha1.Hold{claimHold("c", "1", "k", "2"), other}, "", nil, false, builders.List("k", "7")},
		"pods are not merged":               {[]v1alpha1.Hold{pod("1", "k", "2"), pod("2", "k", "3")}, "", nil, false, builders.List("k", "5")},
		"a pod and a claim of one name":     {[]v1alpha1.Hold{hold(v1alpha1.HoldPod, "a", "c", "1", "k", "2"), claimHold("c", "2", "k", "3")}, "", nil, false, builders.List("k", "5")},
		"the skipped one does not count":    {[]v1alpha1.Hold{claimHold("c", "1", "k", "9"), claimHold("c", "2", "k", "3"), pod("3", "k", "1")}, "1", nil, false, builders.List("k", "4")},
		"the added one is merged":           {[]v1alpha1.Hold{claimHold("c", "1", "k", "2")}, "", add(claimHold("c", "2", "k", "5")), false, builders.List("k", "5")},
		"the added one replaces itself":     {[]v1alpha1.Hold{claimHold("c", "1", "k", "9")}, "1", add(claimHold("c", "1", "k", "5")), false, builders.List("k", "5")},
		"an added pod is added":             {[]v1alpha1.Hold{pod("1", "k", "2")}, "", add(pod("2", "k", "5")), false, builders.List("k", "7")},
		"advisory holds do not count":       {[]v1alpha1.Hold{claimHold("c", "1", "k", "2"), advisory}, "", nil, false, builders.List("k", "2")},
		"but against other advisory checks": {[]v1alpha1.Hold{claimHold("c", "1", "k", "2"), advisory}, "", nil, true, builders.List("k", "102")},
	} {
		before := quota.HoldSum(test.holds, "", nil, true)
		got := quota.HoldSum(test.holds, test.skip, test.add, test.advisory)
		same(t, name, test.want, got)
		for k := range got { // the result is the caller's own
			q := got[k]
			q.Add(builders.List("k", "1")["k"])
			got[k] = q
		}
		same(t, name+": holds unchanged", before, quota.HoldSum(test.holds, "", nil, true))
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	l := &v1alpha1.DeviceLedgerStatus{
		Hard: builders.List("k", "10", "l", "5", "over", "1"), Used: builders.List("k", "6", "over", "3"),
		Holds: []v1alpha1.Hold{claimHold("c", "1", "k", "2")},
	}
	for name, test := range map[string]struct {
		hold v1alpha1.Hold
		want []corev1.ResourceName
	}{
		"just fits":                              {claimHold("d", "2", "k", "2", "l", "5"), nil},
		"one too many":                           {claimHold("d", "2", "k", "3"), []corev1.ResourceName{"k"}},
		"every exceeded key":                     {claimHold("d", "2", "l", "6", "k", "3"), []corev1.ResourceName{"k", "l"}},
		"its own hold does not count":            {claimHold("x", "1", "k", "4"), nil},
		"nothing fits what is over":              {claimHold("d", "2", "over", "1"), []corev1.ResourceName{"over"}},
		"costing nothing fits what is over":      {claimHold("d", "2", "k", "1", "over", "0"), nil},
		"a key that is not limited":              {claimHold("d", "2", "other", "100"), nil},
		"no charge at all":                       {claimHold("d", "2"), nil},
		"the same name counts as the maximum":    {claimHold("c", "2", "k", "4"), nil},
		"the same name, one more than there was": {claimHold("c", "2", "k", "5"), []corev1.ResourceName{"k"}},
	} {
		if diff := cmp.Diff(test.want, quota.Fits(l, test.hold, false)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
