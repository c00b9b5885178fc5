package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
)

// server answers reads from a simulation's objects, which may be ahead of the index.
type server struct {
	client.WithWatch
	mu sync.Mutex // protects following: reads come in parallel
	s  *simulation
	// between runs once, after the first list of metadata of claims: what happens then is
	// newer than the list.
	between func()
	full    int // objects that were read in full
}

func (v *server) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	version := fmt.Sprint(v.s.version)
	switch l := list.(type) {
	case *quotav1.ClusterResourceQuotaList:
		for _, o := range v.s.quotas {
			l.Items = append(l.Items, *o)
		}
	case *resourceapi.ResourceClaimList:
		for _, o := range v.s.claims {
			l.Items = append(l.Items, *o)
			v.full++
		}
	case *metav1.PartialObjectMetadataList:
		switch l.Kind {
		case "NamespaceList":
			for _, o := range v.s.namespaces {
				l.Items = append(l.Items, *o)
			}
		case "ResourceClaimList":
			for _, o := range v.s.claims {
				l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
			}
			if v.between != nil {
				v.between()
				v.between = nil
			}
		case "PodList":
			for _, o := range v.s.pods {
				l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
			}
		}
	}
	list.SetResourceVersion(version)
	return nil
}

func (v *server) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.full++
	name := key.Namespace + "/" + key.Name
	switch o := obj.(type) {
	case *quotav1.ClusterResourceQuota:
		if crq := v.s.quotas[name]; crq != nil {
			crq.DeepCopyInto(o)
			return nil
		}
	case *resourceapi.ResourceClaim:
		if claim := v.s.claims[name]; claim != nil {
			claim.DeepCopyInto(o)
			return nil
		}
	case *corev1.Pod:
		if pod := v.s.pods[name]; pod != nil {
			pod.DeepCopyInto(o)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, name)
}

// newServed returns a simulation whose View reads from it.
func newServed(t *testing.T, seed uint64) (*simulation, *server) {
	t.Helper()
	s := newSimulation(t, seed)
	api, err := devices.NewAPI(devices.V1, "")
	if err != nil {
		t.Fatal(err)
	}
	v := &server{s: s}
	s.view.o.API, s.view.o.Client = api, v
	return s, v
}

func TestLiveEqualsRecountFromScratchHoweverFarTheCacheIsBehind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		s, _ := newServed(t, seed)
		for range 100 {
			s.step()
		}
		for round := range 8 {
			// The watches stand still while this happens.
			s.silent = true
			for range s.r.IntN(40) {
				if s.r.IntN(20) > 0 {
					s.step()
				}
			}
			s.silent = false
			s.checkLive(seed, round)
			if s.r.IntN(2) == 0 {
				relist(s, quota.Claims, s.claims, 0)
				relist(s, quota.Pods, s.pods, 0)
			}
			if s.view.index.chargedPods == 0 {
				break // pods are read only where one may be charged: a cached one, or one held
			}
		}
	}
}

func (s *simulation) checkLive(seed uint64, round int) {
	s.t.Helper()
	o, err := s.view.Live(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var uids []types.UID
	for _, claim := range s.claims {
		uids = append(uids, claim.UID)
	}
	for name, crq := range s.quotas {
		q, _ := quota.Parse(crq, quota.ParseOptions{})
		used, byNamespace := s.scratch(q)
		got := o.Observe(q.Name, nil, uids)
		if !quota.Equal(used, got.Used) || len(byNamespace) != len(got.ByNamespace) {
			s.t.Fatalf("seed %d, round %d, %s: want %s in %d projects, got %s in %d", seed, round, name,
				quota.Format(used), len(byNamespace), quota.Format(got.Used), len(got.ByNamespace))
		}
		for _, c := range []quota.Component{quota.Claims, quota.Namespaces, quota.Quotas} {
			if got.Version[c] != s.version {
				s.t.Fatalf("%s: want version %d, got %d", c, s.version, got.Version[c])
			}
		}
		s.checkPresent(got)
		for ns := range s.namespaces {
			quotas, _, known := o.Covering(s.namespaces[ns].Name)
			_, counted := got.ByNamespace[s.namespaces[ns].Name]
			covers := false
			for _, c := range quotas {
				covers = covers || c.Name == q.Name
			}
			if !known || covers != counted {
				s.t.Fatalf("%s: known %v, covered %v, counted %v", ns, known, covers, counted)
			}
		}
	}
}

func TestLiveReadsNothingInFullThatTheCacheHas(t *testing.T) {
	t.Parallel()
	s, v := newServed(t, 5)
	for range 300 {
		s.step()
	}
	if _, err := s.view.Live(t.Context()); err != nil || v.full != 0 {
		t.Errorf("%d objects read in full, %v", v.full, err)
	}
}

func TestLiveReadsOneListWhenTheCacheLacksMuch(t *testing.T) {
	t.Parallel()
	s, v := newServed(t, 5)
	set(s, quota.Pods, s.pods, s.pod())
	crq := s.quota()
	crq.Spec.Quota.Hard = corev1.ResourceList{objectsKey: *resourceQuantity(10)}
	crq.Spec.Selector.LabelSelector.MatchLabels["team"] = "x"
	set(s, quota.Quotas, s.quotas, crq)
	set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "x"}}})
	s.silent = true
	for i := range 200 {
		claim := s.claim()
		claim.Namespace, claim.Name, claim.UID = "a", fmt.Sprintf("many-%d", i), types.UID(fmt.Sprint(i))
		set(s, quota.Claims, s.claims, claim)
	}
	o, err := s.view.Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q, _ := quota.Parse(crq, quota.ParseOptions{})
	want, _ := s.scratch(q)
	s.equal("many", want, o.Observe(q.Name, nil, nil).Used)
	if v.full != len(s.claims) {
		t.Errorf("want one list of %d, %d were read", len(s.claims), v.full)
	}
}

func TestLiveLeavesOutWhatIsDeletedWhileItReads(t *testing.T) {
	t.Parallel()
	s, v := newServed(t, 5)
	for range 100 {
		s.step()
	}
	s.silent = true
	fresh := s.claim()
	set(s, quota.Claims, s.claims, fresh)
	v.between = func() { drop(s, quota.Claims, s.claims, fresh.Namespace+"/"+fresh.Name) }
	o, err := s.view.Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o.Observe("q0", nil, []types.UID{fresh.UID}).Present[fresh.UID] {
		t.Error("a claim that is gone is present")
	}
}

func TestLiveTellsWhatItTookFromTheCache(t *testing.T) {
	t.Parallel()
	s, _ := newServed(t, 5)
	fromCache := func() (components []string) {
		o, err := s.view.Live(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for c, is := range o.Observe("q0", nil, nil).FromCache {
			if is {
				components = append(components, quota.Component(c).String())
			}
		}
		return components
	}
	if diff := cmp.Diff([]string{"pods", "slices", "classes", "nodes"}, fromCache()); diff != "" {
		t.Errorf("no pod is charged (-want +got):\n%s", diff)
	}
	set(s, quota.Pods, s.pods, s.pod())
	if diff := cmp.Diff([]string{"slices", "classes", "nodes"}, fromCache()); diff != "" {
		t.Errorf("a pod may be charged (-want +got):\n%s", diff)
	}
}

func TestLiveTellsWhichClaimsWaitForTheirPodsStatus(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{false, true} {
		s, _ := newServed(t, 5)
		crq := s.quota()
		crq.Spec.Quota.Hard = corev1.ResourceList{objectsKey: *resourceQuantity(10), devicesKey: *resourceQuantity(10)}
		crq.Spec.Selector.LabelSelector.MatchLabels["team"] = "x"
		set(s, quota.Quotas, s.quotas, crq)
		set(s, quota.Namespaces, s.namespaces, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "x"}}})
		pod := s.pod()
		pod.Namespace, pod.Name = "a", "p0"
		pod.Status = corev1.PodStatus{}
		set(s, quota.Pods, s.pods, pod)
		claim := s.claim()
		claim.Namespace, claim.Name = "a", "c0"
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p0", UID: pod.UID, Controller: new(bool)}}
		*claim.OwnerReferences[0].Controller = true
		set(s, quota.Claims, s.claims, claim)
		observe := func() quota.Observed {
			if !live {
				return s.view.Cached().Observe(crq.Name, nil, []types.UID{claim.UID, pod.UID})
			}
			o, err := s.view.Live(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return o.Observe(crq.Name, nil, []types.UID{claim.UID, pod.UID})
		}
		o := observe()
		if !o.Unrecognised[claim.UID] || len(o.Charges[claim.UID]) == 0 || len(o.Charges[pod.UID]) == 0 {
			t.Errorf("live %v, before: %v %v", live, o.Unrecognised, o.Charges)
		}
		named := pod.DeepCopy()
		named.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c0"}
		set(s, quota.Pods, s.pods, named)
		o = observe()
		if o.Unrecognised[claim.UID] || len(o.Charges[claim.UID]) == 0 || len(o.Charges[pod.UID]) != 0 {
			t.Errorf("live %v, after: %v %v", live, o.Unrecognised, o.Charges)
		}
	}
}
