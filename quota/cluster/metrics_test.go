package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// measured is a simulation with the quota q over the projects a and b, of which b uses 3
// devices, and a store of ledgers.
func measured(t *testing.T) (*simulation, QuotaMetrics) {
	t.Helper()
	s := newSimulation(t, 1)
	s.limit(4)
	for _, name := range []string{"a", "b"} {
		set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "x"}}})
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "c", UID: "c"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 3}}}
	set(s, quota.Claims, s.claims, claim)
	store := NewStore(StoreOptions{Clock: s.clock})
	l := ledger.New(store, s.view, ledger.Options{})
	return s, QuotaMetrics{View: s.view, Store: store, State: l.State, ProjectSeries: 100, Clock: s.clock}
}

// stored is a ledger of the quota q as somebody else wrote it.
func stored(version, used string, holds ...types.UID) *v1alpha1.DeviceLedger {
	l := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "l", ResourceVersion: version}}
	l.Status.Hard = corev1.ResourceList{devicesKey: *resourceQuantity(4)}
	l.Status.Used = corev1.ResourceList{}
	if used == "3" {
		l.Status.Used[devicesKey] = *resourceQuantity(3)
	}
	for _, uid := range holds {
		l.Status.Holds = append(l.Status.Holds, v1alpha1.Hold{UID: uid, Kind: v1alpha1.HoldClaim, Namespace: "b", Name: string(uid),
			Charge: corev1.ResourceList{devicesKey: *resourceQuantity(1)}})
	}
	return l
}

func TestEveryReplicaExportsTheNewestLedgerWhoeverWroteIt(t *testing.T) {
	t.Parallel()
	s, o := measured(t)
	c := NewQuotaCollector(o)
	want := func(text string, names ...string) {
		t.Helper()
		if err := testutil.CollectAndCompare(c, strings.NewReader(text), names...); err != nil {
			t.Error(err)
		}
	}
	o.Store.learn(stored("5", "3", "h"))
	want(`
# HELP devicequota_clusterresourcequota Limit, use and held charges of a quota by resource and type: hard, used, held.
# TYPE devicequota_clusterresourcequota gauge
devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpu.deviceclass.devicequota.io/devices",type="hard"} 4
devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpu.deviceclass.devicequota.io/devices",type="held"} 1
devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpu.deviceclass.devicequota.io/devices",type="used"} 3
# HELP devicequota_ledger_holds Holds in the quota's ledger by kind: charged, advisory.
# TYPE devicequota_ledger_holds gauge
devicequota_ledger_holds{clusterresourcequota="q",kind="advisory"} 0
devicequota_ledger_holds{clusterresourcequota="q",kind="charged"} 1
# HELP devicequota_ledger_oldest_hold_age_seconds Age of the oldest hold since this replica first saw it.
# TYPE devicequota_ledger_oldest_hold_age_seconds gauge
devicequota_ledger_oldest_hold_age_seconds{clusterresourcequota="q"} 0
`, "devicequota_clusterresourcequota", "devicequota_ledger_holds", "devicequota_ledger_oldest_hold_age_seconds")

	// Nobody writes: the hold grows old all the same.
	s.clock.Step(2 * time.Minute)
	want(`
# HELP devicequota_ledger_oldest_hold_age_seconds Age of the oldest hold since this replica first saw it.
# TYPE devicequota_ledger_oldest_hold_age_seconds gauge
devicequota_ledger_oldest_hold_age_seconds{clusterresourcequota="q"} 120
`, "devicequota_ledger_oldest_hold_age_seconds")

	o.Store.learn(stored("6", "0"))
	want(`
# HELP devicequota_clusterresourcequota Limit, use and held charges of a quota by resource and type: hard, used, held.
# TYPE devicequota_clusterresourcequota gauge
devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpu.deviceclass.devicequota.io/devices",type="hard"} 4
devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpu.deviceclass.devicequota.io/devices",type="held"} 0
devicequota_clusterresourcequota{clusterresourcequota="q",resource="gpu.deviceclass.devicequota.io/devices",type="used"} 0
# HELP devicequota_ledger_oldest_hold_age_seconds Age of the oldest hold since this replica first saw it.
# TYPE devicequota_ledger_oldest_hold_age_seconds gauge
devicequota_ledger_oldest_hold_age_seconds{clusterresourcequota="q"} 0
`, "devicequota_clusterresourcequota", "devicequota_ledger_oldest_hold_age_seconds")

	o.Store.forget(stored("6", "0"))
	if n := testutil.CollectAndCount(c, "devicequota_clusterresourcequota", "devicequota_ledger_holds", "devicequota_ledger_rebuilding"); n != 0 {
		t.Errorf("%d series are left of a quota that is gone", n)
	}
}

func TestAReplicaThatHasChargedNothingYetExportsNoUseByProject(t *testing.T) {
	t.Parallel()
	s, o := measured(t)
	s.view.index.charger = nil
	if n := testutil.CollectAndCount(NewQuotaCollector(o), "devicequota_clusterresourcequota_project", "devicequota_clusterresourcequota_project_left_out"); n != 0 {
		t.Errorf("want no series, got %d", n)
	}
}

func TestUseByProjectAddsUpAndKeepsToItsBound(t *testing.T) {
	t.Parallel()
	_, o := measured(t)
	const head = `
# HELP devicequota_clusterresourcequota_project Use of a quota by one of its projects, and the limit that it shares, by resource and type: hard, used.
# TYPE devicequota_clusterresourcequota_project gauge
`
	const b = `devicequota_clusterresourcequota_project{clusterresourcequota="q",project="b",resource="gpu.deviceclass.devicequota.io/devices",type="hard"} 4
devicequota_clusterresourcequota_project{clusterresourcequota="q",project="b",resource="gpu.deviceclass.devicequota.io/devices",type="used"} 3
`
	const a = `devicequota_clusterresourcequota_project{clusterresourcequota="q",project="a",resource="gpu.deviceclass.devicequota.io/devices",type="hard"} 4
devicequota_clusterresourcequota_project{clusterresourcequota="q",project="a",resource="gpu.deviceclass.devicequota.io/devices",type="used"} 0
`
	leftOut := func(n string) string {
		return `
# HELP devicequota_clusterresourcequota_project_left_out Series of use by project that are left out because there would be too many.
# TYPE devicequota_clusterresourcequota_project_left_out gauge
devicequota_clusterresourcequota_project_left_out ` + n + "\n"
	}
	for bound, want := range map[int]string{
		100: head + a + b + leftOut("0"),
		4:   head + a + b + leftOut("0"),
		3:   head + b + leftOut("2"), // who uses anything comes first
		1:   leftOut("4"),
		0:   "",
	} {
		o.ProjectSeries = bound
		if err := testutil.CollectAndCompare(NewQuotaCollector(o), strings.NewReader(want),
			"devicequota_clusterresourcequota_project", "devicequota_clusterresourcequota_project_left_out"); err != nil {
			t.Errorf("bound %d: %v", bound, err)
		}
	}
}
