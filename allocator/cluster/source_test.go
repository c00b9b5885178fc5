package cluster

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/allocator/cluster/feed"

	"github.com/devicequota/devicequota/allocator"
)

func newTestSource(t *testing.T) (*Source, map[string]feed.Store) {
	t.Helper()
	api, err := NewAPI(V1, V1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSource(SourceOptions{API: api})
	if err != nil {
		t.Fatal(err)
	}
	stores := map[string]feed.Store{}
	for _, f := range s.Feeds() {
		stores[f.Name()] = f.Store()
	}
	return s, stores
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func partialNode(name, version, zone string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Labels: map[string]string{"zone": zone}}}
}

func TestHeartbeatsMoveTheVersionButAreNoChange(t *testing.T) {
	t.Parallel()
	s, stores := newTestSource(t)
	do(t, stores["nodes"].Replace([]any{partialNode("n", "3", "a")}, "10"))
	before := s.Snapshot()
	if want := (Versions{Nodes: 10}); before.Contained != want {
		t.Errorf("contained: want %v, got %v", want, before.Contained)
	}
	if want := (Versions{Nodes: 3}); before.Newest != want {
		t.Errorf("newest: want %v, got %v", want, before.Newest)
	}
	do(t, stores["nodes"].Update(partialNode("n", "11", "a")))
	after := s.Snapshot()
	if after.Inventory.Revision() != before.Inventory.Revision() || after.Newest != before.Newest || after.Contained.Nodes != 11 {
		t.Errorf("heartbeat: before %v %v, after %v %v", before.Inventory.Revision(), before, after.Inventory.Revision(), after)
	}
	do(t, stores["nodes"].Update(partialNode("n", "12", "b")))
	moved := s.Snapshot()
	if moved.Inventory.Revision() == after.Inventory.Revision() || moved.Newest.Nodes != 12 {
		t.Errorf("relabel: %v %v", moved.Inventory.Revision(), moved)
	}
	if got := moved.Inventory.Node("n").Labels["zone"]; got != "b" {
		t.Errorf("zone: %q", got)
	}
}

func testSlice(name, version string, generation int64, devices ...string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "d.example.com", AllNodes: ptr.To(true), Pool: resourceapi.ResourcePool{Name: "p", Generation: generation, ResourceSliceCount: 1}}}
	for _, d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: d})
	}
	return s
}

func TestSnapshotFollowsSlicesAndClasses(t *testing.T) {
	t.Parallel()
	s, stores := newTestSource(t)
	kicked := 0
	s.Subscribe(func() { kicked++ })
	do(t, stores["slices"].Replace([]any{testSlice("s", "4", 1, "a", "b")}, "5"))
	do(t, stores["classes"].Replace(nil, "6"))
	do(t, stores["classes"].Add(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "c", ResourceVersion: "7"}}))
	first := s.Snapshot()
	if first.Inventory.Device("d.example.com", "p", "b") == nil || first.Inventory.DeviceClass("c") == nil {
		t.Error("what was added is missing")
	}
	do(t, stores["slices"].Replace([]any{testSlice("s2", "8", 2, "a")}, "9"))
	do(t, stores["classes"].Delete(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "c", ResourceVersion: "10"}}))
	second := s.Snapshot()
	if second.Inventory.Device("d.example.com", "p", "b") != nil || second.Inventory.DeviceClass("c") != nil {
		t.Error("what was removed is still there")
	}
	if first.Inventory.Device("d.example.com", "p", "b") == nil {
		t.Error("an older snapshot changed")
	}
	want := Snapshot{Contained: Versions{Slices: 9, Classes: 10}, Newest: Versions{Slices: 8, Classes: 10}}
	if second.Contained != want.Contained || second.Newest != want.Newest {
		t.Errorf("want %v %v, got %v %v", want.Contained, want.Newest, second.Contained, second.Newest)
	}
	if kicked != 5 {
		t.Errorf("subscriber: want 5 calls, got %d", kicked)
	}
}

func TestSourceIsSyncedWhenEverythingWasReceived(t *testing.T) {
	t.Parallel()
	s, stores := newTestSource(t)
	for _, name := range []string{"slices", "classes", "nodes", "devicetaintrules"} {
		if s.Synced() {
			t.Errorf("synced before %s", name)
		}
		do(t, stores[name].Replace(nil, "1"))
	}
	if !s.Synced() {
		t.Error("not synced")
	}
}

func TestOlderVersionsAreConvertedAndDefaulted(t *testing.T) {
	t.Parallel()
	api, err := NewAPI(V1, "")
	do(t, err)
	want := resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "c", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Tolerations: []resourceapi.DeviceToleration{{Key: "k", Operator: resourceapi.DeviceTolerationOpEqual}},
	}}
	v1 := &resourceapi.ResourceClaim{}
	v1.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "c", Tolerations: []resourceapi.DeviceToleration{{Key: "k"}}}}}
	v1beta2 := &resourcev1beta2.ResourceClaim{}
	v1beta2.Spec.Devices.Requests = []resourcev1beta2.DeviceRequest{{Name: "r", Exactly: &resourcev1beta2.ExactDeviceRequest{DeviceClassName: "c", Tolerations: []resourcev1beta2.DeviceToleration{{Key: "k"}}}}}
	v1beta1 := &resourcev1beta1.ResourceClaim{}
	v1beta1.Spec.Devices.Requests = []resourcev1beta1.DeviceRequest{{Name: "r", DeviceClassName: "c", Tolerations: []resourcev1beta1.DeviceToleration{{Key: "k"}}}}
	for name, obj := range map[string]runtime.Object{"v1": v1, "v1beta2": v1beta2, "v1beta1": v1beta1} {
		claim, err := api.Claim(obj)
		do(t, err)
		if diff := cmp.Diff([]resourceapi.DeviceRequest{want}, claim.Spec.Devices.Requests); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	template := &resourcev1beta1.ResourceClaimTemplate{}
	template.Spec.Spec = v1beta1.Spec
	got, err := api.Template(template)
	do(t, err)
	if diff := cmp.Diff([]resourceapi.DeviceRequest{want}, got.Spec.Spec.Devices.Requests); diff != "" {
		t.Errorf("template (-want +got):\n%s", diff)
	}
}

func TestDefaultingTouchesNothingThatIsSet(t *testing.T) {
	t.Parallel()
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
		{Name: "neither"},
		{Name: "all", Exactly: &resourceapi.ExactDeviceRequest{AllocationMode: resourceapi.DeviceAllocationModeAll}},
		{Name: "negative", Exactly: &resourceapi.ExactDeviceRequest{AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: -1}},
		{Name: "future", Exactly: &resourceapi.ExactDeviceRequest{AllocationMode: "Future"}},
		{Name: "list", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "a", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 3}}},
	}}}
	want := *spec.DeepCopy()
	allocator.DefaultClaimSpec(&spec)
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestServedWritesWhatClaimReads(t *testing.T) {
	t.Parallel()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "c", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2}}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "r", Driver: "d", Pool: "p", Device: "x", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}}}}}
	for _, version := range []string{V1, V1beta2, V1beta1} {
		api, err := NewAPI(version, "")
		do(t, err)
		obj, err := api.Served(claim.DeepCopy())
		do(t, err)
		back, err := api.Claim(obj)
		do(t, err)
		if diff := cmp.Diff(claim, back); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
	}
}

func TestTaintRulesOfV1alpha3(t *testing.T) {
	t.Parallel()
	api, err := NewAPI(V1, v1alpha3)
	do(t, err)
	rule := &resourcev1alpha3.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	rule.Spec.DeviceSelector = &resourcev1alpha3.DeviceTaintSelector{Driver: ptr.To("d"), Pool: ptr.To("p"), Device: ptr.To("x")}
	rule.Spec.Taint = resourcev1alpha3.DeviceTaint{Key: "k", Value: "v", Effect: resourcev1alpha3.DeviceTaintEffectNoExecute}
	got, err := api.TaintRule(rule)
	do(t, err)
	want := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	want.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To("d"), Pool: ptr.To("p"), Device: ptr.To("x")}
	want.Spec.Taint = resourceapi.DeviceTaint{Key: "k", Value: "v", Effect: resourceapi.DeviceTaintEffectNoExecute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// served answers discovery.
type served struct {
	discovery.DiscoveryInterface
	resources  map[string][]string // version -> resources
	kubernetes string              // 1.37 if empty
	err        error
}

func (s served) ServerVersion() (*version.Info, error) {
	v := s.kubernetes
	if v == "" {
		v = "v1.37.2"
	}
	return &version.Info{GitVersion: v}, s.err
}

func (s served) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	if s.err != nil {
		return nil, s.err
	}
	gv, err := schema.ParseGroupVersion(groupVersion)
	if err != nil {
		return nil, err
	}
	names, ok := s.resources[gv.Version]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, groupVersion)
	}
	l := &metav1.APIResourceList{}
	for _, name := range names {
		l.APIResources = append(l.APIResources, metav1.APIResource{Name: name})
	}
	return l, nil
}

func TestDiscoveryPrefersTheNewestVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		served         map[string][]string
		version, rules string
		err            error
	}{
		{"1.37", map[string][]string{"v1": {"resourceclaims", "devicetaintrules"}, "v1beta2": {"devicetaintrules"}}, V1, V1, nil},
		{"1.35 with everything", map[string][]string{"v1": {"resourceclaims"}, "v1beta2": {"resourceclaims"}, "v1beta1": {"resourceclaims"}, "v1alpha3": {"devicetaintrules"}}, V1, v1alpha3, nil},
		{"1.33", map[string][]string{"v1beta1": {"resourceclaims"}, "v1beta2": {"resourceclaims"}}, V1beta2, "", nil},
		{"1.32", map[string][]string{"v1beta1": {"resourceclaims"}}, V1beta1, "", nil},
		{"none", map[string][]string{"v1alpha3": {"devicetaintrules"}}, "", "", ErrNotServed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			api, err := DiscoverAPI(t.Context(), served{resources: c.served})
			if !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			if err == nil && (api.Version != c.version || api.TaintRules != c.rules) {
				t.Errorf("want %s and rules %q, got %s and %q", c.version, c.rules, api.Version, api.TaintRules)
			}
		})
	}
	if _, err := DiscoverAPI(t.Context(), served{err: errors.New("connection refused")}); err == nil || errors.Is(err, ErrNotServed) {
		t.Errorf("no answer: %v", err)
	}
}

func TestAChosenVersionHasToBeServed(t *testing.T) {
	t.Parallel()
	d := served{resources: map[string][]string{"v1": {"resourceclaims", "devicetaintrules"}, "v1beta1": {"resourceclaims"}}}
	api, err := DiscoverVersion(t.Context(), d, V1beta1)
	if err != nil || api.Version != V1beta1 || api.TaintRules != V1 {
		t.Errorf("v1beta1: %v, %v", api, err)
	}
	const want = "the API server does not serve resource.k8s.io/v1beta2: it serves v1, v1beta1"
	if _, err := DiscoverVersion(t.Context(), d, V1beta2); err == nil || err.Error() != want {
		t.Errorf("v1beta2: want %q, got %v", want, err)
	}
	if _, err := DiscoverVersion(t.Context(), served{}, V1); !errors.Is(err, ErrNotServed) {
		t.Errorf("nothing: %v", err)
	}
}

func TestCountersBesideDevicesAreReadWhereTheyMayBe(t *testing.T) {
	t.Parallel()
	for kubernetes, want := range map[string]bool{"v1.33.6": true, "v1.34.2+abcdef": true, "v1.35.0": false, "v1.37.2": false} {
		api, err := DiscoverAPI(t.Context(), served{kubernetes: kubernetes, resources: map[string][]string{"v1": {"resourceclaims"}}})
		do(t, err)
		s, err := NewSource(SourceOptions{API: api})
		do(t, err)
		stores := map[string]feed.Store{}
		for _, f := range s.Feeds() {
			stores[f.Name()] = f.Store()
		}
		both := testSlice("s", "4", 1, "a")
		both.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set"}}
		do(t, stores["slices"].Replace([]any{both}, "5"))
		do(t, stores["classes"].Replace([]any{&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "c", ResourceVersion: "6"}}}, "6"))
		got := false
		_, err = s.Snapshot().Inventory.Candidates("c", nil, func(string, string, *resourceapi.Device, []string) bool {
			got = true
			return true
		})
		do(t, err)
		if got != want {
			t.Errorf("%s: device is a candidate: %v, want %v", kubernetes, got, want)
		}
	}
}

func TestSlicesAndClassesOfOlderVersionsAreTheSame(t *testing.T) {
	t.Parallel()
	want := testSlice("s", "1", 1, "a")
	want.Spec.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: ptr.To("x")}}
	want.Spec.Devices[0].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}
	want.Spec.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "set", Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("10Gi")}}}}
	want.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	want.Spec.Devices[0].AllowMultipleAllocations = ptr.To(true)
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourceapi.DeviceClassSpec{
		ExtendedResourceName: ptr.To("example.com/gpu"), Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}}}}
	for _, version := range []string{V1, V1beta2, V1beta1} {
		api, err := NewAPI(version, "")
		do(t, err)
		old, err := api.New("ResourceSlice")
		do(t, err)
		oldClass, err := api.New("DeviceClass")
		do(t, err)
		if version == V1 {
			old, oldClass = want.DeepCopy(), class.DeepCopy()
		} else {
			do(t, api.scheme.Convert(want.DeepCopy(), old, nil))
			do(t, api.scheme.Convert(class.DeepCopy(), oldClass, nil))
		}
		got, err := api.Slice(old)
		do(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: slice (-want +got):\n%s", version, diff)
		}
		gotClass, err := api.Class(oldClass)
		do(t, err)
		if diff := cmp.Diff(class, gotClass); diff != "" {
			t.Errorf("%s: class (-want +got):\n%s", version, diff)
		}
	}
}

func TestAnAPIIsOutdatedWhenWhatItReadsIsServedNoMore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		version, rule string
		served        map[string][]string
		want          string
	}{
		{"still served beside a newer one", V1beta1, "", map[string][]string{"v1": {"resourceclaims"}, "v1beta1": {"resourceclaims"}}, ""},
		{"another one is left", V1beta2, "", map[string][]string{"v1": {"resourceclaims"}}, "resource.k8s.io/v1beta2 is served no more, v1 is"},
		{"nothing is left", V1beta2, "", nil, ""},
		{"taint rules have come", V1, "", map[string][]string{"v1": {"resourceclaims"}, "v1beta2": {"devicetaintrules"}}, "devicetaintrules are served in resource.k8s.io/v1beta2 now"},
		{"taint rules have gone", V1, v1alpha3, map[string][]string{"v1": {"resourceclaims"}}, "devicetaintrules are served no more in resource.k8s.io/v1alpha3"},
		{"taint rules in a newer version, too", V1, v1alpha3, map[string][]string{"v1": {"resourceclaims"}, "v1alpha3": {"devicetaintrules"}, "v1beta2": {"devicetaintrules"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			api, err := NewAPI(c.version, c.rule)
			do(t, err)
			got, err := api.Outdated(t.Context(), served{resources: c.served})
			if got != c.want || err != nil {
				t.Errorf("want %q, got %q, %v", c.want, got, err)
			}
		})
	}
	api, err := NewAPI(V1, "")
	do(t, err)
	if got, err := api.Outdated(t.Context(), served{err: errors.New("connection refused")}); err == nil || got != "" {
		t.Errorf("no answer: %q, %v", got, err)
	}
}
