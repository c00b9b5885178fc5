package live

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

const key = corev1.ResourceName("gpu.deviceclass.devicequota.io/devices")

// newReader returns a reader of the objects, for a user who may not list what forbidden tells of.
func newReader(t *testing.T, forbidden func(list client.ObjectList, namespace string) bool, objects ...client.Object) *Reader {
	t.Helper()
	scheme, err := app.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	api, err := devices.NewAPI(devices.V1, "")
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			var lo client.ListOptions
			lo.ApplyOptions(o)
			if forbidden(list, lo.Namespace) {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", nil)
			}
			return c.List(ctx, list, o...)
		},
	}).Build()
	return &Reader{Client: c, API: api}
}

func namespace(n string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}}
}

func claim(ns string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}}
}

func list(n string) corev1.ResourceList { return corev1.ResourceList{key: resource.MustParse(n)} }

func applied() *quotav1.AppliedClusterResourceQuota {
	a := &quotav1.AppliedClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q"}}
	a.Spec.Quota.Hard = list("10")
	a.Status.Total = corev1.ResourceQuotaStatus{Hard: list("10"), Used: list("7")}
	a.Status.Namespaces = quotav1.ResourceQuotasStatusByNamespace{{Namespace: "a", Status: corev1.ResourceQuotaStatus{Used: list("2")}}}
	return a
}

// kinds returns kind and namespace/name of each object.
func kinds(t *testing.T, s *Snapshot) []string {
	t.Helper()
	var out []string
	for _, o := range s.Objects {
		m, ok := o.(metav1.Object)
		if !ok {
			t.Fatalf("%T has no metadata", o)
		}
		out = append(out, strings.TrimPrefix(o.GetObjectKind().GroupVersionKind().Kind+" "+m.GetNamespace()+"/"+m.GetName(), " "))
	}
	return out
}

func TestWhoeverMayReadEverythingReadsEverything(t *testing.T) {
	t.Parallel()
	crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	ledger := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	r := newReader(t, func(client.ObjectList, string) bool { return false }, namespace("a"), namespace("b"), claim("a"), claim("b"), crq, ledger,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	s, err := r.Load(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Namespace /a", "Namespace /b", "DeviceClass /gpu", "Node /n", "ResourceClaim a/c", "ResourceClaim b/c", "ClusterResourceQuota /q"}
	if diff := cmp.Diff(want, kinds(t, s)); diff != "" || len(s.Notes) > 0 || s.Member || s.Ledgers["q"] == nil {
		t.Errorf("notes %q, member %v, ledgers %v, objects (-want +got):\n%s", s.Notes, s.Member, s.Ledgers, diff)
	}
}

// A member sees his project's claims, and of quotas what they leave to it.
func TestAMemberReadsHisProject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ownClaims bool
		left      string
	}{"who may list its claims": {true, "5"}, "who may list only its quotas": {false, "3"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReader(t, func(l client.ObjectList, namespace string) bool {
				switch l.(type) {
				case *quotav1.AppliedClusterResourceQuotaList, *v1alpha1.AppliedDeviceQuotaList:
					return false
				case *resourceapi.ResourceClaimList:
					return namespace == "" || !c.ownClaims
				}
				return true
			}, namespace("a"), claim("a"), claim("b"), applied())
			s, err := r.Load(t.Context(), "a")
			if err != nil || !s.Member || len(s.Notes) == 0 || s.Ledgers != nil {
				t.Fatalf("got %+v, error %v", s, err)
			}
			// His own namespace is there, also for who may not list namespaces.
			if slices.Contains(s.Unlisted, "Namespace") || !slices.Contains(s.Unlisted, "DeviceClass") || !slices.Contains(kinds(t, s), "Namespace /a") {
				t.Errorf("taken to be none: %q; objects %q", s.Unlisted, kinds(t, s))
			}
			crq, ok := s.Objects[len(s.Objects)-1].(*quotav1.ClusterResourceQuota)
			if !ok {
				t.Fatalf("no quota among %q", kinds(t, s))
			}
			hard := crq.Spec.Quota.Hard[key]
			if hard.String() != c.left || slices.Contains(kinds(t, s), "ResourceClaim a/c") != c.ownClaims {
				t.Errorf("left %s, want %s; objects %q", hard.String(), c.left, kinds(t, s))
			}
		})
	}
}

func TestWhoMayReadNoQuotaIsTold(t *testing.T) {
	t.Parallel()
	r := newReader(t, func(client.ObjectList, string) bool { return true }, namespace("a"))
	if _, err := r.Load(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "AppliedClusterResourceQuotas") {
		t.Errorf("got %v", err)
	}
}

// On OpenShift what the platform shows does not count devices: ours does.
func TestAppliedDeviceQuotasComeFirst(t *testing.T) {
	t.Parallel()
	ours := &v1alpha1.AppliedDeviceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "ours"}}
	r := newReader(t, func(client.ObjectList, string) bool { return false }, ours, applied())
	got, err := r.Applied(t.Context(), "a")
	if err != nil || len(got) != 1 || got[0].Name != "ours" {
		t.Errorf("got %+v, error %v", got, err)
	}
}
