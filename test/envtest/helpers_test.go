package envtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	claimsKey = corev1.ResourceName("count/resourceclaims.resource.k8s.io")
	gpuKey    = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/devices")
	migKey    = corev1.ResourceName("mig.nvidia.com.deviceclass.devicequota.io/devices")
	tpuKey    = corev1.ResourceName("tpu.google.com.deviceclass.devicequota.io/devices")
)

// hard builds spec.quota.hard from key, quantity pairs.
func hard(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

// tenant is a quota over projects of its own.
type tenant struct {
	t          *testing.T
	name       string
	namespaces []string
}

// newTenant creates n projects and a quota of limit over them, and waits until it is in force.
func newTenant(t *testing.T, n int, limit corev1.ResourceList) *tenant {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "Test")))
	if len(name) > 50 {
		name = name[len(name)-50:]
	}
	tn := &tenant{t: t, name: strings.Trim(name, "-")}
	for i := range n {
		ns := fmt.Sprintf("%s-%d", tn.name, i)
		tn.namespaces = append(tn.namespaces, ns)
		create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"tenant": tn.name}}})
	}
	create(t, tn.quota(limit))
	tn.inForce(limit)
	t.Cleanup(func() {
		_ = cp.Client.Delete(context.Background(), tn.quota(limit)) // it may be gone
	})
	return tn
}

func (tn *tenant) quota(limit corev1.ResourceList) *quotav1.ClusterResourceQuota {
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: tn.name}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": tn.name}}
	q.Spec.Quota.Hard = limit
	return q
}

// inForce waits until the ledger has the limits and each manager goes by them.
func (tn *tenant) inForce(limit corev1.ResourceList) {
	tn.t.Helper()
	harness.Eventually(tn.t, "quota in force", func(ctx context.Context) error {
		l, err := tn.ledger(ctx)
		if err != nil {
			return err
		}
		for k, want := range limit {
			if got := l.Status.Hard[k]; got.Cmp(want) != 0 {
				return fmt.Errorf("ledger: hard[%s] is %s, want %s", k, got.String(), want.String())
			}
		}
		return nil
	})
	tn.known(limit, managers...)
}

// known waits until each of the managers goes by the limits.
func (tn *tenant) known(limit corev1.ResourceList, managers ...*harness.Manager) {
	tn.t.Helper()
	for _, m := range managers {
		harness.Eventually(tn.t, "quota known", func(ctx context.Context) error { return m.Knows(ctx, tn.name, tn.namespaces[0], limit) })
	}
}

func (tn *tenant) ledger(ctx context.Context) (*v1alpha1.DeviceLedger, error) {
	return cp.Ledger(ctx, tn.name)
}

// wantUsed waits until total, ledger and the sum of projects and of their views are as wanted.
func (tn *tenant) wantUsed(want corev1.ResourceList) {
	tn.t.Helper()
	harness.Eventually(tn.t, "usage", func(ctx context.Context) error {
		var q quotav1.ClusterResourceQuota
		if err := cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, &q); err != nil {
			return err
		}
		l, err := tn.ledger(ctx)
		if err != nil {
			return err
		}
		for k, w := range want {
			if got := q.Status.Total.Used[k]; got.Cmp(w) != 0 {
				return fmt.Errorf("total.used[%s] is %s, want %s", k, got.String(), w.String())
			}
			if got := l.Status.Used[k]; got.Cmp(w) != 0 {
				return fmt.Errorf("ledger used[%s] is %s, want %s", k, got.String(), w.String())
			}
			if err := tn.sums(ctx, &q, k, w); err != nil {
				return err
			}
		}
		for _, h := range l.Status.Holds {
			if !h.Advisory { // those of pods outlive them, and stand in no claim's way
				return fmt.Errorf("the hold of %s %q is left", h.Kind, h.Name)
			}
		}
		return nil
	})
}

// sums compares a total with the sum of the projects and of the projects' own views.
func (tn *tenant) sums(ctx context.Context, q *quotav1.ClusterResourceQuota, k corev1.ResourceName, want resource.Quantity) error {
	var projects, views resource.Quantity
	for _, n := range q.Status.Namespaces {
		projects.Add(n.Status.Used[k])
		var a quotav1.AppliedClusterResourceQuota
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: n.Namespace, Name: tn.name}, &a); err != nil {
			return err
		}
		if len(a.Status.Namespaces) != 1 || a.Status.Namespaces[0].Namespace != n.Namespace {
			return fmt.Errorf("view in %s shows %v", n.Namespace, a.Status.Namespaces)
		}
		views.Add(a.Status.Namespaces[0].Status.Used[k])
		if got := a.Status.Total.Used[k]; got.Cmp(want) != 0 {
			return fmt.Errorf("view in %s: total %s is %s, want %s", n.Namespace, k, got.String(), want.String())
		}
	}
	if projects.Cmp(want) != 0 || views.Cmp(want) != 0 {
		return fmt.Errorf("%s: projects sum up to %s, their views to %s, want %s", k, projects.String(), views.String(), want.String())
	}
	return nil
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := cp.Client.Create(t.Context(), o); err != nil {
		t.Fatalf("create %s: %v", o.GetName(), err)
	}
}

// claim asks for count devices of a class.
var claim = harness.Claim

// wantDenied fails unless err is a 403 whose text contains all of the given.
func wantDenied(t *testing.T, err error, contains ...string) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Fatalf("want 403 Forbidden, got: %v", err)
	}
	for _, s := range contains {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the denial lacks %q:\n%v", s, err)
		}
	}
}
