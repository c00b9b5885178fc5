package app

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/webhooks"
)

const (
	// million is the most that Options.TracingSamplingRatePerMillion may be.
	million = 1_000_000
	// maxAttribute bounds each attribute, in bytes: names come from tenants.
	maxAttribute = 256
	// selfCheckAgent is the User-Agent of the manager's reviews of itself, which are not traced.
	selfCheckAgent = "devicequota-self-check"
	// flushTimeout bounds how long the last spans may take to leave.
	flushTimeout = 5 * time.Second
)

// tracing exports spans: of each admission request, as child of the API server's span, of
// the commit that it waits for, and of the calls of the API server that both make. nil is off:
// then every method returns what it was given, so that nothing costs anything. Nothing global
// is set, since two managers can run in one process. Safe for concurrent use.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	options  []otelhttp.Option
}

var _ ledger.Tracer = (*tracing)(nil)

// newTracing returns nil when tracing is off. The collector need not be there: spans that it
// does not take are dropped.
func newTracing(ctx context.Context, o *Options) (*tracing, error) {
	if o.TracingEndpoint == "" {
		return nil, nil
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(o.TracingEndpoint))
	if err != nil {
		return nil, err
	}
	return tracingTo(ctx, sdktrace.NewBatchSpanProcessor(exporter), o)
}

// tracingTo hands the spans to the processor.
func tracingTo(ctx context.Context, p sdktrace.SpanProcessor, o *Options) (*tracing, error) {
	attributes := []attribute.KeyValue{
		attribute.String("service.name", "devicequota"), attribute.String("service.version", Version(o.Version)),
		attribute.String("k8s.namespace.name", o.Namespace),
	}
	if name, err := os.Hostname(); err == nil {
		attributes = append(attributes, attribute.String("service.instance.id", name)) // in a pod, its name
	}
	about, err := resource.New(ctx, resource.WithAttributes(attributes...), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(err, p.Shutdown(ctx))
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttribute
	others := sdktrace.NeverSample()
	if o.TracingSamplingRatePerMillion > 0 {
		others = sdktrace.TraceIDRatioBased(float64(o.TracingSamplingRatePerMillion) / million)
	}
	t := &tracing{provider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p), sdktrace.WithResource(about),
		sdktrace.WithRawSpanLimits(limits), sdktrace.WithSampler(sdktrace.ParentBased(others)))}
	t.tracer = t.provider.Tracer("github.com/devicequota/devicequota")
	t.options = []otelhttp.Option{otelhttp.WithTracerProvider(t.provider), otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(propagation.TraceContext{})} // no baggage: it may hold anything
	return t, nil
}

// shutdown sends what is left. That nobody takes it must not make the manager's end an error.
func (t *tracing) shutdown(ctx context.Context) {
	if t == nil {
		return
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(end); err != nil {
		log.FromContext(ctx).Info("last spans not exported", "error", err.Error())
	}
}

// transport makes a span of each call of the API server that belongs to a traced request,
// and tells the API server of it. Watches and leases belong to none.
func (t *tracing) transport(next http.RoundTripper) http.RoundTripper {
	if t == nil {
		return next
	}
	return otelhttp.NewTransport(next, append(slices.Clone(t.options), otelhttp.WithFilter(func(r *http.Request) bool {
		return sampled(r.Context())
	}))...)
}

func sampled(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsSampled() }

// webhook makes a span of each request, as child of the caller's.
func (t *tracing) webhook(path string, hook *admission.Webhook) http.Handler {
	if t == nil {
		return webhooks.Serve(hook)
	}
	hook.Handler = tracedHandler{hook.Handler}
	name := func(operation string, _ *http.Request) string { return operation }
	others := func(r *http.Request) bool { return r.UserAgent() != selfCheckAgent }
	return otelhttp.NewHandler(webhooks.Serve(hook), "admission "+path[1:],
		append(slices.Clone(t.options), otelhttp.WithSpanNameFormatter(name), otelhttp.WithFilter(others))...)
}

// tracedHandler says on the request's span what was decided.
type tracedHandler struct{ next admission.Handler }

// Handle implements admission.Handler.
func (h tracedHandler) Handle(ctx context.Context, req admission.Request) admission.Response {
	resp := h.next.Handle(ctx, req)
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return resp
	}
	decision := resp.AuditAnnotations[webhooks.AuditDecision]
	span.SetAttributes(
		attribute.String("k8s.admission.uid", string(req.UID)),
		attribute.String("k8s.namespace.name", req.Namespace),
		attribute.String("k8s.resource", req.Resource.Resource+"."+req.Resource.Group),
		attribute.Bool("k8s.dry_run", req.DryRun != nil && *req.DryRun),
		attribute.String("devicequota.decision", decision),
		attribute.String("devicequota.quotas", resp.AuditAnnotations[webhooks.AuditQuota]))
	if decision == webhooks.DecisionError {
		span.SetStatus(codes.Error, "no decision")
	}
	return resp
}

// admitter makes a span of the time that a request is with the ledger.
func (t *tracing) admitter(next webhooks.Admitter) webhooks.Admitter {
	if t == nil {
		return next
	}
	return tracedAdmitter{t, next}
}

type tracedAdmitter struct {
	t    *tracing
	next webhooks.Admitter
}

// Admit implements webhooks.Admitter.
func (a tracedAdmitter) Admit(ctx context.Context, r ledger.Request) (ledger.Decision, error) {
	return a.trace(ctx, "ledger admit", r, a.next.Admit)
}

// Check implements webhooks.Admitter.
func (a tracedAdmitter) Check(ctx context.Context, r ledger.Request) (ledger.Decision, error) {
	return a.trace(ctx, "ledger check", r, a.next.Check)
}

func (a tracedAdmitter) trace(ctx context.Context, name string, r ledger.Request,
	call func(context.Context, ledger.Request) (ledger.Decision, error)) (ledger.Decision, error) {
	ctx, span := a.t.tracer.Start(ctx, name)
	defer span.End()
	d, err := call(ctx, r)
	if !span.IsRecording() {
		return d, err
	}
	span.SetAttributes(attribute.StringSlice("devicequota.quotas", slices.Sorted(maps.Keys(d.Charges))),
		attribute.String("devicequota.hold", string(r.Kind)))
	if err != nil {
		span.SetStatus(codes.Error, "no decision")
	} else {
		span.SetAttributes(attribute.String("devicequota.verdict", verdict(d.Verdict)))
	}
	return d, err
}

func verdict(v ledger.Verdict) string {
	switch v {
	case ledger.Allowed:
		return "allowed"
	case ledger.Denied:
		return "denied"
	default:
		return "busy"
	}
}

// Commit implements ledger.Tracer. The span is a child of the first traced request that waits
// for the commit; the others' spans and it are linked.
func (t *tracing) Commit(ctx context.Context, quota string, waiting []context.Context) (context.Context, func(ledger.Commit)) {
	traced := slices.DeleteFunc(slices.Clone(waiting), func(c context.Context) bool { return !sampled(c) })
	var links []trace.Link
	for i, c := range traced {
		if i == 0 {
			ctx = trace.ContextWithSpan(ctx, trace.SpanFromContext(c))
		} else {
			links = append(links, trace.LinkFromContext(c))
		}
	}
	ctx, span := t.tracer.Start(ctx, "ledger commit", trace.WithLinks(links...))
	for i, c := range traced {
		if i > 0 {
			trace.SpanFromContext(c).AddLink(trace.LinkFromContext(ctx))
		}
	}
	return ctx, func(c ledger.Commit) {
		span.SetAttributes(attribute.String("devicequota.quota", quota), attribute.Int("devicequota.batch", len(waiting)),
			attribute.Int("devicequota.admitted", c.Admitted), attribute.Int("devicequota.writes", c.Writes), attribute.Int("devicequota.conflicts", c.Conflicts))
		if c.Err != nil {
			span.SetStatus(codes.Error, "outage")
		}
		span.End()
	}
}

// store makes a span of each call of the API server by the ledger.
func (t *tracing) store(next ledger.Store) ledger.Store {
	if t == nil {
		return next
	}
	return tracedStore{next, t}
}

type tracedStore struct {
	ledger.Store
	t *tracing
}

// GetLive implements ledger.Store.
func (s tracedStore) GetLive(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	ctx, end := s.start(ctx, "ledger read", name)
	l, err := s.Store.GetLive(ctx, name)
	end(err)
	return l, err
}

// Create implements ledger.Store.
func (s tracedStore) Create(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	ctx, end := s.start(ctx, "ledger create", l.Name)
	stored, err := s.Store.Create(ctx, l)
	end(err)
	return stored, err
}

// Update implements ledger.Store.
func (s tracedStore) Update(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	ctx, end := s.start(ctx, "ledger write", l.Name, attribute.Int("devicequota.holds", len(l.Status.Holds)))
	stored, err := s.Store.Update(ctx, l)
	end(err)
	return stored, err
}

// start begins a span; the error's text stays out of it, since it may quote anything.
func (s tracedStore) start(ctx context.Context, name, quota string, more ...attribute.KeyValue) (context.Context, func(error)) {
	ctx, span := s.t.tracer.Start(ctx, name, trace.WithAttributes(append(more, attribute.String("devicequota.quota", quota))...))
	return ctx, func(err error) {
		result := "ok"
		switch {
		case err == nil:
		case errors.Is(err, ledger.ErrConflict):
			result = "conflict"
		case errors.Is(err, ledger.ErrNotFound):
			result = "not found"
		case errors.Is(err, ledger.ErrThrottled):
			result = "throttled"
		default:
			result = "error"
			span.SetStatus(codes.Error, "outage")
		}
		span.SetAttributes(attribute.String("devicequota.result", result))
		span.End()
	}
}

// view makes a span of each live observation, as child of the request that asked first.
func (t *tracing) view(next ledger.View) ledger.View {
	if t == nil {
		return next
	}
	return tracedView{next, t}
}

type tracedView struct {
	ledger.View
	t *tracing
}

// Live implements ledger.View.
func (v tracedView) Live(ctx context.Context) (ledger.Observation, error) {
	ctx, span := v.t.tracer.Start(ctx, "live observation")
	defer span.End()
	o, err := v.View.Live(ctx)
	if err != nil {
		span.SetStatus(codes.Error, "outage")
	}
	return o, err
}

// ledgerTracer is t, or no interface at all when tracing is off.
func (t *tracing) ledgerTracer() ledger.Tracer {
	if t == nil {
		return nil
	}
	return t
}

func (o *Options) validateTracing(p *problems) {
	if rate := o.TracingSamplingRatePerMillion; rate < 0 || rate > million {
		p.bad("tracing-sampling-rate-per-million", "%d: want 0 to %d", rate, million)
	}
	if o.TracingEndpoint == "" {
		return
	}
	switch u, err := url.Parse(o.TracingEndpoint); {
	case strings.Contains(o.TracingEndpoint, "@"): // and say nothing of it, whether it is a URL or not
		p.bad("tracing-endpoint", "must not hold a user: use the variable OTEL_EXPORTER_OTLP_HEADERS")
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		p.bad("tracing-endpoint", "%q: want http://HOST:PORT or https://HOST:PORT", o.TracingEndpoint)
	}
}
