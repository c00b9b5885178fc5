//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	claimsKey = corev1.ResourceName("count/resourceclaims.resource.k8s.io")
	gpuKey    = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/devices")
	memoryKey = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/capacity.memory")
	migKey    = corev1.ResourceName("mig.nvidia.com.deviceclass.devicequota.io/devices")
	migSMKey  = corev1.ResourceName("mig.nvidia.com.deviceclass.devicequota.io/counter.multiprocessors")
	tpuKey    = corev1.ResourceName("tpu.google.com.deviceclass.devicequota.io/devices")
	cardKey   = corev1.ResourceName("card.selector.devicequota.io/counter.multiprocessors")
)

func hard(kv ...any) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(fmt.Sprint(kv[i]))] = resource.MustParse(fmt.Sprint(kv[i+1]))
	}
	return l
}

// tenant is one project and a quota over it.
type tenant struct {
	t    *testing.T
	name string
}

func newTenant(t *testing.T, limit corev1.ResourceList, annotations map[string]string) *tenant {
	t.Helper()
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	if len(name) > 40 {
		name = name[:40]
	}
	tn := &tenant{t: t, name: name}
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tenant": name}}})
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": name}}
	q.Spec.Quota.Hard = limit
	create(t, q)
	harness.Eventually(t, "quota in force", func(ctx context.Context) error {
		l, err := cp.Ledger(ctx, name)
		if err != nil {
			return err
		}
		if len(l.Status.Hard) != len(limit) {
			return fmt.Errorf("ledger has %d limits", len(l.Status.Hard))
		}
		for _, m := range managers {
			if err := m.Knows(ctx, name, name, limit); err != nil {
				return err
			}
		}
		return nil
	})
	t.Cleanup(func() {
		ctx := context.Background()
		// what was made goes, so that devices are free for the next test
		_ = cp.Client.DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(name))
		_ = cp.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(name), client.GracePeriodSeconds(0))
		_ = cp.Client.DeleteAllOf(ctx, &resourceapi.ResourceClaim{}, client.InNamespace(name))
		_ = cp.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err := harness.Poll(ctx, func(ctx context.Context) error {
			var l resourceapi.ResourceClaimList
			if err := cp.Client.List(ctx, &l, client.InNamespace(name)); err != nil || len(l.Items) > 0 {
				return fmt.Errorf("%d claims left, %w", len(l.Items), err)
			}
			return nil
		}); err != nil {
			t.Errorf("clean up: %v", err)
		}
		_ = cp.Client.Delete(ctx, q)
	})
	return tn
}

// wantUsed waits until the quota's total shows exactly this, and no holds are left.
func (tn *tenant) wantUsed(want corev1.ResourceList) {
	tn.t.Helper()
	harness.Eventually(tn.t, "usage", func(ctx context.Context) error {
		var q quotav1.ClusterResourceQuota
		if err := cp.Client.Get(ctx, client.ObjectKey{Name: tn.name}, &q); err != nil {
			return err
		}
		for k, w := range want {
			if got := q.Status.Total.Used[k]; got.Cmp(w) != 0 {
				return fmt.Errorf("used[%s] is %s, want %s", k, got.String(), w.String())
			}
		}
		return nil
	})
}

func (tn *tenant) ledger(ctx context.Context) (*v1alpha1.DeviceLedger, error) {
	return cp.Ledger(ctx, tn.name)
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := cp.Client.Create(t.Context(), o); err != nil {
		t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
}

// exact asks for count devices of a class.
func exact(name, class string, count int64, selectors ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}
	for _, s := range selectors {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return r
}

func (tn *tenant) claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: tn.name, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}
}

func (tn *tenant) template(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: tn.name, Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}}
}

// podSpec uses the claims, each a template unless its name begins with "claim/".
func podSpec(claims ...string) corev1.PodSpec {
	s := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}}, TerminationGracePeriodSeconds: ptr.To[int64](0)}
	for i, c := range claims {
		name := fmt.Sprintf("devices-%d", i)
		pc := corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &c}
		if direct, ok := strings.CutPrefix(c, "claim/"); ok {
			pc = corev1.PodResourceClaim{Name: name, ResourceClaimName: &direct}
		}
		s.ResourceClaims = append(s.ResourceClaims, pc)
		s.Containers[0].Resources.Claims = append(s.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: name})
	}
	return s
}

func (tn *tenant) pod(name string, spec corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tn.name, Name: name}, Spec: spec}
}

func (tn *tenant) deployment(name string, replicas int32, spec corev1.PodSpec) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: tn.name, Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
}

// allocated waits until a claim is allocated and returns it.
func (tn *tenant) allocated(name string) *resourceapi.ResourceClaim {
	tn.t.Helper()
	c := &resourceapi.ResourceClaim{}
	harness.Eventually(tn.t, "allocation of "+name, func(ctx context.Context) error {
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: tn.name, Name: name}, c); err != nil {
			return err
		}
		if c.Status.Allocation == nil {
			return fmt.Errorf("claim %q is not allocated", name)
		}
		return nil
	})
	return c
}

// finish ends a pod as its kubelet would.
func (tn *tenant) finish(name string) {
	tn.t.Helper()
	harness.Eventually(tn.t, "finish "+name, func(ctx context.Context) error {
		p := &corev1.Pod{}
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: tn.name, Name: name}, p); err != nil {
			return err
		}
		p.Status.Phase = corev1.PodSucceeded
		return cp.Client.Status().Update(ctx, p)
	})
}

// pods returns the project's pods of an app by phase.
func (tn *tenant) pods(ctx context.Context, app string) (map[corev1.PodPhase]int, error) {
	var l corev1.PodList
	opts := []client.ListOption{client.InNamespace(tn.name)}
	if app != "" {
		opts = append(opts, client.MatchingLabels{"app": app})
	}
	err := cp.Client.List(ctx, &l, opts...)
	n := map[corev1.PodPhase]int{}
	for i := range l.Items {
		n[l.Items[i].Status.Phase]++
	}
	return n, err
}
