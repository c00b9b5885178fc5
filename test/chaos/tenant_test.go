//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// tenant is a quota over projects, with load in them.
type tenant struct {
	w          *world
	name       string
	namespaces []string

	mu sync.Mutex // protects following
	// answers by verdict
	n map[string]int
}

func newTenant(w *world, name string, projects int) *tenant {
	tn := &tenant{w: w, name: name, n: map[string]int{}}
	tn.createProjects(projects)
	// no manager may be ready yet, and quotas are validated by one that fails open
	w.retry("create quota", func(ctx context.Context) error { return w.cp.Client.Create(ctx, quotaFor(name)) })
	w.retry("quota in force", func(ctx context.Context) error {
		return w.cp.Client.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.DeviceLedger{})
	})
	for _, m := range w.managers {
		w.retry("quota known", func(ctx context.Context) error {
			return m.Knows(ctx, name, tn.namespaces[0], quotaFor(name).Spec.Quota.Hard)
		})
	}
	return tn
}

func (tn *tenant) createProjects(n int) {
	for range n {
		ns := fmt.Sprintf("%s-%d", tn.name, len(tn.namespaces))
		tn.namespaces = append(tn.namespaces, ns)
		if err := tn.w.cp.Client.Create(tn.w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"tenant": tn.name}}}); err != nil {
			tn.w.t.Fatal(err)
		}
	}
}

// load creates and deletes claims of 1 to 3 devices until ctx ends.
func (tn *tenant) load(ctx context.Context, r *rand.Rand) {
	var mine []*resourceapi.ResourceClaim
	for i := 0; ctx.Err() == nil; i++ {
		if len(mine) > 0 && r.IntN(5) < 2 {
			k := r.IntN(len(mine))
			if err := tn.w.cp.Client.Delete(ctx, mine[k].DeepCopy()); err == nil || apierrors.IsNotFound(err) {
				mine = slices.Delete(mine, k, k+1)
			}
			continue
		}
		c := gpus(tn.namespaces[r.IntN(len(tn.namespaces))], fmt.Sprintf("c-%x-%d", r.Uint32(), i), int64(1+r.IntN(3)))
		err := tn.w.cp.Client.Create(ctx, c.DeepCopy())
		v, ok := verdict(err)
		if !ok && ctx.Err() == nil {
			tn.w.t.Errorf("%s: %v", tn.name, err)
		}
		if v == "admitted" || v == "outage" || v == "exists" { // after an outage it may exist
			mine = append(mine, c)
		}
		tn.mu.Lock()
		tn.n[v]++
		tn.mu.Unlock()
	}
}

// count returns what all existing claims of the covered projects ask for.
func (tn *tenant) count(ctx context.Context) (int64, error) {
	var namespaces corev1.NamespaceList
	if err := tn.w.cp.Client.List(ctx, &namespaces, client.MatchingLabels{"tenant": tn.name}); err != nil {
		return 0, err
	}
	var claims resourceapi.ResourceClaimList
	if err := tn.w.cp.Client.List(ctx, &claims); err != nil {
		return 0, err
	}
	var n int64
	for _, c := range claims.Items {
		if slices.ContainsFunc(namespaces.Items, func(ns corev1.Namespace) bool { return ns.Name == c.Namespace }) {
			n += c.Spec.Devices.Requests[0].Exactly.Count
		}
	}
	return n, nil
}

// watch recounts again and again what exists: never more than the limit.
func (tn *tenant) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := tn.count(ctx); err == nil && n > limit {
			tn.w.t.Errorf("%s: %d devices exist at a limit of %d", tn.name, n, limit)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// wantTrue waits until ledger, quota and the sum of its projects tell what exists.
func (tn *tenant) wantTrue() {
	tn.w.t.Helper()
	tn.w.retry(tn.name+" becomes true", func(ctx context.Context) error {
		n, err := tn.count(ctx)
		if err != nil {
			return err
		}
		l, q := &v1alpha1.DeviceLedger{}, &quotav1.ClusterResourceQuota{}
		if err := tn.w.cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, l); err != nil {
			return err
		}
		if err := tn.w.cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, q); err != nil {
			return err
		}
		var sum int64
		for _, ns := range q.Status.Namespaces {
			used := ns.Status.Used[key]
			sum += used.Value()
		}
		used, total := l.Status.Used[key], q.Status.Total.Used[key]
		if used.Value() != n || total.Value() != n || sum != n || len(l.Status.Holds) != 0 || l.Status.Rebuilding {
			return fmt.Errorf("%d exist; ledger used %s, %d holds, rebuilding %v; total %s, projects %d", n, used.String(), len(l.Status.Holds), l.Status.Rebuilding, total.String(), sum)
		}
		return nil
	})
}

func (tn *tenant) counts() string {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(tn.n)) {
		out = append(out, fmt.Sprintf("%s %d", k, tn.n[k]))
	}
	return strings.Join(out, ", ")
}

// edit writes nonsense into the ledger.
func (tn *tenant) edit(ctx context.Context) error {
	l := &v1alpha1.DeviceLedger{}
	if err := tn.w.cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, l); err != nil {
		return err
	}
	l.Status.Used, l.Status.Holds = nil, nil
	l.Status.Observed.Claims = "99999999"
	return tn.w.cp.Client.Update(ctx, l)
}

func (tn *tenant) recreate(ctx context.Context) error {
	if err := tn.w.cp.Client.Delete(ctx, quotaFor(tn.name)); client.IgnoreNotFound(err) != nil {
		return err
	}
	return tn.w.cp.Client.Create(ctx, quotaFor(tn.name))
}

// relabel moves a project out of the quota, or into it again.
func (tn *tenant) relabel(ctx context.Context, r *rand.Rand) error {
	return tn.label(ctx, tn.namespaces[r.IntN(len(tn.namespaces))], []string{tn.name, "nobody"}[r.IntN(2)])
}

func (tn *tenant) label(ctx context.Context, namespace, value string) error {
	var ns corev1.Namespace
	if err := tn.w.cp.Client.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return err
	}
	ns.Labels["tenant"] = value
	return tn.w.cp.Client.Update(ctx, &ns)
}

// heal makes the quota exist and cover all projects again.
func (tn *tenant) heal() {
	tn.w.retry("heal quota", func(ctx context.Context) error {
		if err := tn.w.cp.Client.Create(ctx, quotaFor(tn.name)); !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	})
	for _, ns := range tn.namespaces {
		tn.w.retry("heal project", func(ctx context.Context) error { return tn.label(ctx, ns, tn.name) })
	}
}
