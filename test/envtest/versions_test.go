package envtest

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// asVersion writes a claim as an older client would; v1beta1 has no "exactly".
func asVersion(t *testing.T, c *resourceapi.ResourceClaim, version string) *unstructured.Unstructured {
	t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	if err != nil {
		t.Fatal(err)
	}
	delete(m, "status")
	u := &unstructured.Unstructured{Object: m}
	u.SetAPIVersion("resource.k8s.io/" + version)
	u.SetKind("ResourceClaim")
	if version != "v1beta1" {
		return u
	}
	requests, _, err := unstructured.NestedSlice(m, "spec", "devices", "requests")
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		r := requests[i].(map[string]any)
		exactly, _ := r["exactly"].(map[string]any)
		delete(r, "exactly")
		for k, v := range exactly {
			r[k] = v
		}
	}
	if err := unstructured.SetNestedSlice(m, requests, "spec", "devices", "requests"); err != nil {
		t.Fatal(err)
	}
	return u
}
