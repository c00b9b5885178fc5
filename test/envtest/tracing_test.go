package envtest

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

// calling sends the trace that each request belongs to.
type calling struct {
	next        http.RoundTripper
	traceparent string
}

func (c calling) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("traceparent", c.traceparent)
	return c.next.RoundTrip(r)
}

// inTrace is an admin whose requests are traced, as those that the API server samples are.
func inTrace(t *testing.T, trace string) client.Client {
	t.Helper()
	config := rest.CopyConfig(cp.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return calling{next, "00-" + trace + "-b7ad6b7169203331-01"}
	})
	c, err := client.New(config, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// spansOf returns the spans of a trace, by name.
func spansOf(trace string) map[string][]*tracev1.Span {
	out := map[string][]*tracev1.Span{}
	for _, s := range collector.Spans() {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			out[s.GetName()] = append(out[s.GetName()], s)
		}
	}
	return out
}

// withPath waits until the trace has spans of the names of which each is a child of the one
// before, and returns them.
func withPath(t *testing.T, trace string, names ...string) []*tracev1.Span {
	t.Helper()
	var out []*tracev1.Span
	harness.Eventually(t, "spans", func(context.Context) error {
		all := spansOf(trace)
		if out = path(all, "", names); out == nil {
			return fmt.Errorf("no spans %q of which each is a child of the one before in %v", names, all)
		}
		return nil
	})
	return out
}

// path returns spans of the names, the first a child of the parent, if there is one, and each
// other of the one before; nil when there are none.
func path(all map[string][]*tracev1.Span, parent string, names []string) []*tracev1.Span {
	if len(names) == 0 {
		return []*tracev1.Span{}
	}
	for _, s := range all[names[0]] {
		if parent != "" && string(s.GetParentSpanId()) != parent {
			continue
		}
		if rest := path(all, string(s.GetSpanId()), names[1:]); rest != nil {
			return append([]*tracev1.Span{s}, rest...)
		}
	}
	return nil
}

func TestAnAdmissionIsTracedFromTheAPIServerThroughTheLedgerAndBack(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	const admitted, refused = "0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319d"
	c := claim(tn.namespaces[0], "traced", "gpu.nvidia.com", 1)
	c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{Raw: []byte(`{"token":"secret-1"}`)}}}}}
	if err := inTrace(t, admitted).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	spans := withPath(t, admitted, "admission validate-resourceclaim", "ledger admit", "ledger commit", "ledger write", "HTTP PUT")
	for key, want := range map[string]string{"devicequota.decision": "allowed", "devicequota.quotas": tn.name, "k8s.namespace.name": tn.namespaces[0]} {
		if got := harness.Attribute(spans[0].GetAttributes(), key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if got := harness.Attribute(spans[2].GetAttributes(), "devicequota.quota"); got != tn.name {
		t.Errorf("the commit's quota is %q", got)
	}

	wantDenied(t, inTrace(t, refused).Create(t.Context(), claim(tn.namespaces[0], "traced-too-large", "gpu.nvidia.com", 2)), "exceeded quota")
	spans = withPath(t, refused, "admission validate-resourceclaim", "ledger admit", "live observation", "HTTP GET")
	if got := harness.Attribute(spans[0].GetAttributes(), "devicequota.decision"); got != "denied" {
		t.Errorf("decision %q", got)
	}
	if all := fmt.Sprint(collector.Spans()); strings.Contains(all, "secret-1") {
		t.Error("a claim's configuration is in a span")
	}
	refusedOnce(t, "traced-too-large", harness.Attribute(spans[0].GetAttributes(), "k8s.admission.uid"))
}

// refusedOnce checks that the managers' logs have one line of JSON on the refusal, by which the
// request is found in traces and in the API server's audit log.
func refusedOnce(t *testing.T, name, uid string) {
	t.Helper()
	var lines []string
	harness.Eventually(t, "a line on "+name, func(context.Context) error { // it comes through a pipe
		lines = nil
		for _, m := range managers {
			for line := range strings.Lines(m.Log()) {
				if strings.Contains(line, `"`+name+`"`) && strings.HasSuffix(line, "\n") {
					lines = append(lines, line)
				}
			}
		}
		if len(lines) == 0 {
			return errors.New("none")
		}
		return nil
	})
	if len(lines) != 1 {
		t.Errorf("%d lines on %s, want 1", len(lines), name)
	}
	for _, line := range lines {
		var l struct{ Msg, RequestID, Decision string }
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Msg != "refused" || l.RequestID != uid || uid == "" || l.Decision != "denied" {
			t.Errorf("want the refusal of request %q, got %v: %s", uid, err, line)
		}
	}
}
