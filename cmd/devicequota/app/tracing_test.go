package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
	"github.com/devicequota/devicequota/webhooks"
)

// The caller's span, as the API server sends it, and one that is not sampled.
const (
	calling = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	silent  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// recordedSpans returns tracing whose spans are kept.
func recordedSpans(t *testing.T, rate int) (*tracing, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	o := DefaultOptions()
	o.TracingSamplingRatePerMillion = rate
	traces, err := tracingTo(t.Context(), recorder, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { traces.shutdown(context.Background()) })
	return traces, recorder
}

// denies is a webhook that answers like one that refuses.
func denies() *admission.Webhook {
	return &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		resp := admission.Denied("exceeded quota: secret-text")
		resp.AuditAnnotations = map[string]string{webhooks.AuditDecision: webhooks.DecisionDenied, webhooks.AuditQuota: "team-a",
			webhooks.AuditCharge: "secret-charge"}
		return resp
	})}
}

func ask(t testing.TB, h http.Handler, traceparent, agent, namespace string) {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "u1", Namespace: namespace,
			Resource: metav1.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate-resourceclaim?timeout=5s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", agent)
	if traceparent != "" {
		r.Header.Set("traceparent", traceparent)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), `"allowed":false`) {
		t.Errorf("answer: %s", w.Body)
	}
}

// attributes returns the span's attributes as text.
func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes() {
		out[string(a.Key)] = a.Value.String()
	}
	return out
}

// parts returns the wanted attributes only.
func parts(s sdktrace.ReadOnlySpan, keys ...string) map[string]string {
	out := map[string]string{}
	for key, value := range attributes(s) {
		if slices.Contains(keys, key) {
			out[key] = value
		}
	}
	return out
}

func TestAPasswordInTheCollectorsAddressIsNotRepeated(t *testing.T) {
	for _, endpoint := range []string{"https://me:pass@collector:4317", "https://me:100%pass@collector:4317", "me:pass@collector"} {
		o := DefaultOptions()
		o.TracingEndpoint = endpoint
		if err := o.Validate(); err == nil || strings.Contains(err.Error(), "pass") {
			t.Errorf("%q: got error %v", endpoint, err)
		}
	}
}

func TestWithoutTracingEverythingIsWhatItWas(t *testing.T) {
	o := DefaultOptions()
	off, err := newTracing(t.Context(), &o)
	if err != nil || off != nil {
		t.Fatalf("tracing is on by default: %v, %v", off, err)
	}
	hook, admitter := denies(), ledger.New(nil, nil, ledger.Options{})
	before := hook.Handler
	if got := off.webhook(webhooks.PathValidateClaim, hook); got != webhooks.Serve(hook) || fmt.Sprintf("%p", hook.Handler) != fmt.Sprintf("%p", before) {
		t.Error("the webhook is another one")
	}
	if got := off.admitter(admitter); got != webhooks.Admitter(admitter) {
		t.Error("the admitter is another one")
	}
	store := ledger.NewMemoryStore(nil)
	if got := off.store(store); got != ledger.Store(store) {
		t.Error("the store is another one")
	}
	if got := off.view(nil); got != nil {
		t.Error("the view is another one")
	}
	if got := off.transport(http.DefaultTransport); got != http.DefaultTransport {
		t.Error("the transport is another one")
	}
	if off.ledgerTracer() != nil {
		t.Error("the ledger is traced")
	}
	off.shutdown(t.Context())
}

func TestAnAdmissionIsASpanOfItsCallersTrace(t *testing.T) {
	traces, recorder := recordedSpans(t, 0)
	h := traces.webhook(webhooks.PathValidateClaim, denies())
	ask(t, h, "", "kube-apiserver", "ns")
	ask(t, h, silent, "kube-apiserver", "ns")
	ask(t, h, calling, selfCheckAgent, "ns")
	if n := len(recorder.Ended()); n != 0 {
		t.Fatalf("%d spans of requests that nobody traces", n)
	}
	ask(t, h, calling, "kube-apiserver", strings.Repeat("n", 1000))
	spans := recorder.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want 1", len(spans))
	}
	s := spans[0]
	if got := s.Parent().TraceID().String() + " " + s.Parent().SpanID().String(); got != "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331" || s.Name() != "admission validate-resourceclaim" {
		t.Errorf("%s is a child of %s", s.Name(), got)
	}
	want := map[string]string{"k8s.admission.uid": "u1", "k8s.resource": "resourceclaims.resource.k8s.io", "k8s.dry_run": "false",
		"devicequota.decision": "denied", "devicequota.quotas": "team-a"}
	if diff := cmp.Diff(want, parts(s, "k8s.admission.uid", "k8s.resource", "k8s.dry_run", "devicequota.decision", "devicequota.quotas")); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	for key, value := range attributes(s) {
		if len(value) > maxAttribute || strings.Contains(value, "secret") {
			t.Errorf("%s is %q", key, value)
		}
	}
}

func TestRequestsThatNobodyDecidedOnAreSampledAtTheRate(t *testing.T) {
	traces, recorder := recordedSpans(t, million)
	h := traces.webhook(webhooks.PathValidateClaim, denies())
	ask(t, h, "", "kube-apiserver", "ns")
	ask(t, h, silent, "kube-apiserver", "ns") // its caller decided
	if n := len(recorder.Ended()); n != 1 {
		t.Errorf("%d spans, want 1", n)
	}
}

func TestACommitIsLinkedWithAllWhoWaitForIt(t *testing.T) {
	traces, recorder := recordedSpans(t, 0)
	spanOf := func(last byte, flags trace.TraceFlags) (context.Context, trace.Span) {
		parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, last}, SpanID: trace.SpanID{1, last}, TraceFlags: flags, Remote: true})
		return traces.tracer.Start(trace.ContextWithRemoteSpanContext(t.Context(), parent), fmt.Sprint("request ", last))
	}
	unsampled, _ := spanOf(1, 0)
	first, firstSpan := spanOf(2, trace.FlagsSampled)
	second, secondSpan := spanOf(3, trace.FlagsSampled)
	ctx, done := traces.Commit(unsampled, "team-a", []context.Context{unsampled, t.Context(), first, second})
	commit := trace.SpanContextFromContext(ctx)
	done(ledger.Commit{Admitted: 2, Writes: 3, Conflicts: 1, Err: errors.New("secret")})
	firstSpan.End()
	secondSpan.End()
	spans := recorder.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want that of the commit and two requests", len(spans))
	}
	c := spans[0]
	if c.Name() != "ledger commit" || c.Parent().SpanID() != firstSpan.SpanContext().SpanID() || c.SpanContext().TraceID() != firstSpan.SpanContext().TraceID() {
		t.Errorf("%s is a child of %v, want of the first request that is traced", c.Name(), c.Parent())
	}
	if l := c.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != secondSpan.SpanContext().SpanID() {
		t.Errorf("the commit's links: %v", l)
	}
	if l := spans[2].Links(); len(l) != 1 || l[0].SpanContext.SpanID() != commit.SpanID() {
		t.Errorf("the second request's links: %v", l)
	}
	want := map[string]string{"devicequota.quota": "team-a", "devicequota.batch": "4", "devicequota.admitted": "2", "devicequota.writes": "3", "devicequota.conflicts": "1"}
	if diff := cmp.Diff(want, attributes(c)); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	if strings.Contains(c.Status().Description, "secret") {
		t.Errorf("status %q", c.Status().Description)
	}
	_, done = traces.Commit(t.Context(), "team-a", []context.Context{t.Context()})
	done(ledger.Commit{})
	if n := len(recorder.Ended()); n != 3 {
		t.Error("a settle of its own is traced without any sampling")
	}
}

// broken is a Store and a View whose calls fail.
type broken struct {
	ledger.Store
	ledger.View
	err error
}

func (b broken) Update(context.Context, *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	return nil, b.err
}
func (b broken) Live(context.Context) (ledger.Observation, error) { return nil, b.err }

func TestCallsOfTheAPIServerAreSpansWithTheirResult(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		result string
	}{
		"stored":    {nil, "ok"},
		"conflict":  {fmt.Errorf("%q: %w", "secret", ledger.ErrConflict), "conflict"},
		"throttled": {ledger.ErrThrottled, "throttled"},
		"gone":      {ledger.ErrNotFound, "not found"},
		"outage":    {errors.New("secret"), "error"},
	} {
		t.Run(name, func(t *testing.T) {
			traces, recorder := recordedSpans(t, million)
			b := broken{err: test.err}
			l := &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "team-a", UID: types.UID("u")}}
			l.Status.Holds = []v1alpha1.Hold{{UID: "h"}}
			if _, err := traces.store(b).Update(t.Context(), l); !errors.Is(err, test.err) {
				t.Errorf("error %v", err)
			}
			if _, err := traces.view(b).Live(t.Context()); !errors.Is(err, test.err) {
				t.Errorf("error %v", err)
			}
			spans := recorder.Ended()
			if len(spans) != 2 || spans[0].Name() != "ledger write" || spans[1].Name() != "live observation" {
				t.Fatalf("spans %v", spans)
			}
			want := map[string]string{"devicequota.quota": "team-a", "devicequota.holds": "1", "devicequota.result": test.result}
			if diff := cmp.Diff(want, attributes(spans[0])); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
			for _, s := range spans {
				if strings.Contains(s.Status().Description, "secret") {
					t.Errorf("%s: status %q", s.Name(), s.Status().Description)
				}
			}
		})
	}
}

func TestSpansGoToTheCollector(t *testing.T) {
	collector, err := harness.StartCollector()
	if err != nil {
		t.Fatal(err)
	}
	defer collector.Stop()
	o := DefaultOptions()
	o.TracingEndpoint = collector.Endpoint
	traces, err := newTracing(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, traces.webhook(webhooks.PathValidateClaim, denies()), calling, "kube-apiserver", "ns")
	traces.shutdown(t.Context())
	if spans := collector.Spans(); len(spans) != 1 || spans[0].GetName() != "admission validate-resourceclaim" {
		t.Errorf("got %v", spans)
	}
	if got := collector.Services(); !slices.Equal(got, []string{"devicequota"}) {
		t.Errorf("services %q", got)
	}
}

func TestACollectorThatIsNotThereDelaysNothing(t *testing.T) {
	o := DefaultOptions()
	o.TracingEndpoint = "http://127.0.0.1:1"
	traces, err := newTracing(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	h := traces.webhook(webhooks.PathValidateClaim, denies())
	begun := time.Now()
	for range 5000 { // more than the queue holds
		ask(t, h, calling, "kube-apiserver", "ns")
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("5000 requests took %v", took)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = traces.provider.Shutdown(ended) // it cannot be reached
}

// BenchmarkTracedAdmission tells what tracing costs a request: off, on without a sampled
// caller, and on with one.
func BenchmarkTracedAdmission(b *testing.B) {
	o := DefaultOptions()
	for name, traceparent := range map[string]string{"off": "", "not sampled": silent, "sampled": calling} {
		b.Run(name, func(b *testing.B) {
			var traces *tracing
			if name != "off" {
				var err error
				if traces, err = tracingTo(b.Context(), sdktrace.NewBatchSpanProcessor(tracetest.NewNoopExporter()), &o); err != nil {
					b.Fatal(err)
				}
			}
			h := traces.webhook(webhooks.PathValidateClaim, denies())
			b.ReportAllocs()
			for b.Loop() {
				ask(b, h, traceparent, "kube-apiserver", "ns")
			}
		})
	}
}
