package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/webhooks"
)

// Values of Options.Allocation.
const (
	// AllocationOff leaves allocation to the scheduler.
	AllocationOff = "off"
	// AllocationAll allocates all pending claims, for clusters without a DRA scheduler.
	AllocationAll = "all"
)

// Values of Options.Platform.
const (
	PlatformAuto       = "auto"
	PlatformOpenShift  = "openshift"
	PlatformKubernetes = "kubernetes"
)

// Values of Options.TLSMode.
const (
	// TLSFiles takes the certificate from CertDir and follows changes of the files.
	TLSFiles = "files"
	// TLSSelfSigned keeps an authority and a certificate in a Secret that all replicas share.
	TLSSelfSigned = "self-signed"
)

const (
	// VersionAuto takes the most preferred version that the API server has.
	VersionAuto = "auto"
	// AddressOff serves nothing.
	AddressOff = "0"

	logJSON = "json"
	logText = "text"
)

// Options of the manager. DefaultOptions returns the defaults; the zero value is not useful.
type Options struct {
	// Namespace that the manager runs in; exempt from all quotas, and where the lease is.
	Namespace string
	// ExemptNamespaces, besides Namespace, are covered by no quota. The webhook configuration
	// has to leave out the same ones.
	ExemptNamespaces []string

	// WebhookAddress is the host and port that the webhooks are served on; an empty host is every address.
	WebhookAddress string
	// TLSMode says where certificates come from.
	TLSMode string
	// CertDir holds tls.crt and tls.key for TLSFiles.
	CertDir string
	// TLSSecret and TLSService, both in Namespace, are for TLSSelfSigned; so are the names of
	// the webhook configurations whose caBundle is kept up to date.
	TLSSecret, TLSService                          string
	ValidatingConfiguration, MutatingConfiguration string
	// TLSMinVersion is 1.2 or 1.3.
	TLSMinVersion string

	// HealthAddress serves /livez, /healthz and /readyz over HTTP; AddressOff serves none.
	HealthAddress string
	// MetricsAddress serves /metrics; AddressOff serves none.
	MetricsAddress string
	// MetricsSecure serves metrics over HTTPS to those who may get /metrics, else over HTTP to everybody.
	MetricsSecure bool
	// MetricsProjectSeries bounds the series of use by project; 0 exports none.
	MetricsProjectSeries int
	// PprofAddress serves profiles; empty serves none. Profiles tell secrets: bind to loopback only.
	PprofAddress string

	// LeaderElect runs the reconcilers on one replica only. Webhooks are served by all.
	LeaderElect                               bool
	LeaseName                                 string
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	// ShutdownDelay is how long the webhooks are served after readiness is withdrawn at the
	// end: until then nobody may have noticed.
	ShutdownDelay time.Duration
	// ShutdownTimeout bounds the end after that.
	ShutdownTimeout time.Duration

	Allocation string
	Platform   string
	// ResourceAPIVersion is VersionAuto, v1, v1beta2 or v1beta1.
	ResourceAPIVersion string
	// Enforcement of quotas without the annotation.
	Enforcement quota.Enforcement

	AdminAccess webhooks.AdminAccessPolicy
	// Schedulers are the users that make claims for pods with extended resources,
	// ClaimControllers those that make claims from templates.
	Schedulers, ClaimControllers []string
	// MaxInFlight bounds the admission requests that are decided at the same time.
	MaxInFlight int
	// WebhookTimeout bounds one admission request.
	WebhookTimeout time.Duration

	// TracingEndpoint is the URL of an OpenTelemetry collector that takes OTLP over gRPC; empty traces nothing.
	TracingEndpoint string
	// TracingSamplingRatePerMillion is how many of a million requests that their caller did not
	// decide on are traced. Those that the API server traces always are.
	TracingSamplingRatePerMillion int

	// LogFormat is json or text.
	LogFormat string
	LogLevel  int

	// Version of a released binary; empty for what the build tells.
	Version string

	// Started, if set, is called once all readiness checks pass.
	Started func()
	// SettleInterval is the least time between two settles of one quota, and between two writes of
	// its status. Zero means the reconcilers' defaults.
	SettleInterval time.Duration
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{
		Namespace:        "devicequota-system",
		ExemptNamespaces: []string{"kube-node-lease", "kube-public", "kube-system"},
		WebhookAddress:   ":9443", TLSMode: TLSFiles, CertDir: "/var/run/devicequota/certs", TLSMinVersion: "1.2",
		HealthAddress: ":8081", MetricsAddress: ":8443", MetricsSecure: true, MetricsProjectSeries: 10_000,
		LeaderElect: true, LeaseName: "devicequota",
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ShutdownDelay: 10 * time.Second, ShutdownTimeout: 30 * time.Second,
		Allocation: AllocationOff, Platform: PlatformAuto, ResourceAPIVersion: VersionAuto, Enforcement: quota.Enforce,
		AdminAccess: webhooks.AdminAccessWarn, Schedulers: []string{webhooks.DefaultScheduler},
		ClaimControllers: webhooks.DefaultClaimControllers(),
		MaxInFlight:      webhooks.DefaultMaxInFlight, WebhookTimeout: webhooks.DefaultTimeout,
		LogFormat: logJSON,
	}
}

// AddFlags adds a flag for each option, with o's values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace that the manager runs in; no quota covers it")
	fs.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", o.ExemptNamespaces, "namespaces that no quota covers, by name; the webhook configuration has to leave out the same ones")
	fs.StringVar(&o.Allocation, "allocation", o.Allocation, "off, or all: allocate pending claims, for clusters without a DRA scheduler; never beside one")
	fs.StringVar(&o.Platform, "platform", o.Platform, "auto, openshift or kubernetes")
	fs.StringVar(&o.ResourceAPIVersion, "resource-api-version", o.ResourceAPIVersion, "version of resource.k8s.io to read: auto, v1, v1beta2 or v1beta1")
	fs.StringVar((*string)(&o.Enforcement), "enforcement", string(o.Enforcement), "Enforce, Warn or Audit, for quotas without the annotation "+quota.EnforcementAnnotation)
	fs.StringVar((*string)(&o.AdminAccess), "admin-access", string(o.AdminAccess), `what happens to those who ask for adminAccess without the verb "use" on adminaccess.devicequota.io: Allow, Warn or Deny`)
	fs.StringSliceVar(&o.Schedulers, "schedulers", o.Schedulers, "user names of the schedulers that make claims for pods with extended resources")
	fs.StringSliceVar(&o.ClaimControllers, "claim-controllers", o.ClaimControllers, "user names of the controllers that make claims from templates")
	fs.IntVar(&o.MaxInFlight, "max-in-flight", o.MaxInFlight, "admission requests that are decided at the same time; more are asked to retry")
	fs.DurationVar(&o.WebhookTimeout, "webhook-timeout", o.WebhookTimeout, "how long an admission request may take; below the webhooks' timeoutSeconds")
	o.addServingFlags(fs)
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "run the reconcilers on one replica only; webhooks are served by all")
	fs.StringVar(&o.LeaseName, "leader-elect-lease-name", o.LeaseName, "name of the lease")
	fs.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", o.LeaseDuration, "how long a lease is respected that is not renewed")
	fs.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", o.RenewDeadline, "how long the leader tries to renew before it gives up")
	fs.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", o.RetryPeriod, "time between two tries")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "how long webhooks are still served after SIGTERM, while readiness is withdrawn")
	fs.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", o.ShutdownTimeout, "how long the rest of the shutdown may take")
	fs.StringVar(&o.LogFormat, "log-format", o.LogFormat, "json or text")
	fs.IntVar(&o.LogLevel, "log-level", o.LogLevel, "0: refusals and state changes; 1: every admission; more: details")
}

func (o *Options) addServingFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.WebhookAddress, "webhook-bind-address", o.WebhookAddress, "address that the webhooks are served on")
	fs.StringVar(&o.TLSMode, "tls-mode", o.TLSMode, "files: the certificate is in --cert-dir; self-signed: it is made, kept in --tls-secret and renewed")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "folder with tls.crt and tls.key; changed files are used without a restart")
	fs.StringVar(&o.TLSSecret, "tls-secret", o.TLSSecret, "Secret in --namespace that keeps the self-signed certificate")
	fs.StringVar(&o.TLSService, "tls-service", o.TLSService, "Service in --namespace that the self-signed certificate is for")
	fs.StringVar(&o.ValidatingConfiguration, "validating-webhook-configuration", o.ValidatingConfiguration, "webhook configuration that gets the self-signed certificate's authority")
	fs.StringVar(&o.MutatingConfiguration, "mutating-webhook-configuration", o.MutatingConfiguration, "webhook configuration that gets the self-signed certificate's authority")
	fs.StringVar(&o.TLSMinVersion, "tls-min-version", o.TLSMinVersion, "1.2 or 1.3")
	fs.StringVar(&o.HealthAddress, "health-probe-bind-address", o.HealthAddress, `address of /livez and /readyz; "0" for none`)
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", o.MetricsAddress, `address of /metrics; "0" for none`)
	fs.BoolVar(&o.MetricsSecure, "metrics-secure", o.MetricsSecure, "serve metrics over HTTPS, to those who may get /metrics")
	fs.IntVar(&o.MetricsProjectSeries, "metrics-project-series", o.MetricsProjectSeries, "how many series of use by project are exported at most, projects that use anything first; 0 for none")
	fs.StringVar(&o.TracingEndpoint, "tracing-endpoint", o.TracingEndpoint, "OpenTelemetry collector that takes OTLP over gRPC, http://HOST:PORT or https://HOST:PORT; empty for no tracing")
	fs.IntVar(&o.TracingSamplingRatePerMillion, "tracing-sampling-rate-per-million", o.TracingSamplingRatePerMillion, "how many of a million requests that their caller did not decide on are traced; those that the API server traces always are")
	fs.StringVar(&o.PprofAddress, "pprof-bind-address", o.PprofAddress, "address of profiles, for example 127.0.0.1:6060; empty for none")
}

// Validate returns everything that is wrong, with the flags' names, sorted.
func (o *Options) Validate() error {
	p := &problems{}
	p.choice("allocation", o.Allocation, AllocationOff, AllocationAll)
	p.choice("platform", o.Platform, PlatformAuto, PlatformOpenShift, PlatformKubernetes)
	p.choice("resource-api-version", o.ResourceAPIVersion, VersionAuto, "v1", "v1beta2", "v1beta1")
	p.choice("enforcement", string(o.Enforcement), string(quota.Enforce), string(quota.Warn), string(quota.Audit))
	p.choice("admin-access", string(o.AdminAccess), string(webhooks.AdminAccessAllow), string(webhooks.AdminAccessWarn), string(webhooks.AdminAccessDeny))
	p.choice("log-format", o.LogFormat, logJSON, logText)
	p.choice("tls-mode", o.TLSMode, TLSFiles, TLSSelfSigned)
	p.choice("tls-min-version", o.TLSMinVersion, "1.2", "1.3")
	p.namespace("namespace", o.Namespace)
	for _, ns := range o.ExemptNamespaces {
		p.namespace("exempt-namespaces", ns)
	}
	p.address("webhook-bind-address", o.WebhookAddress)
	if o.HealthAddress != AddressOff {
		p.address("health-probe-bind-address", o.HealthAddress)
	}
	if o.MetricsAddress != AddressOff {
		p.address("metrics-bind-address", o.MetricsAddress)
	}
	if o.PprofAddress != "" {
		p.address("pprof-bind-address", o.PprofAddress)
	}
	if o.TLSMode == TLSFiles {
		p.required("cert-dir", o.CertDir)
	} else {
		p.required("tls-secret", o.TLSSecret)
		p.required("tls-service", o.TLSService)
	}
	o.validateNumbers(p)
	slices.SortFunc(p.errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(p.errs...)
}

func (o *Options) validateNumbers(p *problems) {
	if o.LeaderElect && (o.RetryPeriod <= 0 || o.RetryPeriod >= o.RenewDeadline || o.RenewDeadline >= o.LeaseDuration) {
		p.bad("leader-elect-lease-duration", "want retry period %v < renew deadline %v < lease duration %v", o.RetryPeriod, o.RenewDeadline, o.LeaseDuration)
	}
	if o.ShutdownDelay < 0 {
		p.bad("shutdown-delay", "%v: must not be negative", o.ShutdownDelay)
	}
	if o.ShutdownTimeout <= 0 {
		p.bad("shutdown-timeout", "%v: must be positive", o.ShutdownTimeout)
	}
	if o.MetricsProjectSeries < 0 {
		p.bad("metrics-project-series", "%d: must not be negative", o.MetricsProjectSeries)
	}
	o.validateTracing(p)
	if o.MaxInFlight < 1 {
		p.bad("max-in-flight", "%d: must be positive", o.MaxInFlight)
	}
	if o.WebhookTimeout <= 0 || o.WebhookTimeout >= 30*time.Second {
		p.bad("webhook-timeout", "%v: want more than 0 and less than 30s", o.WebhookTimeout)
	}
}

// problems collects what is wrong with flags.
type problems struct{ errs []error }

func (p *problems) bad(flag, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
}

func (p *problems) choice(flag, value string, valid ...string) {
	if !slices.Contains(valid, value) {
		p.bad(flag, "%q: want %s", value, strings.Join(valid, ", "))
	}
}

func (p *problems) required(flag, value string) {
	if value == "" {
		p.bad(flag, "is required")
	}
}

func (p *problems) namespace(flag, value string) {
	if msgs := validation.IsDNS1123Label(value); len(msgs) > 0 {
		p.bad(flag, "%q: %s", value, msgs[0])
	}
}

func (p *problems) address(flag, value string) {
	if _, _, err := net.SplitHostPort(value); err != nil {
		p.bad(flag, "%v", err)
	}
}

// exempt returns all exempt namespaces, sorted.
func (o *Options) exempt() []string {
	all := append([]string{o.Namespace}, o.ExemptNamespaces...)
	slices.Sort(all)
	return slices.Compact(all)
}

// minTLS sets the lowest version, and HTTP/1.1 alone: an API server calls Services by nothing
// else, so that its requests spread over all replicas, and HTTP/2 is one more thing to attack.
// Source: k8s.io/apiserver/pkg/util/webhook/client.go (v1.37).
func (o *Options) minTLS(c *tls.Config) {
	c.NextProtos = []string{"http/1.1"}
	c.MinVersion = tls.VersionTLS12
	if o.TLSMinVersion == "1.3" {
		c.MinVersion = tls.VersionTLS13
	}
}
