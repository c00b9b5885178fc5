package openshift

import (
	"context"
	"fmt"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	gpuClass = "gpu.nvidia.com"
	migClass = "mig.nvidia.com"

	// ours
	gpuKey    = corev1.ResourceName(gpuClass + ".deviceclass.devicequota.io/devices")
	memoryKey = corev1.ResourceName(gpuClass + ".deviceclass.devicequota.io/capacity.memory")
	// the platform's
	claimsKey    = corev1.ResourceName("count/resourceclaims.resource.k8s.io")
	nativeGPUKey = corev1.ResourceName(gpuClass + ".deviceclass.resource.k8s.io/devices")
)

// amounts builds a list from key, quantity pairs.
func amounts(kv ...any) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(fmt.Sprint(kv[i]))] = resource.MustParse(fmt.Sprint(kv[i+1]))
	}
	return l
}

// tenant is a quota over projects of its own.
type tenant struct {
	t        *testing.T
	name     string
	projects []string
}

// newTenant creates n projects and a quota over them, and waits until it is in force.
func newTenant(t *testing.T, name string, n int, hard corev1.ResourceList, annotations map[string]string) *tenant {
	t.Helper()
	tn := &tenant{t: t, name: name}
	for i := range n {
		project := fmt.Sprintf("%s-%d", name, i)
		tn.projects = append(tn.projects, project)
		create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: project, Labels: map[string]string{"tenant": name}}})
	}
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": name}}
	q.Spec.Quota.Hard = hard
	create(t, q)
	harness.Eventually(t, "quota in force", func(ctx context.Context) error {
		l, err := cp.Ledger(ctx, name)
		if err != nil {
			return err
		}
		if !quota.Equal(l.Status.Hard, hard) {
			return fmt.Errorf("ledger: hard is %s", quota.Format(l.Status.Hard))
		}
		return nil
	})
	for _, m := range managers {
		harness.Eventually(t, "quota known", func(ctx context.Context) error { return m.Knows(ctx, name, tn.projects[0], hard) })
	}
	return tn
}

func (tn *tenant) quota(ctx context.Context) (*quotav1.ClusterResourceQuota, error) {
	q := &quotav1.ClusterResourceQuota{}
	return q, cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, q)
}

func (tn *tenant) ledger(ctx context.Context) (*v1alpha1.DeviceLedger, error) {
	return cp.Ledger(ctx, tn.name)
}

// views returns the projections of the quota in all projects, by project.
func (tn *tenant) views(ctx context.Context) (map[string]v1alpha1.AppliedDeviceQuota, error) {
	var list v1alpha1.AppliedDeviceQuotaList
	if err := cp.Client.List(ctx, &list); err != nil {
		return nil, err
	}
	out := map[string]v1alpha1.AppliedDeviceQuota{}
	for _, a := range list.Items {
		if a.Name == tn.name {
			out[a.Namespace] = a
		}
	}
	return out, nil
}

// wantUsed waits until ledger and projections show the use of each covered project, its own
// in each, and their sum; no project beyond these sees the quota.
func (tn *tenant) wantUsed(want map[string]corev1.ResourceList) {
	tn.t.Helper()
	total := corev1.ResourceList{}
	for _, used := range want {
		total = quota.Add(total, used)
	}
	harness.Eventually(tn.t, "usage", func(ctx context.Context) error {
		l, err := tn.ledger(ctx)
		if err != nil {
			return err
		}
		if !quota.Equal(l.Status.Used, total) || len(l.Status.Holds) > 0 {
			return fmt.Errorf("ledger: used %s and %d holds, want %s", quota.Format(l.Status.Used), len(l.Status.Holds), quota.Format(total))
		}
		views, err := tn.views(ctx)
		if err != nil {
			return err
		}
		if len(views) != len(want) {
			return fmt.Errorf("%d projects see the quota, want %d", len(views), len(want))
		}
		for project, used := range want {
			if err := checkView(views[project], project, total, used); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkView: the total, and only the project's own entry.
func checkView(a v1alpha1.AppliedDeviceQuota, project string, total, used corev1.ResourceList) error {
	s := a.Status
	if len(s.Namespaces) != 1 || s.Namespaces[0].Namespace != project {
		return fmt.Errorf("view in %s shows %v", project, s.Namespaces)
	}
	for what, got := range map[string]corev1.ResourceList{"hard": s.Total.Hard, "own hard": s.Namespaces[0].Status.Hard} {
		if !quota.Equal(got, a.Spec.Quota.Hard) {
			return fmt.Errorf("view in %s: %s is %s", project, what, quota.Format(got))
		}
	}
	if !quota.Equal(s.Total.Used, total) || !quota.Equal(s.Namespaces[0].Status.Used, used) {
		return fmt.Errorf("view in %s: total %s, own %s, want %s and %s", project,
			quota.Format(s.Total.Used), quota.Format(s.Namespaces[0].Status.Used), quota.Format(total), quota.Format(used))
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

// wantCleanAudit fails when the managers made a request that they must not make.
func wantCleanAudit(t *testing.T) {
	t.Helper()
	problems, err := auditProblems()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("by the managers: %s", p)
	}
}
