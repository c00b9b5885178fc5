package webhooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"
)

// maxReviewSize bounds the body of a request. An object that etcd takes is at most 1.5 MB, in
// JSON twice that, and a review has at most two of them.
// Source: sigs.k8s.io/controller-runtime/pkg/webhook/admission/http.go (v0.25).
const maxReviewSize = 7 << 20

// usualReviewSize is what is made room for at once because a request says that it is as large:
// whoever can connect can say so, and send nothing.
const usualReviewSize = 64 << 10

// Serve answers reviews over HTTP by a webhook, as the webhook itself does, but parses each
// review once: its own way to find out which version it has costs as much as all else. The
// shipped configuration asks for reviews of admission.k8s.io/v1 only. What is no such review
// gets an AdmissionResponse too, with code 400 or 413.
func Serve(hook *admission.Webhook) http.Handler { return server{hook} }

type server struct{ hook *admission.Webhook }

// ServeHTTP implements http.Handler.
func (s server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if s.hook.WithContextFunc != nil {
		ctx = s.hook.WithContextFunc(ctx, r)
	}
	req, code, err := readReview(r)
	if err != nil {
		log.FromContext(ctx).Error(err, "bad request")
		answerReview(w, r, admission.Errored(code, err))
		return
	}
	answerReview(w, r, s.hook.Handle(ctx, req))
}

// readReview returns the request of a review, or the code to refuse it with.
func readReview(r *http.Request) (admission.Request, int32, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return admission.Request{}, http.StatusBadRequest, errors.New("the request has no body")
	}
	if t := r.Header.Get("Content-Type"); t != "application/json" {
		return admission.Request{}, http.StatusBadRequest, fmt.Errorf("content type is %q, want application/json", t)
	}
	var body bytes.Buffer
	if n := r.ContentLength; n > 0 {
		body.Grow(int(min(n, usualReviewSize)) + bytes.MinRead)
	}
	n, err := body.ReadFrom(io.LimitReader(r.Body, maxReviewSize+1))
	if err != nil {
		return admission.Request{}, http.StatusBadRequest, fmt.Errorf("body: %w", err)
	}
	if n > maxReviewSize {
		return admission.Request{}, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", maxReviewSize)
	}
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body.Bytes(), &review); err != nil {
		return admission.Request{}, http.StatusBadRequest, fmt.Errorf("review: %w", err)
	}
	if v := admissionv1.SchemeGroupVersion.String(); review.APIVersion != v || review.Kind != "AdmissionReview" || review.Request == nil {
		return admission.Request{}, http.StatusBadRequest, fmt.Errorf("%q of %q: want an AdmissionReview of %q with a request", review.Kind, review.APIVersion, v)
	}
	return admission.Request{AdmissionRequest: *review.Request}, 0, nil
}

func answerReview(w http.ResponseWriter, r *http.Request, resp admission.Response) {
	review := admissionv1.AdmissionReview{Response: &resp.AdmissionResponse}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		log.FromContext(r.Context()).V(1).Info("answer not sent", "err", err) // nobody waits for it any more
	}
}

// plainLogger leaves out what a log line says of its request: see requestLogger.
func plainLogger(base logr.Logger, _ *admission.Request) logr.Logger { return base }

// requestLogger adds it. Only what is logged pays for it.
func requestLogger(base logr.Logger, req *admission.Request) logr.Logger {
	return base.WithValues("object", klog.KRef(req.Namespace, req.Name), "namespace", req.Namespace, "name", req.Name,
		"resource", req.Resource, "user", req.UserInfo.Username, "requestID", req.UID)
}
