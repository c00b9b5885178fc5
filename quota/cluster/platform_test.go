package cluster

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reader answers one Get.
type reader struct {
	client.Reader
	spec map[string]any
	err  error
}

func (r reader) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if u, ok := obj.(*unstructured.Unstructured); ok && r.err == nil {
		u.Object["spec"] = r.spec
	}
	return r.err
}

func TestPlatformIsWhoServesTheQuotaGroup(t *testing.T) {
	t.Parallel()
	gr := schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
	for _, c := range []struct {
		name   string
		reader reader
		want   Platform
		fails  bool
	}{
		{"a Service", reader{spec: map[string]any{"group": "quota.openshift.io", "service": map[string]any{"name": "api", "namespace": "openshift-apiserver"}}}, OpenShift, false},
		{"a CRD", reader{spec: map[string]any{"group": "quota.openshift.io"}}, Kubernetes, false},
		{"nobody", reader{err: apierrors.NewNotFound(gr, apiService)}, Kubernetes, false},
		{"no APIServices at all", reader{err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound}}}, "", true},
		{"not allowed to know", reader{err: apierrors.NewForbidden(gr, apiService, errors.New("no"))}, "", true},
		{"no answer", reader{err: errors.New("connection refused")}, "", true},
		{"nonsense", reader{spec: map[string]any{"service": "api"}}, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := DetectPlatform(t.Context(), c.reader)
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("want %q, fails %v; got %q, %v", c.want, c.fails, got, err)
			}
		})
	}
}

func TestPlatformFlagOverridesOrDetects(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]Platform{"": "", "auto": "", "openshift": OpenShift, "OpenShift": OpenShift, "kubernetes": Kubernetes, "Kubernetes": Kubernetes} {
		if got, err := ParsePlatform(value); got != want || err != nil {
			t.Errorf("%q: want %q, got %q, %v", value, want, got, err)
		}
	}
	if _, err := ParsePlatform("plain"); err == nil {
		t.Error("an unknown platform is no error")
	}
}
