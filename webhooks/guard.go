package webhooks

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// guard stands in front of each handler: it bounds how many requests are decided at a time
// and how long each may take, answers while nothing can be decided yet, turns panics into
// answers, and counts. Safe for concurrent use.
type guard struct {
	webhook  string
	handler  admission.Handler
	slots    chan struct{} // shared by all webhooks
	timeout  time.Duration
	ready    func() error
	recorder Recorder
}

// SelfCheckUID is the UID of reviews by which a replica checks its own webhooks.
const SelfCheckUID types.UID = "devicequota-self-check"

// overloadRetry is when an overloaded replica asks to be called again.
const overloadRetry = time.Second

// Handle implements admission.Handler.
func (g *guard) Handle(ctx context.Context, req admission.Request) (resp admission.Response) {
	start := time.Now()
	g.recorder.InFlight(g.webhook, 1)
	logger := log.FromContext(ctx)
	defer func() {
		if r := recover(); r != nil {
			g.recorder.Panic(g.webhook)
			requestLogger(logger, &req).Error(fmt.Errorf("panic: %v", r), "panic recovered", "stack", string(debug.Stack()))
			resp = outage(fmt.Errorf("panic: %v", r), notes{})
		}
		g.recorder.InFlight(g.webhook, -1)
		if req.UID == SelfCheckUID {
			return // no admission: whoever checks says what came of it
		}
		decision, reasons := resp.AuditAnnotations[AuditDecision], reasonsOf(resp)
		g.recorder.Admission(g.webhook, decision, reasons, time.Since(start))
		logAnswer(logger, &req, g.webhook, resp, reasons)
	}()
	if err := g.ready(); err != nil {
		return outage(fmt.Errorf("not ready: %w", err), notes{})
	}
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	default:
		return busy(overloadRetry, "too many requests at the same time", notes{})
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return g.handler.Handle(ctx, req)
}

// logAnswer writes one line per refusal; whatever is admitted is only of interest when debugging.
func logAnswer(logger logr.Logger, req *admission.Request, webhook string, resp admission.Response, reasons []Reason) {
	if resp.Allowed && !logger.V(1).Enabled() {
		return
	}
	logger = requestLogger(logger, req)
	if resp.Allowed {
		logger.V(1).Info("admitted", "webhook", webhook, "decision", resp.AuditAnnotations[AuditDecision])
		return
	}
	logger.Info("refused", "webhook", webhook, "decision", resp.AuditAnnotations[AuditDecision],
		"reasons", reasons, "code", resp.Result.Code, "message", resp.Result.Message)
}

// reasonsOf returns the reasons of the answer's causes and warnings, each once, in order.
func reasonsOf(resp admission.Response) []Reason {
	if (resp.Result == nil || resp.Result.Details == nil) && len(resp.Warnings) == 0 {
		return nil
	}
	var out []Reason
	add := func(r Reason) {
		if known(r) && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	if resp.Result != nil && resp.Result.Details != nil {
		for _, c := range resp.Result.Details.Causes {
			add(Reason(c.Type))
		}
	}
	for _, w := range resp.Warnings {
		if reason, _, ok := strings.Cut(w, ":"); ok {
			add(Reason(reason))
		}
	}
	return out
}

// answerTime is what is left to the API server to receive the answer within its timeout.
const answerTime = 500 * time.Millisecond

// withServerTimeout lowers the request's deadline to the timeout that the API server
// announces (?timeout=5s), so that an answer comes while somebody still waits for it.
func withServerTimeout(ctx context.Context, r *http.Request) context.Context {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= answerTime {
		return ctx
	}
	// The request's context ends with the request, so the timer is not left behind.
	ctx, cancel := context.WithTimeout(ctx, timeout-answerTime)
	context.AfterFunc(r.Context(), cancel)
	return ctx
}

// noRecorder counts nothing.
type noRecorder struct{}

func (noRecorder) Admission(string, string, []Reason, time.Duration) {}
func (noRecorder) InFlight(string, int)                              {}
func (noRecorder) Panic(string)                                      {}
