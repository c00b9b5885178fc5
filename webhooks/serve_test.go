package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// sent returns the answer to a body, as JSON.
func sent(t *testing.T, h http.Handler, contentType, body string) map[string]any {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout=5s", strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	if body == "" {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil || w.Code != http.StatusOK {
		t.Fatalf("code %d, %v: %s", w.Code, err, text)
	}
	return out
}

// What parses a review once must understand it as what parses it twice.
func TestServeAnswersAsTheWebhookItselfDoes(t *testing.T) {
	for name, c := range goldenCases() {
		req := c.review(t)
		body, err := json.Marshal(admissionv1.AdmissionReview{Request: &req.AdmissionRequest})
		if err != nil {
			continue // the cases whose object is no JSON
		}
		text := strings.Replace(string(body), `{"request"`, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request"`, 1)
		answers := make([]map[string]any, 2)
		for i := range answers {
			w := newWorld(t, c.quotas...)
			if c.world != nil {
				c.world(w)
			}
			path := c.path
			if path == "" {
				path = pathOf(req)
			}
			hook := Webhooks(w.deps(), c.options)[path]
			answers[i] = sent(t, []http.Handler{hook, Serve(hook)}[i], "application/json", text)
		}
		if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
			t.Errorf("%s (-webhook +Serve):\n%s", name, diff)
		}
	}
}

// firstRead is a body that remembers how much it was asked for at first.
type firstRead struct {
	io.Reader
	size int
}

func (r *firstRead) Read(p []byte) (int, error) {
	if r.size == 0 {
		r.size = len(p)
	}
	return r.Reader.Read(p)
}

func TestALargeBodyIsMadeRoomForAsItComes(t *testing.T) {
	for announced, want := range map[int64]int64{0: usualReviewSize, 1000: 1000 + bytes.MinRead, maxReviewSize: usualReviewSize + bytes.MinRead, 1 << 40: usualReviewSize + bytes.MinRead} {
		body := &firstRead{Reader: strings.NewReader("{}")}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = announced
		if _, code, err := readReview(r); err == nil || code != http.StatusBadRequest {
			t.Errorf("no review: code %d, %v", code, err)
		}
		if int64(body.size) > 2*want {
			t.Errorf("%d bytes announced: room was made for %d", announced, body.size)
		}
	}
}

func TestWhatIsNoReviewIsRefusedByAnAnswer(t *testing.T) {
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`
	hook := &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}
	for name, c := range map[string]struct {
		contentType, body string
		want              float64
	}{
		"a review is passed on":   {"application/json", review, http.StatusOK},
		"no body":                 {"application/json", "", http.StatusBadRequest},
		"another content type":    {"text/plain", review, http.StatusBadRequest},
		"no JSON":                 {"application/json", "{", http.StatusBadRequest},
		"another version":         {"application/json", strings.Replace(review, "io/v1", "io/v1beta1", 1), http.StatusBadRequest},
		"another kind":            {"application/json", strings.Replace(review, "AdmissionReview", "Status", 1), http.StatusBadRequest},
		"no request":              {"application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		"keys in another case":    {"application/json", strings.Replace(review, "request", "Request", 1), http.StatusBadRequest},
		"more than 7 MiB of body": {"application/json", strings.Replace(review, `"u"`, `"`+strings.Repeat("u", maxReviewSize)+`"`, 1), http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			response := sent(t, Serve(hook), c.contentType, c.body)["response"].(map[string]any)
			if allowed := response["allowed"].(bool); allowed != (c.want == http.StatusOK) {
				t.Errorf("allowed is %v", allowed)
			}
			if code := response["status"].(map[string]any)["code"]; code != c.want {
				t.Errorf("code is %v, want %v", code, c.want)
			}
		})
	}
}
