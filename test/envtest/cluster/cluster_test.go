package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// wantShown fails unless ledger, quota status and each project's projection say the same:
// used by project, which are all that is covered.
func (s *scene) wantShown(r *replica, name string, used map[string]corev1.ResourceList) {
	s.t.Helper()
	total := corev1.ResourceList{}
	for _, u := range used {
		quota.AddTo(total, u)
	}
	r.eventually("shown", func() error {
		ctx := context.Background()
		l, crq := &v1alpha1.DeviceLedger{}, &quotav1.ClusterResourceQuota{}
		if err := errors.Join(cp.Client.Get(ctx, client.ObjectKey{Name: name}, l), cp.Client.Get(ctx, client.ObjectKey{Name: name}, crq)); err != nil {
			return err
		}
		if !quota.Equal(l.Status.Used, total) {
			return fmt.Errorf("ledger: want %s, got %s", quota.Format(total), quota.Format(l.Status.Used))
		}
		if !quota.Equal(crq.Status.Total.Used, total) || !quota.Equal(crq.Status.Total.Hard, crq.Spec.Quota.Hard) {
			return fmt.Errorf("total: want %s, got %v", quota.Format(total), crq.Status.Total)
		}
		if len(crq.Status.Namespaces) != len(used) {
			return fmt.Errorf("projects: want %v, got %v", used, crq.Status.Namespaces)
		}
		applied := &quotav1.AppliedClusterResourceQuotaList{}
		if err := cp.Client.List(ctx, applied); err != nil {
			return err
		}
		found := 0
		for _, a := range applied.Items {
			if a.Name != name {
				continue
			}
			found++
			if _, covered := used[a.Namespace]; !covered {
				return fmt.Errorf("%s: a projection that should be gone", a.Namespace)
			}
			if !equality.Semantic.DeepEqual(a.Status.Total, crq.Status.Total) || len(a.Status.Namespaces) != 1 ||
				a.Status.Namespaces[0].Namespace != a.Namespace || !quota.Equal(a.Status.Namespaces[0].Status.Used, used[a.Namespace]) {
				return fmt.Errorf("%s: want %s of %s, got %v", a.Namespace, quota.Format(used[a.Namespace]), quota.Format(total), a.Status)
			}
		}
		if found != len(used) {
			return fmt.Errorf("want %d projections, got %d", len(used), found)
		}
		return nil
	})
}

func TestUsageIsTheSameInLedgerQuotaAndEveryProject(t *testing.T) {
	s := newScene(t, "shown", 3, 4)
	r := newReplica(t, "", cluster.Kubernetes).lead()
	s.quota(list(objectsKey, 10, s.devicesKey(), 10, s.memoryKey(), "1Ti"))
	none := list()
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): none, s.project(1): none, s.project(2): none})

	first := s.claim(0, "first", 2)
	s.claim(1, "second", 1)
	two, one := list(objectsKey, 1, s.devicesKey(), 2, s.memoryKey(), "160Gi"), list(objectsKey, 1, s.devicesKey(), 1, s.memoryKey(), "80Gi")
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): two, s.project(1): one, s.project(2): none})

	// A project leaves with what it uses.
	s.relabel(1, "elsewhere")
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): two, s.project(2): none})
	s.relabel(1, s.name)
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): two, s.project(1): one, s.project(2): none})

	if err := cp.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): none, s.project(1): one, s.project(2): none})
}

func (s *scene) relabel(project int, scene string) {
	s.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.project(project)}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"scene":%q}}}`, scene))
	if err := cp.Client.Patch(context.Background(), ns, patch); err != nil {
		s.t.Fatal(err)
	}
}

func TestAnIdleQuotaIsNotWritten(t *testing.T) {
	s := newScene(t, "idle", 2, 0)
	r := newReplica(t, "", cluster.Kubernetes).lead()
	s.quota(list(objectsKey, 1))
	s.claim(0, "one", 1)
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): list(objectsKey, 1), s.project(1): list()})
	written := func() [3]int {
		return [3]int{r.calls.of("wrote", &quotav1.ClusterResourceQuota{}), r.calls.of("wrote", &quotav1.AppliedClusterResourceQuota{}), r.calls.of("wrote", &v1alpha1.DeviceLedger{})}
	}
	before := written()
	// An event that changes nothing that is counted, then one that does: what was written for
	// both together is what one is worth.
	for range 3 {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.project(0), Name: "one"}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"n":"`+fmt.Sprint(r.calls.of("get", nil))+`"}}}`))
		if err := cp.Client.Patch(t.Context(), claim, patch); err != nil {
			t.Fatal(err)
		}
	}
	s.claim(1, "two", 1)
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): list(objectsKey, 1), s.project(1): list(objectsKey, 1)})
	after := written()
	if after[0]-before[0] != 1 || after[1]-before[1] != 2 || after[2]-before[2] > 2 {
		t.Errorf("writes of quota, projections, ledger: before %v, after %v", before, after)
	}
}

func TestADeletedQuotaLeavesNothingBehind(t *testing.T) {
	s := newScene(t, "gone", 2, 0)
	r := newReplica(t, "", cluster.Kubernetes).lead()
	crq := s.quota(list(objectsKey, 5))
	s.wantShown(r, s.name, map[string]corev1.ResourceList{s.project(0): list(), s.project(1): list()})
	if err := cp.Client.Delete(t.Context(), crq); err != nil {
		t.Fatal(err)
	}
	r.eventually("nothing left", func() error {
		err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, &v1alpha1.DeviceLedger{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("ledger: %v", err)
		}
		for i := range 2 {
			err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: s.project(i), Name: s.name}, &quotav1.AppliedClusterResourceQuota{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("projection: %v", err)
			}
		}
		return nil
	})
}

func TestALeaderRemovesWhatWasLeftBeforeItsTime(t *testing.T) {
	s := newScene(t, "leftover", 1, 0)
	stray := &quotav1.AppliedClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.project(0), Name: "no-such-quota"}}
	stray.Status.Namespaces = quotav1.ResourceQuotasStatusByNamespace{}
	s.create(stray)
	newReplica(t, "", cluster.Kubernetes).lead().eventually("stray projection is gone", func() error {
		if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(stray), &quotav1.AppliedClusterResourceQuota{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %v", err)
		}
		return nil
	})
}

func TestAnEditedProjectionIsRepaired(t *testing.T) {
	s := newScene(t, "edited", 1, 0)
	r := newReplica(t, "", cluster.Kubernetes).lead()
	s.quota(list(objectsKey, 5))
	want := map[string]corev1.ResourceList{s.project(0): list()}
	s.wantShown(r, s.name, want)
	applied := &quotav1.AppliedClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.project(0), Name: s.name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"total":{"used":{"`+objectsKey+`":"4"}}}}`))
	if err := cp.Client.Patch(t.Context(), applied, patch); err != nil {
		t.Fatal(err)
	}
	s.wantShown(r, s.name, want)
}

func TestOnOpenShiftNoQuotaIsEverWritten(t *testing.T) {
	s := newScene(t, "openshift", 2, 0)
	r := newReplica(t, "", cluster.OpenShift).lead()
	s.quota(list(objectsKey, 5))
	s.claim(1, "one", 1)
	r.eventually("projected", func() error {
		for i, want := range []corev1.ResourceList{list(), list(objectsKey, 1)} {
			a := &v1alpha1.AppliedDeviceQuota{}
			if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: s.project(i), Name: s.name}, a); err != nil {
				return err
			}
			if !quota.Equal(a.Status.Total.Used, list(objectsKey, 1)) || !quota.Equal(a.Status.Namespaces[0].Status.Used, want) {
				return fmt.Errorf("project %d: %v", i, a.Status)
			}
		}
		return nil
	})
	if n := r.calls.of("write", &quotav1.ClusterResourceQuota{}) + r.calls.of("write", &quotav1.AppliedClusterResourceQuota{}); n != 0 {
		t.Errorf("%d writes of what the platform owns", n)
	}
	crq := &quotav1.ClusterResourceQuota{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, crq); err != nil {
		t.Fatal(err)
	}
	if crq.Status.Total.Used != nil {
		t.Errorf("status was written: %v", crq.Status)
	}
}

func TestLiveReadsInFullOnlyWhatTheCacheLacks(t *testing.T) {
	s := newScene(t, "live", 2, 4)
	r := newReplica(t, "", cluster.Kubernetes)
	s.quota(list(objectsKey, 10, s.devicesKey(), 10))
	old := s.claim(0, "old", 2)
	r.eventually("cached", func() error { return r.wantUsed(r.view.Cached(), s.name, list(objectsKey, 1, s.devicesKey(), 2)) })

	full := r.calls.of("get", &resourceapi.ResourceClaim{})
	o, err := r.view.Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.wantUsed(o, s.name, list(objectsKey, 1, s.devicesKey(), 2)); err != nil {
		t.Error(err)
	}
	if n := r.calls.of("get", &resourceapi.ResourceClaim{}) - full; n != 0 {
		t.Errorf("%d claims were read in full though the cache has them", n)
	}
	fresh := s.claim(1, "fresh", 1)
	if o, err = r.view.Live(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.wantUsed(o, s.name, list(objectsKey, 2, s.devicesKey(), 3)); err != nil {
		t.Error("right after a create: ", err)
	}
	observed := o.Observe(s.name, nil, []types.UID{old.UID, fresh.UID, "nobody"})
	if !observed.Present[old.UID] || !observed.Present[fresh.UID] || observed.Present["nobody"] {
		t.Errorf("present: %v", observed.Present)
	}
	if err := cp.Client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if o, err = r.view.Live(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.wantUsed(o, s.name, list(objectsKey, 1, s.devicesKey(), 1)); err != nil {
		t.Error("right after a delete: ", err)
	}
}

func (r *replica) wantUsed(o ledger.Observation, name string, want corev1.ResourceList) error {
	got := o.Observe(name, nil, nil)
	if got.Quota == nil || !quota.Equal(got.Used, want) {
		return fmt.Errorf("want %s, got %s of %v", quota.Format(want), quota.Format(got.Used), got.Quota)
	}
	for c := range quota.Components {
		if got.Version[c] == 0 {
			return fmt.Errorf("%s: no version", c)
		}
	}
	return nil
}

func TestOlderVersionsAreReadAsV1(t *testing.T) {
	s := newScene(t, "versions", 1, 4)
	s.quota(list(objectsKey, 10, s.devicesKey(), 10, s.memoryKey(), "1Ti"))
	s.claim(0, "one", 2)
	for _, version := range []string{devices.V1, devices.V1beta2, devices.V1beta1} {
		t.Run(version, func(t *testing.T) {
			r := newReplica(t, version, cluster.Kubernetes)
			want := list(objectsKey, 1, s.devicesKey(), 2, s.memoryKey(), "160Gi")
			r.eventually("cached", func() error { return r.wantUsed(r.view.Cached(), s.name, want) })
			o, err := r.view.Live(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := r.wantUsed(o, s.name, want); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStoreIsACompareAndSwap(t *testing.T) {
	ctx := t.Context()
	r := newReplica(t, "", cluster.Kubernetes)
	l := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "swap", Finalizers: []string{v1alpha1.LedgerFinalizer}}}
	if _, err := r.store.Get(ctx, "swap"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("before it exists: %v", err)
	}
	created, err := r.store.Create(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.store.Get(ctx, "swap"); err != nil || got.ResourceVersion != created.ResourceVersion {
		t.Errorf("own create is not known at once: %v, %v", got, err)
	}
	if _, err := r.store.Create(ctx, l); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("second create: %v", err)
	}
	changed := created.DeepCopy()
	changed.Status.Rebuilding = true
	updated, err := r.store.Update(ctx, changed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Update(ctx, changed); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("update from an older version: %v", err)
	}
	if stored, err := r.store.GetLive(ctx, "swap"); err != nil || len(stored.ManagedFields) > 0 {
		t.Errorf("the managers of a ledger's fields are tracked: %v, %v", stored, err)
	}
	if err := r.store.Delete(ctx, created); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("delete of an older version: %v", err)
	}
	if err := r.store.Delete(ctx, updated); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Get(ctx, "swap"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("own delete is not known at once: %v", err)
	}
	again, err := r.store.Create(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Update(ctx, updated); !errors.Is(err, ledger.ErrConflict) && !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("update of a ledger that was recreated: %v", err)
	}
	if err := r.store.Delete(ctx, again); err != nil {
		t.Error(err)
	}
	if _, err := r.store.GetLive(ctx, "swap"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("after its deletion: %v", err)
	}
}

func TestAnotherReplicasWriteIsLearned(t *testing.T) {
	a, b := newReplica(t, "", cluster.Kubernetes), newReplica(t, "", cluster.Kubernetes)
	created, err := a.store.Create(t.Context(), &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "learned"}})
	if err != nil {
		t.Fatal(err)
	}
	b.eventually("known to the other", func() error {
		got, err := b.store.Get(t.Context(), "learned")
		if err == nil && got.ResourceVersion != created.ResourceVersion {
			err = fmt.Errorf("version %s", got.ResourceVersion)
		}
		return err
	})
	if err := a.store.Delete(t.Context(), created); err != nil {
		t.Fatal(err)
	}
	b.eventually("gone for the other", func() error {
		if _, err := b.store.Get(t.Context(), "learned"); !errors.Is(err, ledger.ErrNotFound) {
			return fmt.Errorf("still there: %v", err)
		}
		return nil
	})
}

func TestTheLeaderEndsAHoldOfAnotherReplicaWhoseObjectNeverComes(t *testing.T) {
	s := newScene(t, "phantom", 1, 0)
	quick := ledger.Options{HoldAge: 5 * time.Second} // long enough to see the hold on a slow machine
	newReplica(t, "", cluster.Kubernetes, quick).lead()
	other := newReplica(t, "", cluster.Kubernetes, quick)
	s.quota(list(objectsKey, 1))
	other.eventually("known", func() error {
		if quotas, _, _ := other.view.Cached().Covering(s.project(0)); len(quotas) != 1 {
			return fmt.Errorf("covered by %v", quotas)
		}
		return nil
	})
	request := ledger.Request{
		UID: "never", Kind: v1alpha1.HoldClaim, Namespace: s.project(0), Name: "never", Arrived: time.Now(), Created: time.Now(),
		Charge: func(*quota.Quota) (quota.Charge, error) { return quota.Charge{Amounts: list(objectsKey, 1)}, nil },
	}
	decision, err := other.ledger.Admit(t.Context(), request)
	if err != nil || decision.Verdict != ledger.Allowed {
		t.Fatalf("%+v, %v", decision, err)
	}
	holds := func() int {
		l := &v1alpha1.DeviceLedger{}
		if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, l); err != nil {
			t.Fatal(err)
		}
		return len(l.Status.Holds)
	}
	if n := holds(); n != 1 {
		t.Fatalf("want 1 hold, got %d", n)
	}
	other.eventually("hold is gone", func() error {
		if n := holds(); n != 0 {
			return fmt.Errorf("%d holds", n)
		}
		return nil
	})
}

func TestADeletedLedgerComesBack(t *testing.T) {
	s := newScene(t, "ledger-lost", 1, 0)
	r := newReplica(t, "", cluster.Kubernetes).lead()
	s.quota(list(objectsKey, 1))
	s.claim(0, "one", 1)
	want := map[string]corev1.ResourceList{s.project(0): list(objectsKey, 1)}
	s.wantShown(r, s.name, want)
	l := &v1alpha1.DeviceLedger{}
	r.eventually("the finalizer is removed", func() error { // the leader may write at the same time
		if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, l); err != nil {
			return err
		}
		l.Finalizers = nil
		return cp.Client.Update(t.Context(), l)
	})
	uid := l.UID
	if err := cp.Client.Delete(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	s.wantShown(r, s.name, want)
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, l); err != nil || l.UID == uid {
		t.Errorf("ledger %s, %v", l.UID, err)
	}
}
