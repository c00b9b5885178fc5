package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nothingWebhook admits everything: the floor of what any webhook costs.
type nothingWebhook struct {
	url   string
	ca    []byte
	calls atomic.Int64
}

func newNothingWebhook() (*nothingWebhook, error) {
	crt, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return nil, err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, err
	}
	n := &nothingWebhook{url: "https://" + l.Addr().String() + "/", ca: crt}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(n.admit)) // it ends with the process
	}()
	return n, nil
}

func (n *nothingWebhook) admit(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	n.calls.Add(1)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server is gone then
}

func (n *nothingWebhook) configuration() *registrationv1.ValidatingWebhookConfiguration {
	return &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "nothing"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name:         "nothing.bench.devicequota.io",
			ClientConfig: registrationv1.WebhookClientConfig{URL: &n.url, CABundle: n.ca},
			Rules: []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule: registrationv1.Rule{APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"resourceclaims"}}}},
			FailurePolicy:           ptr.To(registrationv1.Fail),
			SideEffects:             ptr.To(registrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			TimeoutSeconds:          ptr.To[int32](5),
		}}}
}

// install makes the API server call the webhook, and waits until it does.
func (n *nothingWebhook) install(ctx context.Context, c client.Client, namespace string) error {
	if err := c.Create(ctx, n.configuration()); err != nil {
		return err
	}
	before := n.calls.Load()
	return waitFor(ctx, func(ctx context.Context) error {
		if err := c.Create(ctx, claim(namespace, "probe"), client.DryRunAll); err != nil {
			return err
		}
		if n.calls.Load() == before {
			return errors.New("the webhook is not called yet")
		}
		return nil
	})
}

func (n *nothingWebhook) uninstall(ctx context.Context, c client.Client) error {
	return c.Delete(ctx, n.configuration())
}
