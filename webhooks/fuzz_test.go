package webhooks

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/test/builders"
)

// FuzzReview sends anything to every webhook, as HTTP. There is always an AdmissionReview
// with a response for the request's UID, never a panic, and whoever is refused learns why.
func FuzzReview(f *testing.F) {
	w := newWorld(f, limit("a", devices, "4", memory, "100Gi"))
	templates(w)
	w.annotations = map[string]string{DefaultClassAnnotation: "gpu", DeviceSelectorAnnotation: "true", PrioritizedListAnnotation: "Fit"}
	rec := &counts{}
	deps := w.deps()
	deps.Recorder = rec
	hooks := map[string]*admission.Webhook{}
	var paths []string
	for path, hook := range Webhooks(deps, Options{AdminAccess: AdminAccessDeny}) {
		hooks[path] = hook
		paths = append(paths, path)
	}
	for _, c := range goldenCases() {
		req := c.review(f)
		body, err := json.Marshal(admissionv1.AdmissionReview{Request: &req.AdmissionRequest})
		if err != nil {
			continue // the cases whose object is no JSON
		}
		f.Add([]byte(strings.Replace(string(body), `{"request"`, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request"`, 1)))
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"operation":"CREATE","object":` + strings.Repeat(`{"spec":`, 500) + `1` + strings.Repeat(`}`, 500) + `}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range paths {
			r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			answer := httptest.NewRecorder()
			Serve(hooks[path]).ServeHTTP(answer, r)
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || review.Response == nil {
				t.Fatalf("%s: no review: %v: %s", path, err, answer.Body)
			}
			resp := review.Response
			if !resp.Allowed && (resp.Result == nil || resp.Result.Message == "" || resp.Result.Code < 400) {
				t.Errorf("%s: refused without a reason: %+v", path, resp.Result)
			}
			if resp.Patch != nil && !json.Valid(resp.Patch) {
				t.Errorf("%s: the patch is no JSON: %s", path, resp.Patch)
			}
		}
		if rec.panics > 0 {
			t.Fatal("a handler panicked")
		}
	})
}

// FuzzClaim decodes the same specs as every version: what is admitted was charged by requests
// that could be read.
func FuzzClaim(f *testing.F) {
	for _, spec := range []string{
		`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","count":2}}]}}`,
		`{"devices":{"requests":[{"name":"r","deviceClassName":"gpu","count":2}]}}`,
		`{"devices":{"requests":[{"name":"r"}]}}`, `{"devices":{"requests":[{}]}}`, `{"devices":{"requests":[null]}}`, `{}`, `null`,
		`{"devices":{"requests":[{"firstAvailable":[{"deviceClassName":"gpu","allocationMode":"All"}]}]}}`,
	} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		for _, version := range []string{versionV1, versionV1beta2, versionV1beta1} {
			req := requestIn(t, version, builders.Claim(project, "c"))
			req.Object.Raw = []byte(`{"spec":` + spec + `}`)
			claim, err := decodeClaim(&req)
			if err != nil || len(validateSpec(&claim.Spec, claimRoot)) > 0 {
				continue
			}
			for _, r := range claim.Spec.Devices.Requests {
				if r.Exactly == nil && len(r.FirstAvailable) == 0 {
					t.Errorf("%s: a request that asks for nothing is valid: %s", version, spec)
				}
				if r.Exactly != nil && r.Exactly.Count < 0 {
					t.Errorf("%s: a negative count is valid: %s", version, spec)
				}
			}
		}
	})
}

func TestHugeAndDeepReviewsAreAnswered(t *testing.T) {
	hook := Webhooks(newWorld(t).deps(), Options{})[PathValidateClaim]
	for name, body := range map[string]string{
		"beyond the limit of 7 MiB": `{"x":"` + strings.Repeat("x", 8<<20) + `"}`,
		"below the limit": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"group":"resource.k8s.io","version":"v1","kind":"ResourceClaim"},` +
			`"resource":{"group":"resource.k8s.io","version":"v1","resource":"resourceclaims"},"object":{"metadata":{"annotations":{"x":"` + strings.Repeat("x", 6<<20) + `"}},"spec":{}}}}`,
		"deep": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"group":"resource.k8s.io","version":"v1","kind":"ResourceClaim"},` +
			`"resource":{"group":"resource.k8s.io","version":"v1","resource":"resourceclaims"},"object":` + strings.Repeat(`{"spec":`, 20000) + `1` + strings.Repeat(`}`, 20000) + `}}`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		Serve(hook).ServeHTTP(answer, r)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || review.Response == nil {
			t.Errorf("%s: %v: %s", name, err, answer.Body)
			continue
		}
		if want := name == "below the limit"; review.Response.Allowed != want {
			t.Errorf("%s: allowed: %v, want %v: %+v", name, review.Response.Allowed, want, review.Response.Result)
		}
	}
}
