package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// shelf is an Inventory: per class, devices of one size.
type shelf struct {
	revision uint64
	// class -> memory of each of its devices, in Gi
	memory map[string][]int64
}

func (s *shelf) Revision() uint64 { return s.revision }
func (s *shelf) DeviceClass(name string) *resourceapi.DeviceClass {
	if _, ok := s.memory[name]; !ok {
		return nil
	}
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if name == "gpu" {
		c.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	}
	return c
}
func (s *shelf) DeviceClasses() []string {
	var names []string
	for name := range s.memory {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
func (s *shelf) ExtendedResourceClass(r corev1.ResourceName) *resourceapi.DeviceClass {
	if r == "example.com/gpu" {
		return s.DeviceClass("gpu")
	}
	return nil
}
func (s *shelf) Candidates(class string, _ []resourceapi.DeviceSelector, yield func(string, string, *resourceapi.Device, []string) bool) (bool, error) {
	for i := range s.memory[class] {
		if !yield("example.com", class, s.Device("example.com", class, fmt.Sprint(i)), nil) {
			break
		}
	}
	return true, nil
}
func (s *shelf) Device(_, pool, name string) *resourceapi.Device {
	i, err := strconv.Atoi(name)
	if err != nil || i >= len(s.memory[pool]) {
		return nil
	}
	return &resourceapi.Device{Name: name, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		"memory": {Value: *resource.NewQuantity(s.memory[pool][i]<<30, resource.BinarySI)},
	}}
}
func (s *shelf) Matches(string, string, string, string) (bool, error) { return true, nil }

const (
	objectsKey = "count/resourceclaims.resource.k8s.io"
	devicesKey = "gpu.deviceclass.devicequota.io/devices"
	memoryKey  = "gpu.deviceclass.devicequota.io/capacity.memory"
	nicKey     = "nic.deviceclass.devicequota.io/devices"
)

// simulation sends events to an index as feeds do, and counts from scratch.
type simulation struct {
	t       *testing.T
	r       *rand.Rand
	clock   *testclock.FakeClock
	view    *View
	version uint64
	shelf   *shelf
	silent  bool // events are not sent: the watches stand still

	claims     map[string]*resourceapi.ResourceClaim
	pods       map[string]*corev1.Pod
	namespaces map[string]*metav1.PartialObjectMetadata
	quotas     map[string]*quotav1.ClusterResourceQuota
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), clock: testclock.NewFakeClock(time.Unix(1, 0)),
		claims: map[string]*resourceapi.ResourceClaim{}, pods: map[string]*corev1.Pod{},
		namespaces: map[string]*metav1.PartialObjectMetadata{}, quotas: map[string]*quotav1.ClusterResourceQuota{},
	}
	s.view = &View{o: Options{Clock: s.clock}}
	s.view.index = newIndex(Options{Clock: s.clock, Exempt: []string{"exempt"}}, func(Change) {})
	s.stock()
	return s
}

func resourceQuantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

func (s *simulation) next() string {
	s.version++
	return strconv.FormatUint(s.version, 10)
}

// stock publishes other devices.
func (s *simulation) stock() {
	s.shelf = &shelf{revision: s.version + 1, memory: map[string][]int64{"gpu": {8, 40}, "nic": {0}}}
	s.version++
	for i := range s.shelf.memory["gpu"] {
		s.shelf.memory["gpu"][i] = int64(1 + s.r.IntN(80))
	}
	at := inventoryAt{inventory: s.shelf}
	at.version[quota.Slices], at.recorded[quota.Slices] = s.version, s.version
	at.version[quota.Classes], at.version[quota.Nodes] = 1, 1
	s.view.index.setInventory(at)
}

func (s *simulation) target(c quota.Component) indexTarget {
	return indexTarget{x: s.view.index, component: c}
}

// set stores the object in the map and sends the event.
func set[T client.Object](s *simulation, c quota.Component, m map[string]T, obj T) {
	obj.SetResourceVersion(s.next())
	m[obj.GetNamespace()+"/"+obj.GetName()] = obj
	if !s.silent {
		s.target(c).Set(obj, s.version)
	}
}

func drop[T client.Object](s *simulation, c quota.Component, m map[string]T, key string) {
	obj, ok := m[key]
	if !ok {
		return
	}
	delete(m, key)
	last, isObject := obj.DeepCopyObject().(client.Object)
	if !isObject {
		s.t.Fatal("no object")
	}
	last.SetResourceVersion(s.next())
	if !s.silent {
		s.target(c).Delete(last, s.version)
	}
}

// relist sends a full list, as after an expired watch. lose are objects that vanish unseen.
func relist[T client.Object](s *simulation, c quota.Component, m map[string]T, lose int) {
	var objs []client.Object
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i < lose {
			delete(m, key)
			continue
		}
		objs = append(objs, m[key])
	}
	s.next()
	if !s.silent {
		s.target(c).Replace(objs, s.version)
	}
}

func (s *simulation) namespace() string {
	return []string{"a", "b", "c", "d", "exempt"}[s.r.IntN(5)]
}

// step makes one random change.
func (s *simulation) step() {
	if s.r.IntN(16) == 0 {
		s.stock()
		return
	}
	s.stepWithoutStock()
}

// stepWithoutStock makes one random change, but not of the inventory.
func (s *simulation) stepWithoutStock() {
	switch s.r.IntN(15) {
	case 0, 1, 2, 3:
		set(s, quota.Claims, s.claims, s.claim())
	case 4:
		drop(s, quota.Claims, s.claims, fmt.Sprintf("%s/c%d", s.namespace(), s.r.IntN(4)))
	case 5, 6:
		set(s, quota.Pods, s.pods, s.pod())
	case 7:
		drop(s, quota.Pods, s.pods, fmt.Sprintf("%s/p%d", s.namespace(), s.r.IntN(2)))
	case 8, 9:
		ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: s.namespace(), Labels: map[string]string{"team": []string{"x", "y", "z"}[s.r.IntN(3)]}}}
		set(s, quota.Namespaces, s.namespaces, ns)
	case 10:
		drop(s, quota.Namespaces, s.namespaces, "/"+s.namespace())
	case 11, 12:
		set(s, quota.Quotas, s.quotas, s.quota())
	case 13:
		drop(s, quota.Quotas, s.quotas, fmt.Sprintf("/q%d", s.r.IntN(3)))
	case 14:
		switch s.r.IntN(4) {
		case 0:
			relist(s, quota.Claims, s.claims, s.r.IntN(3))
		case 1:
			relist(s, quota.Pods, s.pods, s.r.IntN(2))
		case 2:
			relist(s, quota.Namespaces, s.namespaces, s.r.IntN(2))
		case 3:
			relist(s, quota.Quotas, s.quotas, s.r.IntN(2))
		}
	}
}

func (s *simulation) claim() *resourceapi.ResourceClaim {
	namespace, name := s.namespace(), fmt.Sprintf("c%d", s.r.IntN(4))
	old := s.claims[namespace+"/"+name]
	uid := types.UID(fmt.Sprintf("%s-%s-%d", namespace, name, s.version))
	if old != nil && s.r.IntN(4) > 0 {
		uid = old.UID
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: []string{"gpu", "nic"}[s.r.IntN(2)], AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(1 + s.r.IntN(3)),
	}}}
	if pod := s.pods[namespace+"/p0"]; pod != nil && s.r.IntN(2) == 0 {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
	}
	if s.r.IntN(3) == 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "r", Driver: "example.com", Pool: "gpu", Device: fmt.Sprint(s.r.IntN(2))},
		}}}
	}
	return c
}

func (s *simulation) pod() *corev1.Pod {
	namespace, name := s.namespace(), fmt.Sprintf("p%d", s.r.IntN(2))
	old := s.pods[namespace+"/"+name]
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%s-%d", namespace, name, s.version))}}
	want := corev1.ResourceList{"example.com/gpu": *resource.NewQuantity(int64(1+s.r.IntN(2)), resource.DecimalSI)}
	if old != nil {
		p.UID, want = old.UID, old.Spec.Containers[0].Resources.Requests
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: want, Limits: want}}}
	if s.r.IntN(2) == 0 {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: fmt.Sprintf("c%d", s.r.IntN(4))}
	}
	if s.r.IntN(4) == 0 {
		p.Status.Phase = corev1.PodSucceeded
	}
	return p
}

func (s *simulation) quota() *quotav1.ClusterResourceQuota {
	name := fmt.Sprintf("q%d", s.r.IntN(3))
	crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	crq.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": []string{"x", "y"}[s.r.IntN(2)]}}
	crq.Spec.Quota.Hard = corev1.ResourceList{}
	for _, key := range []corev1.ResourceName{objectsKey, devicesKey, memoryKey, nicKey} {
		if s.r.IntN(2) == 0 {
			crq.Spec.Quota.Hard[key] = *resource.NewQuantity(int64(s.r.IntN(100)), resource.DecimalSI)
		}
	}
	if s.r.IntN(2) == 0 {
		crq.Annotations = map[string]string{quota.TrueDownAnnotation: string(quota.TrueDownAlways)}
	}
	return crq
}

// scratch counts a quota from what exists.
func (s *simulation) scratch(q *quota.Quota) (used corev1.ResourceList, byNamespace map[string]corev1.ResourceList) {
	charger := quota.NewCharger(s.shelf)
	used, byNamespace = corev1.ResourceList{}, map[string]corev1.ResourceList{}
	for _, ns := range s.namespaces {
		if ns.Name == "exempt" || !q.Selector.Matches(ns.Labels, ns.Annotations) {
			continue
		}
		sum := corev1.ResourceList{}
		for _, claim := range s.claims {
			if claim.Namespace == ns.Name {
				charge, _ := charger.Claim(claim, q, nil)
				quota.AddTo(sum, charge)
			}
		}
		for _, pod := range s.pods {
			if pod.Namespace == ns.Name && !s.hasClaim(pod) {
				charge, _ := charger.CountPod(pod, q, nil)
				quota.AddTo(sum, charge)
			}
		}
		byNamespace[ns.Name] = sum
		quota.AddTo(used, sum)
	}
	return used, byNamespace
}

func (s *simulation) hasClaim(pod *corev1.Pod) bool {
	for _, claim := range s.claims {
		if quota.Recognised(claim, pod) {
			return true
		}
	}
	return false
}

// check compares the index with a count from scratch.
func (s *simulation) check() {
	s.t.Helper()
	var uids []types.UID
	for _, claim := range s.claims {
		uids = append(uids, claim.UID)
	}
	for name := range map[string]bool{"q0": true, "q1": true, "q2": true} {
		o := s.view.Cached().Observe(name, nil, uids)
		crq := s.quotas["/"+name]
		if (crq == nil) != (o.Quota == nil) {
			s.t.Fatalf("quota %s: exists %v, observed %v", name, crq != nil, o.Quota)
		}
		if crq == nil {
			continue
		}
		q, _ := quota.Parse(crq, quota.ParseOptions{})
		used, byNamespace := s.scratch(q)
		s.equal(name, used, o.Used)
		if len(byNamespace) != len(o.ByNamespace) {
			s.t.Fatalf("%s: projects: want %v, got %v", name, byNamespace, o.ByNamespace)
		}
		for ns := range byNamespace {
			s.equal(name+" in "+ns, byNamespace[ns], o.ByNamespace[ns])
		}
		for c, v := range o.Version {
			if o.Recorded[c] > v {
				s.t.Fatalf("%s: recorded %d is ahead of version %d", quota.Component(c), o.Recorded[c], v)
			}
		}
		s.checkPresent(o)
	}
}

// checkPresent: exactly the claims whose project exists are present.
func (s *simulation) checkPresent(o quota.Observed) {
	s.t.Helper()
	for _, claim := range s.claims {
		known := false
		for _, ns := range s.namespaces {
			known = known || ns.Name == claim.Namespace
		}
		if o.Present[claim.UID] != known {
			s.t.Fatalf("%s: present %v, project known %v", claim.UID, o.Present[claim.UID], known)
		}
	}
}

func (s *simulation) equal(what string, want, got corev1.ResourceList) {
	s.t.Helper()
	if !quota.Equal(want, got) {
		s.t.Fatalf("%s: want %s, got %s", what, quota.Format(want), quota.Format(got))
	}
}

func TestIndexEqualsRecountFromScratchAfterEveryEvent(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		s := newSimulation(t, seed)
		for step := range 300 {
			s.step()
			s.check()
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

func TestDeletedObjectIsStillPresentForItsHold(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 1)
	claim := s.claim()
	set(s, quota.Claims, s.claims, claim)
	drop(s, quota.Claims, s.claims, claim.Namespace+"/"+claim.Name)
	o := s.view.Cached().Observe("q0", nil, []types.UID{claim.UID, "never-seen"})
	want := map[types.UID]bool{claim.UID: true, "never-seen": false}
	if diff := cmp.Diff(want, o.Present); diff != "" {
		t.Errorf("present (-want +got):\n%s", diff)
	}
}

// TestAnObjectIsPresentOnlyTogetherWithItsProject: the watch of namespaces may be behind that of
// claims. An object whose project is not known is counted for no quota: its hold must not end.
func TestAnObjectIsPresentOnlyTogetherWithItsProject(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{false, true} {
		s, _ := newServed(t, 5)
		claim, pod := s.claim(), s.pod()
		claim.Namespace, pod.Namespace = "young", "young"
		set(s, quota.Claims, s.claims, claim)
		set(s, quota.Pods, s.pods, pod)
		present := func() map[types.UID]bool {
			o := s.view.Cached()
			if live {
				var err error
				if o, err = s.view.Live(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return o.Observe("q0", nil, []types.UID{claim.UID, pod.UID}).Present
		}
		if got := present(); got[claim.UID] || got[pod.UID] {
			t.Errorf("live %v: present without their project: %v", live, got)
		}
		set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "young"}})
		if got := present(); !got[claim.UID] || !got[pod.UID] {
			t.Errorf("live %v: not present with their project: %v", live, got)
		}
	}
}

func TestObservationDoesNotChangeAfterLaterEvents(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 1)
	crq := s.quota()
	crq.Spec.Quota.Hard = corev1.ResourceList{objectsKey: resource.MustParse("5")}
	crq.Spec.Selector.LabelSelector.MatchLabels["team"] = "x"
	set(s, quota.Quotas, s.quotas, crq)
	set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "x"}}})
	before := s.view.Cached().Observe(crq.Name, nil, nil)
	claim := s.claim()
	claim.Namespace = "a"
	set(s, quota.Claims, s.claims, claim)
	if !quota.Equal(before.Used, nil) || !quota.Equal(before.ByNamespace["a"], nil) {
		t.Errorf("changed to %v, %v", before.Used, before.ByNamespace)
	}
	after := s.view.Cached().Observe(crq.Name, nil, nil)
	if q := after.ByNamespace["a"][objectsKey]; q.Value() != 1 {
		t.Errorf("want 1 claim, got %v", after.ByNamespace)
	}
}

func TestStatusOnlyChangeOfAQuotaIsTheSameQuota(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 1)
	crq := s.quota()
	set(s, quota.Quotas, s.quotas, crq)
	before := s.view.Cached().Observe(crq.Name, nil, nil)
	changed := crq.DeepCopy()
	changed.Status.Total.Hard = crq.Spec.Quota.Hard
	set(s, quota.Quotas, s.quotas, changed)
	after := s.view.Cached().Observe(crq.Name, nil, nil)
	if before.Quota != after.Quota || before.Recorded != after.Recorded {
		t.Error("a status write was recorded as a new quota")
	}
	if after.Version[quota.Quotas] != s.version {
		t.Errorf("version: want %d, got %d", s.version, after.Version[quota.Quotas])
	}
}

func TestGoneQuotaIsCountedByItsLastSelector(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 3)
	for range 200 {
		s.step()
	}
	crq := s.quota()
	q, _ := quota.Parse(crq, quota.ParseOptions{})
	drop(s, quota.Quotas, s.quotas, "/"+crq.Name)
	want, _ := s.scratch(q)
	s.equal("gone quota", want, s.view.Cached().Observe(crq.Name, q, nil).Used)
	s.equal("unknown quota", nil, s.view.Cached().Observe(crq.Name, nil, nil).Used)
}

func TestLastKnownChargeOutlivesTheDevicesAndARestart(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 1)
	crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "q"}}
	crq.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	crq.Spec.Quota.Hard = corev1.ResourceList{memoryKey: resource.MustParse("100Gi")}
	crq.Annotations = map[string]string{quota.TrueDownAnnotation: string(quota.TrueDownAlways)}
	set(s, quota.Quotas, s.quotas, crq)
	set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "x"}}})
	claim := s.claim()
	claim.Namespace, claim.UID = "a", "u"
	claim.Spec.Devices.Requests[0].Exactly.DeviceClassName = "gpu"
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "r", Driver: "example.com", Pool: "gpu", Device: "0"},
	}}}
	set(s, quota.Claims, s.claims, claim)
	known := s.view.Cached().Observe("q", nil, nil).Used

	empty := &shelf{revision: 1000, memory: map[string][]int64{}}
	s.view.index.setInventory(inventoryAt{inventory: empty})
	o := s.view.Cached().Observe("q", nil, nil)
	s.equal("devices gone", known, o.Used)
	if len(o.Remembered) != 1 || !quota.Equal(o.Remembered[0].Charge, known) {
		t.Errorf("remembered: want %v, got %v", known, o.Remembered)
	}

	restarted := newSimulation(t, 1)
	restarted.view.index.setInventory(inventoryAt{inventory: empty})
	set(restarted, quota.Quotas, restarted.quotas, crq)
	set(restarted, quota.Namespaces, restarted.namespaces, s.namespaces["/a"])
	set(restarted, quota.Claims, restarted.claims, claim)
	restarted.view.index.seed("q", []v1alpha1.RememberedCharge{{UID: "u", Charge: known}})
	restarted.equal("after a restart", known, restarted.view.Cached().Observe("q", nil, nil).Used)
}

// uncomputable returns an index of the quota q over the project a that has no inventory yet, a
// claim to be set there, and an inventory without the claim's devices.
func uncomputable(t *testing.T) (s *simulation, claim *resourceapi.ResourceClaim, gone *shelf) {
	t.Helper()
	s = newSimulation(t, 1)
	s.view.index = newIndex(Options{Clock: s.clock}, func(Change) {})
	s.limit(4)
	crq := s.quotas["/q"].DeepCopy()
	crq.Spec.Quota.Hard = corev1.ResourceList{memoryKey: resource.MustParse("100Gi")}
	set(s, quota.Quotas, s.quotas, crq)
	set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "x"}}})
	claim = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c", UID: "u"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "r", Driver: "example.com", Pool: "gpu", Device: "0"},
	}}}
	return s, claim, &shelf{revision: 1000, memory: map[string][]int64{}}
}

// TestWhatALedgerRemembersIsKeptWheneverItIsReceived: the watches of a replica that starts are
// filled in any order, and its ledgers are read while it charges by its first inventory.
func TestWhatALedgerRemembersIsKeptWheneverItIsReceived(t *testing.T) {
	t.Parallel()
	remembered := corev1.ResourceList{memoryKey: resource.MustParse("40Gi")}
	seed := func(s *simulation) {
		s.view.index.seed("q", []v1alpha1.RememberedCharge{{UID: "u", Charge: remembered}})
	}
	for name, start := range map[string]func(s *simulation, claim *resourceapi.ResourceClaim, gone *shelf){
		"before the claims": func(s *simulation, claim *resourceapi.ResourceClaim, gone *shelf) {
			seed(s)
			set(s, quota.Claims, s.claims, claim)
			s.view.index.setInventory(inventoryAt{inventory: gone})
		},
		"before the first inventory": func(s *simulation, claim *resourceapi.ResourceClaim, gone *shelf) {
			set(s, quota.Claims, s.claims, claim)
			seed(s)
			s.view.index.setInventory(inventoryAt{inventory: gone})
		},
		"while the first inventory is counted": func(s *simulation, claim *resourceapi.ResourceClaim, gone *shelf) {
			set(s, quota.Claims, s.claims, claim)
			s.view.index.setInventory(inventoryAt{inventory: &interrupted{shelf: gone, call: func() { seed(s) }}})
		},
		"after the first inventory": func(s *simulation, claim *resourceapi.ResourceClaim, gone *shelf) {
			set(s, quota.Claims, s.claims, claim)
			s.view.index.setInventory(inventoryAt{inventory: gone})
			seed(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, claim, gone := uncomputable(t)
			start(s, claim, gone)
			o := s.view.Cached().Observe("q", nil, nil)
			s.equal("used", remembered, o.Used)
			if len(o.Remembered) != 1 || !quota.Equal(o.Remembered[0].Charge, remembered) {
				t.Errorf("remembered: want %v, got %v", remembered, o.Remembered)
			}
		})
	}
}

// interrupted is an Inventory during whose first question something else happens.
type interrupted struct {
	*shelf
	once sync.Once
	call func()
}

func (i *interrupted) DeviceClass(name string) *resourceapi.DeviceClass {
	i.once.Do(i.call)
	return i.shelf.DeviceClass(name)
}

// TestOnlyWhatIsRememberedIsLookedAtByEachObservation: most pods are charged by their claims,
// and nothing is known of them that had to be kept.
func TestOnlyWhatIsRememberedIsLookedAtByEachObservation(t *testing.T) {
	t.Parallel()
	s, claim, gone := uncomputable(t)
	s.view.index.setInventory(inventoryAt{inventory: gone})
	set(s, quota.Claims, s.claims, claim)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "p"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To("c")}}
	set(s, quota.Pods, s.pods, pod)
	if n := len(s.view.index.accounts["q"].uncomputed); n != 0 {
		t.Errorf("nothing is remembered: want nothing to look at, got %d objects", n)
	}
	s.view.index.seed("q", []v1alpha1.RememberedCharge{{UID: "u", Charge: corev1.ResourceList{memoryKey: resource.MustParse("40Gi")}}})
	if n := len(s.view.index.accounts["q"].uncomputed); n != 1 {
		t.Errorf("want the claim, got %d objects", n)
	}
}

func TestRecountsLeaveTimeForAdmission(t *testing.T) {
	t.Parallel()
	v := &View{o: Options{InventoryPause: 200 * time.Millisecond}}
	for took, want := range map[time.Duration]time.Duration{0: 200 * time.Millisecond, time.Millisecond: 200 * time.Millisecond, time.Second: 4 * time.Second, time.Minute: 5 * time.Second} {
		if got := v.pauseAfter(took); got != want {
			t.Errorf("after a recount of %v: want a pause of %v, got %v", took, want, got)
		}
	}
}
