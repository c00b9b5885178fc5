package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/devicequota/devicequota/webhooks"
)

// draining withdraws readiness while the webhooks are still served.
type draining struct{ on atomic.Bool }

func (d *draining) check(*http.Request) error {
	if d.on.Load() {
		return errors.New("shutting down")
	}
	return nil
}

// leave makes clients go elsewhere during the drain: an API server keeps its connection as
// long as it can, and a request that comes just when the connection is closed would fail.
func (d *draining) leave(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.on.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// selfCheckEvery is how long a good self-check is believed.
const selfCheckEvery = 10 * time.Second

// selfCheck sends reviews to the webhooks of this replica, as the API server does: through
// TLS, one per version of resource.k8s.io. The claims are in an exempt namespace, so that
// they are decoded and judged but never charged.
type selfCheck struct {
	url       string
	namespace string
	versions  []string
	client    *http.Client

	mu   sync.Mutex // protects following
	good time.Time
}

func newSelfCheck(o *Options, host string, port int) *selfCheck {
	if host == "" {
		host = "localhost"
	}
	transport := &http.Transport{
		DisableKeepAlives: true, // every check has to see the certificate that is served now
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12,
			// The certificate is for the Service's name, and we are asking ourselves: what
			// matters is that it has not ended.
			InsecureSkipVerify: true,
			VerifyConnection:   notEnded},
	}
	return &selfCheck{
		url:       "https://" + net.JoinHostPort(host, strconv.Itoa(port)) + webhooks.PathValidateClaim,
		namespace: o.Namespace, versions: []string{"v1", "v1beta2", "v1beta1"},
		client: &http.Client{Transport: transport, Timeout: 5 * time.Second},
	}
}

func notEnded(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("no certificate")
	}
	if end := state.PeerCertificates[0].NotAfter; time.Now().After(end) {
		return fmt.Errorf("serving certificate ended at %v", end)
	}
	return nil
}

func (c *selfCheck) check(req *http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.good) < selfCheckEvery {
		return nil
	}
	for _, version := range c.versions {
		if err := c.ask(req.Context(), version); err != nil {
			return fmt.Errorf("webhook self-check, %s: %w", version, err)
		}
	}
	c.good = time.Now()
	return nil
}

func (c *selfCheck) ask(ctx context.Context, version string) error {
	object := fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"ResourceClaim","metadata":{"name":"self-check","namespace":%q},"spec":{}}`,
		resourceapi.GroupName, version, c.namespace)
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: webhooks.SelfCheckUID, Operation: admissionv1.Create, Namespace: c.namespace, Name: "self-check", DryRun: ptr.To(true),
			Kind:     metav1.GroupVersionKind{Group: resourceapi.GroupName, Version: version, Kind: "ResourceClaim"},
			Resource: metav1.GroupVersionResource{Group: resourceapi.GroupName, Version: version, Resource: "resourceclaims"},
			Object:   runtime.RawExtension{Raw: []byte(object)},
		},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("User-Agent", selfCheckAgent)
	resp, err := c.client.Do(post)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	switch r := answer.Response; {
	case r == nil:
		return errors.New("no response")
	case !r.Allowed && r.Result != nil:
		return errors.New(r.Result.Message)
	case !r.Allowed:
		return errors.New("refused")
	}
	return nil
}

// serveHealth serves liveness and readiness until stop, which returns when nothing is served any
// more. It begins before anything is known, so that what is missing can be told.
func (i *instance) serveHealth(ctx context.Context) (stop func() error, err error) {
	if i.o.HealthAddress == AddressOff {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", i.o.HealthAddress)
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, healthMux(i.ready)) }()
	return func() error {
		cancel()
		return <-done
	}, nil
}

// healthMux serves liveness and the given readiness.
func healthMux(ready *health) http.Handler {
	mux := http.NewServeMux()
	mount := func(path string, h http.Handler) {
		mux.Handle(path, h)
		mux.Handle(path+"/", h)
	}
	alive := &health{checks: map[string]healthz.Checker{"ping": healthz.Ping}, log: ready.log}
	mount("/livez", alive)
	mount("/healthz", alive)
	mount("/readyz", ready)
	return mux
}

// newReadiness returns a readiness that fails until its checks are set.
func newReadiness(log logr.Logger) *health {
	return &health{log: log, checks: map[string]healthz.Checker{
		clusterCheck: func(*http.Request) error { return errors.New("the API server was not asked yet") }}}
}

// health answers 200 when all checks pass, else 500, and says of each check why it fails.
type health struct {
	log logr.Logger

	mu sync.Mutex // protects following
	// checks by name; a set is never changed.
	checks map[string]healthz.Checker
	// last is what was answered last, to log changes only.
	last string
}

// set replaces all checks.
func (h *health) set(checks map[string]healthz.Checker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = checks
}

func (h *health) current() map[string]healthz.Checker {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checks
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	status := http.StatusOK
	checks := h.current()
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](r); err != nil {
			status = http.StatusInternalServerError
			fmt.Fprintf(&text, "[-]%s failed: %v\n", name, err)
			continue
		}
		fmt.Fprintf(&text, "[+]%s ok\n", name)
	}
	h.changed(status, text.String())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	if _, err := w.Write([]byte(text.String())); err != nil {
		h.log.V(1).Info("health not received", "error", err.Error())
	}
}

func (h *health) changed(status int, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == text {
		return
	}
	h.last = text
	h.log.Info("health changed", "status", status, "checks", text)
}

// started calls once when all checks pass.
type started struct {
	checks map[string]healthz.Checker
	call   func()
}

func (started) NeedLeaderElection() bool { return false }

// Start asks the checks until they pass or ctx ends.
func (s started) Start(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if s.pass(ctx) {
				s.call()
				return nil
			}
		}
	}
}

func (s started) pass(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz", http.NoBody)
	if err != nil {
		return false
	}
	for _, check := range s.checks {
		if check(req) != nil {
			return false
		}
	}
	return true
}
