//go:build chaos

// Package chaos runs load and random faults against three managers on a real API server and
// checks the ledger's invariants all the while. Run it by make chaos and make chaos-restarts.
package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

var (
	length = flag.Duration("length", 150*time.Second, "how long faults are injected")
	seed   = flag.Uint64("seed", 0, "seed of the faults; 0: a random one")
)

const (
	key   = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/devices")
	limit = 30
)

// world is the cluster under test.
type world struct {
	t  *testing.T
	cp *harness.ControlPlane

	mu       sync.Mutex // protects following
	managers []*harness.Manager
}

func TestInvariantsHoldUnderFaults(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d", *seed)
	w := start(t)
	// The limit of the first is never exceeded whatever happens; projects and quota of the
	// second change, so what moved in may exceed it: it only has to become true again.
	strict, moving := newTenant(w, "strict", 6), newTenant(w, "moving", 6)

	ctx, cancel := context.WithTimeout(t.Context(), *length)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { strict.watch(ctx) })
	for i := range 12 {
		wg.Go(func() { strict.load(ctx, rand.New(rand.NewPCG(*seed, uint64(i)))) })
		wg.Go(func() { moving.load(ctx, rand.New(rand.NewPCG(*seed, uint64(100+i)))) })
	}
	w.faults(ctx, rand.New(rand.NewPCG(*seed, 1000)), strict, moving)
	wg.Wait()

	for _, tn := range []*tenant{strict, moving} {
		tn.wantTrue()
		t.Logf("%s: %s", tn.name, tn.counts())
		if tn.n["admitted"] == 0 || tn.n["denied"] == 0 {
			t.Errorf("%s: the load met no limit: %s", tn.name, tn.counts())
		}
	}
}

func start(t *testing.T) *world {
	t.Helper()
	w := startEmpty(t)
	for range 3 {
		w.managers = append(w.managers, w.manager())
	}
	return w
}

// startEmpty starts a control plane with the suite installed and devices published, and no
// manager yet.
func startEmpty(t *testing.T) *world {
	t.Helper()
	cp, err := harness.Start(harness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, cp: cp}
	t.Cleanup(func() {
		for i, m := range w.managers {
			if t.Failed() {
				fmt.Fprintf(os.Stderr, "\nmanager %d:\n%s\n", i, m.LogTail(30))
			}
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		}
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := cp.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cp.ApplyPath(t.Context(), harness.Root()+"/examples/cluster"); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) manager() *harness.Manager {
	m, err := w.cp.StartManager(w.t.Context(), harness.ManagerOptions{NotReady: true, Args: []string{"--shutdown-delay=1s"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// faults injects one fault after the other until ctx ends, then heals what is broken.
func (w *world) faults(ctx context.Context, r *rand.Rand, strict, moving *tenant) {
	long := true // etcd stands still for 30 s once
	for ctx.Err() == nil {
		i := r.IntN(len(w.managers))
		m := w.managers[i]
		var what string
		var err error
		switch r.IntN(10) {
		case 0, 1:
			what = "kill a manager"
			m.Kill()
			w.managers[i] = w.manager()
		case 2:
			what = "restart a manager"
			err = m.Stop()
			w.managers[i] = w.manager()
		case 3:
			what = "pause a manager for 12 s"
			err = m.Pause(12 * time.Second)
		case 4:
			d := time.Duration(1+r.IntN(4)) * time.Second
			if long {
				d, long = 30*time.Second, false
			}
			what = fmt.Sprintf("pause etcd for %v", d)
			err = w.cp.Pause("etcd", d)
		case 5:
			what = "pause kube-apiserver for 3 s"
			err = w.cp.Pause("kube-apiserver", 3*time.Second)
		case 6:
			what = "delete both ledgers"
			for _, tn := range []*tenant{strict, moving} {
				err = w.deleteLedger(ctx, tn.name)
			}
		case 7:
			what = "edit a ledger by hand"
			err = moving.edit(ctx)
		case 8:
			what = "delete and create a quota"
			err = moving.recreate(ctx)
		case 9:
			what = "relabel a project"
			err = moving.relabel(ctx, r)
		}
		w.t.Logf("%s (%v)", what, err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.IntN(3000)) * time.Millisecond):
		}
	}
	moving.heal()
}

func (w *world) deleteLedger(ctx context.Context, name string) error {
	l := &v1alpha1.DeviceLedger{}
	if err := w.cp.Client.Get(ctx, client.ObjectKey{Name: name}, l); err != nil {
		return client.IgnoreNotFound(err)
	}
	l.Finalizers = nil
	if err := w.cp.Client.Update(ctx, l); err != nil {
		return err
	}
	return client.IgnoreNotFound(w.cp.Client.Delete(ctx, l))
}

// retry tries until it works, at most two minutes: the API server may stand still.
func (w *world) retry(what string, f func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Minute)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Errorf("%s: %v", what, err)
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func quotaFor(name string) *quotav1.ClusterResourceQuota {
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": name}}
	q.Spec.Quota.Hard = corev1.ResourceList{key: *resource.NewQuantity(limit, resource.DecimalSI)}
	return q
}

// verdict sorts an answer; an unexpected one is an error of the test.
func verdict(err error) (string, bool) {
	switch {
	case err == nil:
		return "admitted", true
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return "denied", true
	case apierrors.IsTooManyRequests(err):
		return "busy", true
	case apierrors.IsAlreadyExists(err):
		return "exists", true
	case apierrors.IsConflict(err), apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return "wrong", false
	default: // the API server, or all managers, were out
		return "outage", true
	}
}
