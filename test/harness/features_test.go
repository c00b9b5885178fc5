package harness

import (
	"strings"
	"testing"
)

// Lines as kube-apiserver 1.34 prints them.
const help134 = `      --feature-gates colonSeparatedMultimapStringString    Comma-separated list of component:key=value pairs. Options are:
                kube:APIResponseCompression=true|false (BETA - default=true)
                kube:DRAAdminAccess=true|false (BETA - default=true)
                kube:DRAConsumableCapacity=true|false (ALPHA - default=false)
                kube:DRADeviceTaints=true|false (ALPHA - default=false)
                kube:InPlacePodVerticalScaling=true|false (BETA - default=true)
`

func TestFeaturesAreReadFromWhatKubernetesPrints(t *testing.T) {
	t.Parallel()
	admin := Feature{Gate: "DRAAdminAccess", Since: 32}
	capacity := Feature{Gate: "DRAConsumableCapacity", Since: 34}
	always := Feature{Gate: "DynamicResourceAllocation", Since: 26}
	rules := Feature{Gate: "DRADeviceTaintRules", Since: 35}
	k, err := parseKubernetes("Kubernetes v1.34.4\n", help134)
	if err != nil {
		t.Fatal(err)
	}
	if k.Version != "1.34.4" || k.Minor != 34 {
		t.Errorf("version %q, minor %d", k.Version, k.Minor)
	}
	for _, c := range []struct {
		feature Feature
		want    bool
	}{{admin, true}, {capacity, true}, {always, true}, {rules, false}} {
		if got := k.Has(c.feature); got != c.want {
			t.Errorf("has %s: %v, want %v", c.feature.Gate, got, c.want)
		}
	}
	if got := k.SwitchOn(capacity, admin, always, rules, capacity); got != "DRAConsumableCapacity=true" {
		t.Errorf("switches on %q", got)
	}
}

func TestOutputThatTellsNothingIsAnError(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"Kubernetes master", help134}, {"Kubernetes v1.34.4", "usage"}} {
		if k, err := parseKubernetes(c[0], c[1]); err == nil {
			t.Errorf("%q, %q: got %v", c[0], c[1], k)
		}
	}
}

// leaving is a test that notes how it ended.
type leaving struct {
	testing.TB
	ended string
}

func (*leaving) Helper() {}

func (l *leaving) Fatalf(string, ...any) { l.ended += "failed " }

func (l *leaving) Skip(...any) { l.ended += "skipped " }

func TestOnlyAnOlderKubernetesLeavesSomethingOut(t *testing.T) {
	for minor, want := range map[int]string{complete - 1: "skipped", complete: "failed", complete + 1: "failed"} {
		var l leaving
		(&Kubernetes{Minor: minor}).LeaveOut(&l, "it has no such thing")
		if got, _, _ := strings.Cut(l.ended, " "); got != want { // a real Fatalf does not return
			t.Errorf("1.%d: want the test %s, got %q", minor, want, l.ended)
		}
	}
}
