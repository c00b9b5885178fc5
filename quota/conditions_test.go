package quota_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
)

func conditions(t *testing.T, v quota.Inventory, q *quota.Quota, o quota.Observed, previous ...v1alpha1.LedgerCondition) []string {
	t.Helper()
	var out []string
	for _, c := range quota.NewCharger(v).Conditions(q, o, previous) {
		if c.Status != "True" || c.Message == "" {
			t.Errorf("condition %+v", c)
		}
		out = append(out, c.Key+" "+c.Type+" "+c.Reason)
	}
	return out
}

func TestConditionsPerKey(t *testing.T) {
	t.Parallel()
	const shares = "shares.nvidia.com"
	intel, vfio := own("gpu.intel.com", "devices"), own("gpu-vfio.intel.com", "devices")
	for name, test := range map[string]struct {
		keys        []string
		annotations []string
		want        []string
	}{
		"enforced":                         {[]string{"count/resourceclaims.resource.k8s.io", gpuDevices, gpuMemory}, nil, []string{"count/resourceclaims.resource.k8s.io Enforced Limited", gpuMemory + " Enforced Limited", gpuDevices + " Enforced Limited"}},
		"only reported":                    {[]string{gpuDevices}, []string{quota.EnforcementAnnotation, "Warn"}, []string{gpuDevices + " Enforced ReportOnly"}},
		"not a device key":                 {[]string{"pods"}, nil, []string{"pods NotEnforced NotADeviceKey"}},
		"no class serves the resource":     {[]string{"requests.example.com/plugin"}, nil, []string{"requests.example.com/plugin NotEnforced NoDeviceClass"}},
		"a class serves the resource":      {[]string{"requests.nvidia.com/gpu"}, nil, []string{"requests.nvidia.com/gpu Enforced Limited"}},
		"an alias":                         {[]string{intel, vfio}, nil, []string{vfio + " AliasedKey SharedDevices", vfio + " Enforced Limited", intel + " AliasedKey SharedDevices", intel + " Enforced Limited"}},
		"published 0":                      {[]string{own("tpu.google.com", "capacity.memory")}, nil, []string{own("tpu.google.com", "capacity.memory") + " Enforced Limited", own("tpu.google.com", "capacity.memory") + " FootprintUnknown NothingPublished"}},
		"no device":                        {[]string{own("unused", "counter.memory"), own("absent", "devices")}, nil, []string{own("absent", "devices") + " Enforced Limited", own("unused", "counter.memory") + " Enforced Limited", own("unused", "counter.memory") + " FootprintUnknown NoDevices"}},
		"default 0":                        {[]string{own(shares, "capacity.memory"), own(shares, "capacity.shares")}, nil, []string{own(shares, "capacity.memory") + " Enforced Limited", own(shares, "capacity.memory") + " ZeroDefault DefaultsToZero", own(shares, "capacity.shares") + " Enforced Limited"}},
		"a selector that matches":          {[]string{"sel.selector.devicequota.io/devices", "sel.selector.devicequota.io/capacity.memory"}, []string{"selector.devicequota.io/sel", "productName=A100-80"}, []string{"sel.selector.devicequota.io/capacity.memory Enforced Limited", "sel.selector.devicequota.io/devices Enforced Limited"}},
		"a selector that matches none":     {[]string{"sel.selector.devicequota.io/devices"}, []string{"selector.devicequota.io/sel", "productName=H100"}, []string{"sel.selector.devicequota.io/devices Enforced Limited", "sel.selector.devicequota.io/devices FootprintUnknown NoDevices"}},
		"a selector that does not compile": {[]string{"sel.selector.devicequota.io/devices"}, []string{"selector.devicequota.io/sel", "broken"}, []string{"sel.selector.devicequota.io/devices Enforced Limited", "sel.selector.devicequota.io/devices FootprintUnknown NotEvaluable"}},
		"a selector of silent devices":     {[]string{"sel.selector.devicequota.io/capacity.memory"}, []string{"selector.devicequota.io/sel", "driver=tpu.google.com"}, []string{"sel.selector.devicequota.io/capacity.memory Enforced Limited", "sel.selector.devicequota.io/capacity.memory FootprintUnknown NothingPublished"}},
	} {
		got := conditions(t, fleet(), parse(t, unlimited(test.keys...), test.annotations...), quota.Observed{})
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestConditionsOfQuotasThatEnforceNothing(t *testing.T) {
	t.Parallel()
	scoped := builders.Quota("team", builders.List(gpuDevices, "1"))
	scoped.Spec.Quota.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	q, _ := quota.Parse(scoped, quota.ParseOptions{})
	if got := conditions(t, fleet(), q, quota.Observed{}); fmt.Sprint(got) != "["+gpuDevices+" NotEnforced Scoped]" {
		t.Errorf("scoped: %v", got)
	}
	q, _ = quota.Parse(builders.Quota("team", builders.List(h100, "1", "x.devicequota.io/y", "1", "requests.nvidia.com/gpu", "1")), quota.ParseOptions{PlatformKeys: true})
	want := []string{h100 + " NotEnforced NotADeviceKey", "requests.nvidia.com/gpu Enforced Platform", "x.devicequota.io/y NotEnforced NotADeviceKey"}
	if diff := cmp.Diff(want, conditions(t, fleet(), q, quota.Observed{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestADeclaredFootprintIsKnown(t *testing.T) {
	t.Parallel()
	class := builders.Class("c", "driver=d")
	class.Annotations = map[string]string{quota.FootprintAnnotation: `{"capacity.mem":"80Gi"}`}
	q := parse(t, unlimited(own("c", "capacity.mem")))
	if got := conditions(t, newInventory(class), q, quota.Observed{}); len(got) != 1 {
		t.Errorf("conditions: %v", got)
	}
}

func TestOverLimitTellsItsCause(t *testing.T) {
	t.Parallel()
	q := parse(t, builders.List(gpuDevices, "8"))
	o := quota.Observed{Used: builders.List(gpuDevices, "12"), ByNamespace: map[string]corev1.ResourceList{
		"a": builders.List(gpuDevices, "2"), "b": builders.List(gpuDevices, "7"), "c": nil, "d": builders.List(gpuDevices, "2"), "e": builders.List(gpuDevices, "1")}}
	enforced := func(message string) v1alpha1.LedgerCondition {
		return v1alpha1.LedgerCondition{Type: v1alpha1.ConditionEnforced, Key: gpuDevices, Status: "True", Message: message}
	}
	over := func(reason string) v1alpha1.LedgerCondition {
		return v1alpha1.LedgerCondition{Type: v1alpha1.ConditionOverLimit, Key: gpuDevices, Status: "True", Reason: reason}
	}
	other := over("Other")
	other.Key = "other"
	for name, test := range map[string]struct {
		previous []v1alpha1.LedgerCondition
		want     string
	}{
		"no limit before":            {nil, quota.ReasonLimitNew},
		"lowered":                    {[]v1alpha1.LedgerCondition{other, enforced("limited to 16")}, quota.ReasonLimitLowered},
		"same limit":                 {[]v1alpha1.LedgerCondition{enforced("limited to 8")}, quota.ReasonUseGrew},
		"raised":                     {[]v1alpha1.LedgerCondition{enforced("limited to 4")}, quota.ReasonUseGrew},
		"lowered, but used more yet": {[]v1alpha1.LedgerCondition{enforced("limited to 10")}, quota.ReasonUseGrew},
		"the first cause stays":      {[]v1alpha1.LedgerCondition{enforced("limited to 8"), over(quota.ReasonLimitLowered)}, quota.ReasonLimitLowered},
	} {
		var message string
		for _, c := range quota.NewCharger(fleet()).Conditions(q, o, test.previous) {
			if c.Type == v1alpha1.ConditionOverLimit {
				message = c.Reason + ": " + c.Message
			}
		}
		if want := test.want + ": used 12, limited to 8; most by b (7), a (2), d (2)"; message != want {
			t.Errorf("%s:\nwant %s\ngot  %s", name, want, message)
		}
	}
	for _, c := range quota.NewCharger(fleet()).Conditions(q, quota.Observed{Used: builders.List(gpuDevices, "8")}, nil) {
		if c.Type == v1alpha1.ConditionOverLimit {
			t.Errorf("at the limit: %+v", c)
		}
		if c.Type == v1alpha1.ConditionEnforced && !strings.Contains(c.Message, "8") {
			t.Errorf("the limit is not told: %+v", c)
		}
	}
}

func TestAliases(t *testing.T) {
	t.Parallel()
	c := quota.NewCharger(fleet())
	for class, want := range map[string][]string{
		"gpu.intel.com": {"gpu-vfio.intel.com"}, "gpu-vfio.intel.com": {"gpu.intel.com"}, "gpu.nvidia.com": nil, "absent": nil, "": nil,
	} {
		if diff := cmp.Diff(want, c.Aliases(class)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", class, diff)
		}
	}
}
