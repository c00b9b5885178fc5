package app

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/webhooks"
	"github.com/devicequota/devicequota/webhooks/certs"
)

func TestTheDefaultsAreValid(t *testing.T) {
	o := DefaultOptions()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

func TestEveryWrongFlagIsNamed(t *testing.T) {
	cases := map[string]struct {
		change func(*Options)
		want   string
	}{
		"allocation":           {func(o *Options) { o.Allocation = "some" }, `--allocation: "some": want off, all`},
		"platform":             {func(o *Options) { o.Platform = "" }, `--platform: "": want auto, openshift, kubernetes`},
		"enforcement":          {func(o *Options) { o.Enforcement = "Maybe" }, `--enforcement: "Maybe": want Enforce, Warn, Audit`},
		"resource API":         {func(o *Options) { o.ResourceAPIVersion = "v2" }, `--resource-api-version: "v2"`},
		"admin access":         {func(o *Options) { o.AdminAccess = "no" }, `--admin-access: "no": want Allow, Warn, Deny`},
		"namespace":            {func(o *Options) { o.Namespace = "A" }, `--namespace: "A": a lowercase`},
		"exempt namespace":     {func(o *Options) { o.ExemptNamespaces = []string{"x y"} }, `--exempt-namespaces: "x y": a lowercase`},
		"webhook address":      {func(o *Options) { o.WebhookAddress = "9443" }, `--webhook-bind-address: address 9443: missing port`},
		"no certificate":       {func(o *Options) { o.CertDir = "" }, `--cert-dir: is required`},
		"no secret":            {func(o *Options) { o.TLSMode = TLSSelfSigned; o.TLSService = "x" }, `--tls-secret: is required`},
		"lease":                {func(o *Options) { o.RenewDeadline = time.Minute }, `--leader-elect-lease-duration: want retry period 2s < renew deadline 1m0s < lease duration 15s`},
		"in flight":            {func(o *Options) { o.MaxInFlight = 0 }, `--max-in-flight: 0: must be positive`},
		"timeout":              {func(o *Options) { o.WebhookTimeout = time.Minute }, `--webhook-timeout: 1m0s: want`},
		"shutdown delay":       {func(o *Options) { o.ShutdownDelay = -1 }, `--shutdown-delay: -1ns: must not be negative`},
		"project series":       {func(o *Options) { o.MetricsProjectSeries = -1 }, `--metrics-project-series: -1: must not be negative`},
		"collector":            {func(o *Options) { o.TracingEndpoint = "collector:4317" }, `--tracing-endpoint: "collector:4317": want http://HOST:PORT or https://HOST:PORT`},
		"collector's secret":   {func(o *Options) { o.TracingEndpoint = "https://me:pass@collector:4317" }, `--tracing-endpoint: must not hold a user: use the variable OTEL_EXPORTER_OTLP_HEADERS`},
		"sampling rate":        {func(o *Options) { o.TracingSamplingRatePerMillion = 1_000_001 }, `--tracing-sampling-rate-per-million: 1000001: want 0 to 1000000`},
		"several, all of them": {func(o *Options) { o.MaxInFlight = -1; o.LogFormat = "xml" }, "--log-format: \"xml\": want json, text\n--max-in-flight: -1: must be positive"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			c.change(&o)
			err := o.Validate()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}

func TestAConfigurationFileSetsFlagsThatWereNotGiven(t *testing.T) {
	o := DefaultOptions()
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse([]string{"--shutdown-delay=3s"}); err != nil {
		t.Fatal(err)
	}
	err := ApplyConfig(fs, []byte(`apiVersion: config.devicequota.io/v1alpha1
kind: ManagerConfiguration
shutdownDelay: 10m
maxInFlight: 7
tracingEndpoint: http://collector:4317
tracingSamplingRatePerMillion: 1000000
metricsSecure: false
adminAccess: Deny
webhookTimeout: 2s
exemptNamespaces: [a, b]
schedulers:
- system:kube-scheduler
- custom
`))
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultOptions()
	want.ShutdownDelay, want.MaxInFlight, want.MetricsSecure, want.AdminAccess = 3*time.Second, 7, false, webhooks.AdminAccessDeny
	want.TracingEndpoint, want.TracingSamplingRatePerMillion = "http://collector:4317", 1_000_000
	want.WebhookTimeout, want.ExemptNamespaces, want.Schedulers = 2*time.Second, []string{"a", "b"}, []string{"system:kube-scheduler", "custom"}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

func TestAWrongConfigurationFileNamesItsKeys(t *testing.T) {
	const head = "apiVersion: config.devicequota.io/v1alpha1\nkind: ManagerConfiguration\n"
	for file, want := range map[string]string{
		"kind: ManagerConfiguration":     "want config.devicequota.io/v1alpha1, ManagerConfiguration",
		head + "shutdownDelays: 1s":      `unknown key "shutdownDelays" (do you mean the key for --shutdown-delay?)`,
		head + "shutdown-delay: 1s":      `unknown key "shutdown-delay"`,
		head + "maxInFlight: many":       `key "maxInFlight": strconv.ParseInt`,
		head + "maxInFlight: [1, 2]":     `key "maxInFlight": want one value, not a list`,
		head + "namespace: {a: b}":       `key "namespace": map[a:b]: want text`,
		head + "foo: 1\nmaxInFlight: no": `unknown key "foo"; key "maxInFlight"`,
		head + "foo: 1\nfoo: 2":          `"foo" already set`,
		"[":                              "yaml",
	} {
		o := DefaultOptions()
		fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := ApplyConfig(fs, []byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v", file, want, err)
		}
	}
}

func TestReadinessSaysWhichCheckFailsAndWhy(t *testing.T) {
	var drain draining
	ready := newReadiness(logr.Discard())
	mux := healthMux(ready)
	get := func(path string) (int, string) {
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return rec.Code, rec.Body.String()
	}
	if code, body := get("/readyz"); code != 500 || body != "[-]cluster failed: the API server was not asked yet\n" {
		t.Errorf("readyz before anything is known: %d %q", code, body)
	}
	if code, _ := get("/livez"); code != 200 {
		t.Errorf("livez before anything is known: %d", code)
	}
	ready.set(map[string]healthz.Checker{"draining": drain.check, "caches": func(*http.Request) error { return errors.New("pods: not received yet") }})
	if code, body := get("/readyz?verbose"); code != 500 || body != "[-]caches failed: pods: not received yet\n[+]draining ok\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	drain.on.Store(true)
	if _, body := get("/readyz"); !strings.Contains(body, "[-]draining failed: shutting down") {
		t.Errorf("readyz while draining: %q", body)
	}
	for _, path := range []string{"/livez", "/healthz"} {
		if code, _ := get(path); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestVerifyTellsWhetherAManagerIsReady(t *testing.T) {
	ready := true
	checks := newReadiness(logr.Discard())
	checks.set(map[string]healthz.Checker{"it": func(*http.Request) error {
		if ready {
			return nil
		}
		return errors.New("not yet")
	}})
	s := httptest.NewServer(healthMux(checks))
	defer s.Close()
	if text, err := Verify(t.Context(), s.URL); err != nil || text != "[+]it ok\n" {
		t.Errorf("ready: %q, %v", text, err)
	}
	ready = false
	if text, err := Verify(t.Context(), s.URL+"/"); err == nil || !strings.Contains(text, "not yet") {
		t.Errorf("not ready: %q, %v", text, err)
	}
}

func TestTwoManagersInOneProcessHaveTheirOwnMetrics(t *testing.T) {
	for range 2 {
		r, err := newRegistry("v1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newLedgerMetrics(r); err != nil {
			t.Error(err)
		}
		if _, err := webhooks.NewMetrics(r); err != nil {
			t.Error(err)
		}
	}
}

// allMetrics returns a registry in which every metric has a value.
func allMetrics(t *testing.T) *prometheus.Registry {
	t.Helper()
	r, err := newRegistry("v1")
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLedgerMetrics(r)
	if err != nil {
		t.Fatal(err)
	}
	w, err := webhooks.NewMetrics(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Admission("w", webhooks.DecisionDenied, []webhooks.Reason{webhooks.ReasonQuotaExceeded}, time.Millisecond)
	w.InFlight("w", 1)
	w.Panic("w")
	l.Batch(3)
	l.Put(ledger.PutStored, time.Millisecond)
	l.Settled(ledger.SourceCache, time.Second)
	l.Aged(1)
	l.Observed(time.Millisecond, nil)
	return r
}

func TestMetricsAreWellNamed(t *testing.T) {
	problems, err := testutil.GatherAndLint(allMetrics(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// description finds name and labels in the text of a description, which has no other way to them.
var description = regexp.MustCompile(`^Desc\{fqName: "(\w+)", .*constLabels: \{(?:(\w+)=.*)?\}, variableLabels: \{(.*)\}\}$`)

// exported returns the labels of all metrics of a manager by name.
func exported(t *testing.T, r *prometheus.Registry) map[string]string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 100)
	for _, c := range []prometheus.Collector{r, cluster.NewCollector(nil, nil), cluster.NewQuotaCollector(cluster.QuotaMetrics{}), certs.Collector(nil)} {
		c.Describe(descs)
	}
	close(descs)
	out := map[string]string{}
	for d := range descs {
		found := description.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatalf("what is %s", d)
		}
		out[found[1]] = strings.ReplaceAll(found[2]+found[3], ",", ", ")
	}
	return out
}

func TestTheDocumentationListsExactlyTheMetrics(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed, types := map[string]string{}, map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| (.*?) ?\\|").FindAllStringSubmatch(string(docs), -1) {
		types[row[1]], listed[row[1]] = row[2], row[3]
	}
	r := allMetrics(t)
	if diff := cmp.Diff(exported(t, r), listed); diff != "" {
		t.Errorf("labels by metric (-exported +docs/metrics.md):\n%s", diff)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if got := strings.ToLower(f.GetType().String()); got != types[f.GetName()] {
			t.Errorf("%s is a %s, docs/metrics.md says %q", f.GetName(), got, types[f.GetName()])
		}
	}
}

// serverVersion is an API server of a version.
type serverVersion string

func (v serverVersion) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: string(v)}, nil
}

func TestKubernetesKeysAreLeftToOpenShiftFromItsFirstVersionThatCountsClaims(t *testing.T) {
	for _, c := range []struct {
		platform cluster.Platform
		version  serverVersion
		want     bool
	}{
		{cluster.OpenShift, "v1.33.6", false},
		{cluster.OpenShift, "v1.34.1+abcdef", true},
		{cluster.OpenShift, "v1.36.0", true},
		{cluster.Kubernetes, "v1.37.2", false},
	} {
		i := &instance{platform: c.platform}
		if err := i.findPlatformKeys(c.version); err != nil || i.platformKeys != c.want {
			t.Errorf("%s %s: %v, %v, want %v", c.platform, c.version, i.platformKeys, err, c.want)
		}
	}
}

func TestCachesThatWereFilledAreNotAskedAgain(t *testing.T) {
	asked, answer := 0, errors.New("not yet")
	ready := latch(func() error {
		asked++
		return answer
	})
	for range 2 {
		if ready() == nil {
			t.Error("ready before the caches are")
		}
	}
	answer = nil
	for range 2 {
		if err := ready(); err != nil {
			t.Error(err)
		}
	}
	if asked != 3 {
		t.Errorf("asked %d times, want 3", asked)
	}
}

func TestServersSpeakHTTP1Alone(t *testing.T) {
	for minimum, want := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		o := DefaultOptions()
		o.TLSMinVersion = minimum
		c := &tls.Config{NextProtos: []string{"h2"}}
		o.minTLS(c)
		if diff := cmp.Diff([]string{"http/1.1"}, c.NextProtos); diff != "" || c.MinVersion != want {
			t.Errorf("%s: least version %x, protocols (-want +got):\n%s", minimum, c.MinVersion, diff)
		}
	}
}
