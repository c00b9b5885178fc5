//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// TestEachWatchMayStandStillAlone: the only manager hears nothing of one resource. It admits
// exactly what fits all the same, as what others changed meanwhile demands.
func TestEachWatchMayStandStillAlone(t *testing.T) {
	w := startEmpty(t)
	stalls, err := w.cp.StartStalls()
	if err != nil {
		t.Fatal(err)
	}
	m, err := w.cp.StartManager(t.Context(), harness.ManagerOptions{Args: []string{"--shutdown-delay=0s", "--kubeconfig=" + stalls.Kubeconfig}})
	if err != nil {
		t.Fatal(err)
	}
	w.managers = append(w.managers, m)
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
		if err := stalls.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, resource := range []string{"resourceclaims", "pods", "namespaces", "clusterresourcequotas", "deviceledgers", "resourceslices", "deviceclasses", "nodes"} {
		t.Run(resource, func(t *testing.T) {
			begun := time.Now()
			w.t = t
			tn := newTenant(w, "still-"+resource, 2)
			tn.limit(3)
			tn.wantKnown(3)
			resume := stalls.Stall(resource)
			defer resume()
			for i := range 3 {
				tn.wantAnswer("admitted", 0, fmt.Sprint("a", i))
			}
			tn.wantAnswer("denied", 1, "beyond")
			if err := w.cp.Client.Delete(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: tn.namespaces[0], Name: "a0"}}); err != nil {
				t.Fatal(err)
			}
			tn.wantSoon(1, "instead")
			tn.createProjects(1)
			tn.wantAnswer("denied", 2, "in a new project")
			tn.limit(4)
			tn.wantAnswer("admitted", 2, "under a raised limit")
			tn.wantAnswer("denied", 0, "beyond the raised limit")
			resume()
			tn.wantTrue()
			t.Logf("%v", time.Since(begun).Round(time.Millisecond))
		})
	}
}

// wantKnown waits until a settle from the manager's cache has told the ledger the limit.
func (tn *tenant) wantKnown(limit int64) {
	tn.w.t.Helper()
	tn.w.retry("the limit is known", func(ctx context.Context) error {
		l := &v1alpha1.DeviceLedger{}
		if err := tn.w.cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, l); err != nil {
			return err
		}
		if hard := l.Status.Hard[key]; hard.Value() != limit {
			return fmt.Errorf("the ledger says %s, want %d", hard.String(), limit)
		}
		return nil
	})
}

// limit changes the quota's limit. Who creates next need not wait until a raised one is known.
func (tn *tenant) limit(n int64) {
	tn.w.t.Helper()
	tn.w.retry("change the limit", func(ctx context.Context) error {
		q := &quotav1.ClusterResourceQuota{}
		if err := tn.w.cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, q); err != nil {
			return err
		}
		q.Spec.Quota.Hard = corev1.ResourceList{key: *resource.NewQuantity(n, resource.DecimalSI)}
		return tn.w.cp.Client.Update(ctx, q)
	})
}

// wantAnswer creates a claim for one device in a project and compares the answer.
func (tn *tenant) wantAnswer(want string, project int, name string) {
	tn.w.t.Helper()
	err := tn.w.cp.Client.Create(tn.w.t.Context(), deviceClaim(tn.namespaces[project], name))
	if got, _ := verdict(err); got != want {
		tn.w.t.Errorf("%s: %s: want %s, got %s: %v", tn.name, name, want, got, err)
	}
}

// wantSoon creates a claim until it is admitted: while nothing is heard of claims, the hold of one
// that came and went ends by age only, and until then the answer is to come back.
func (tn *tenant) wantSoon(project int, name string) {
	tn.w.t.Helper()
	tn.w.retry("create "+name, func(ctx context.Context) error {
		err := tn.w.cp.Client.Create(ctx, deviceClaim(tn.namespaces[project], name))
		if got, _ := verdict(err); got != "admitted" && got != "busy" {
			tn.w.t.Errorf("%s: %s: want it admitted or busy, got %s: %v", tn.name, name, got, err)
		}
		return err
	})
}

func deviceClaim(namespace, name string) *resourceapi.ResourceClaim {
	return gpus(namespace, strings.ReplaceAll(name, " ", "-"), 1)
}

// TestAReadOnlyEtcdLosesNothing: etcd refuses writes for 30 s under load. What cannot be held
// is not admitted; afterwards everything is true again.
func TestAReadOnlyEtcdLosesNothing(t *testing.T) {
	w := start(t)
	tn := newTenant(w, "readonly", 6)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { tn.watch(ctx) })
	for i := range 8 {
		wg.Go(func() { tn.load(ctx, rand.New(rand.NewPCG(7, uint64(i)))) })
	}
	w.retry("something is admitted", func(context.Context) error { return tn.has("admitted") })
	outages := make(chan error, 1)
	go func() { outages <- w.cp.ReadOnlyEtcd(ctx, 30*time.Second) }()
	w.retry("writes are refused", func(ctx context.Context) error {
		err := w.cp.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "probe-"}})
		if err == nil || !strings.Contains(err.Error(), "space exceeded") {
			return fmt.Errorf("want no space left, got: %w", err)
		}
		return nil
	})
	if err := <-outages; err != nil {
		t.Fatal(err)
	}
	// the leader could not renew its lease, and ended as it should
	for i, m := range w.managers {
		if err := m.WaitReady(ctx); err != nil {
			w.managers[i] = w.manager()
		}
	}
	before := tn.counts()
	tn.forget()
	w.retry("something is admitted again", func(context.Context) error { return tn.has("admitted") })
	cancel()
	wg.Wait()
	tn.wantTrue()
	t.Logf("until then: %s", before)
}

// has returns nil once there was such an answer.
func (tn *tenant) has(answer string) error {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	if tn.n[answer] == 0 {
		return fmt.Errorf("answers so far: %v", tn.n)
	}
	return nil
}

// forget starts to count answers anew.
func (tn *tenant) forget() {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	tn.n = map[string]int{}
}
