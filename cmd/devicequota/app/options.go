package app

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

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

// VersionAuto takes the most preferred version that the API server has.
const VersionAuto = "auto"

// MetricsOff as Options.MetricsAddress serves no metrics.
const MetricsOff = "0"

// Options of the manager. DefaultOptions returns the defaults; the zero value is not useful.
type Options struct {
	// Namespace that the manager runs in; exempt from all quotas, and where the lease is.
	Namespace string
	// ExemptNamespaces, besides Namespace, are covered by no quota. The webhook configuration
	// has to leave out the same ones.
	ExemptNamespaces []string

	// WebhookHost and WebhookPort are where the webhooks are served; an empty host is every address.
	WebhookHost string
	WebhookPort int
	// CertDir holds the serving certificate CertName and KeyName; changed files are used at once.
	CertDir, CertName, KeyName string
	// SelfSigned writes a certificate of its own into CertDir, and the CA beside it as ca.crt, if there is none.
	SelfSigned bool
	// SelfSignedNames are the DNS names and addresses in that certificate.
	SelfSignedNames []string

	// HealthAddress serves /livez, /healthz and /readyz over HTTP; "0" serves none.
	HealthAddress string
	// MetricsAddress serves /metrics; "0" serves none.
	MetricsAddress string
	// MetricsInsecure serves metrics over HTTP to everybody, else over HTTPS to those who may get /metrics.
	MetricsInsecure bool
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

	AdminAccess webhooks.AdminAccessPolicy
	// Schedulers are the users that make claims for pods with extended resources.
	Schedulers []string
	// MaxInFlight bounds the admission requests that are decided at the same time.
	MaxInFlight int
	// AdmissionTimeout bounds one admission request.
	AdmissionTimeout time.Duration

	LogFormat string
	LogLevel  int

	// Started, if set, is called when the webhooks are served and the caches are filled.
	Started func()
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{
		Namespace:        "devicequota-system",
		ExemptNamespaces: []string{"kube-node-lease", "kube-public", "kube-system"},
		WebhookPort:      9443, CertDir: "/var/run/devicequota/certs", CertName: "tls.crt", KeyName: "tls.key",
		SelfSignedNames: []string{"localhost", "127.0.0.1"},
		HealthAddress:   ":8081", MetricsAddress: ":8443",
		LeaderElect: true, LeaseName: "devicequota",
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ShutdownDelay: 10 * time.Second, ShutdownTimeout: 30 * time.Second,
		Allocation: AllocationOff, Platform: PlatformAuto, ResourceAPIVersion: VersionAuto,
		AdminAccess: webhooks.AdminAccessWarn, Schedulers: []string{webhooks.DefaultScheduler},
		MaxInFlight: webhooks.DefaultMaxInFlight, AdmissionTimeout: webhooks.DefaultTimeout,
		LogFormat: "json",
	}
}

// AddFlags adds a flag for each option, with o's values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace that the manager runs in; no quota covers it")
	fs.StringSliceVar(&o.ExemptNamespaces, "exempt-namespaces", o.ExemptNamespaces, "namespaces that no quota covers, by name; the webhook configuration has to leave out the same ones")
	fs.StringVar(&o.WebhookHost, "webhook-host", o.WebhookHost, "address that the webhooks are served on; empty for every one")
	fs.IntVar(&o.WebhookPort, "webhook-port", o.WebhookPort, "port that the webhooks are served on")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "folder with the webhooks' certificate and key; changed files are used without a restart")
	fs.StringVar(&o.CertName, "cert-name", o.CertName, "file name of the certificate")
	fs.StringVar(&o.KeyName, "key-name", o.KeyName, "file name of the key")
	fs.BoolVar(&o.SelfSigned, "self-signed", o.SelfSigned, "write a certificate and its CA (ca.crt) into the certificate folder if there is none; for demos and tests")
	fs.StringSliceVar(&o.SelfSignedNames, "self-signed-names", o.SelfSignedNames, "DNS names and IP addresses in the self-signed certificate")
	fs.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, `address of /livez and /readyz; "0" for none`)
	fs.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, `address of /metrics; "0" for none`)
	fs.BoolVar(&o.MetricsInsecure, "metrics-insecure", o.MetricsInsecure, "serve metrics over HTTP and to everybody")
	fs.StringVar(&o.PprofAddress, "pprof-address", o.PprofAddress, "address of profiles, for example 127.0.0.1:6060; empty for none")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "run the reconcilers on one replica only; webhooks are served by all")
	fs.StringVar(&o.LeaseName, "leader-elect-lease", o.LeaseName, "name of the lease")
	fs.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", o.LeaseDuration, "how long a lease is respected that is not renewed")
	fs.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", o.RenewDeadline, "how long the leader tries to renew before it gives up")
	fs.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", o.RetryPeriod, "time between two tries")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "how long webhooks are still served after SIGTERM, while readiness is withdrawn")
	fs.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", o.ShutdownTimeout, "how long the rest of the shutdown may take")
	fs.StringVar(&o.Allocation, "allocation", o.Allocation, "off, or all: allocate pending claims, for clusters without a DRA scheduler; never beside one")
	fs.StringVar(&o.Platform, "platform", o.Platform, "auto, openshift or kubernetes")
	fs.StringVar(&o.ResourceAPIVersion, "resource-api-version", o.ResourceAPIVersion, "version of resource.k8s.io to read: auto, v1, v1beta2 or v1beta1")
	fs.StringVar((*string)(&o.AdminAccess), "admin-access", string(o.AdminAccess), `what happens to those who ask for adminAccess without the verb "use" on adminaccess.devicequota.io: Allow, Warn or Deny`)
	fs.StringSliceVar(&o.Schedulers, "scheduler-name", o.Schedulers, "user names of the schedulers that make claims for pods with extended resources")
	fs.IntVar(&o.MaxInFlight, "max-in-flight", o.MaxInFlight, "admission requests that are decided at the same time; more are asked to retry")
	fs.DurationVar(&o.AdmissionTimeout, "admission-timeout", o.AdmissionTimeout, "how long an admission request may take; below the webhooks' timeoutSeconds")
	fs.StringVar(&o.LogFormat, "log-format", o.LogFormat, "json or text")
	fs.IntVar(&o.LogLevel, "log-level", o.LogLevel, "0: refusals and state changes; 1: every admission; more: details")
}

// Validate returns everything that is wrong, with the flags' names.
func (o *Options) Validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	choice := func(flag, value string, valid ...string) {
		if !slices.Contains(valid, value) {
			bad(flag, "%q: want %s", value, strings.Join(valid, ", "))
		}
	}
	choice("allocation", o.Allocation, AllocationOff, AllocationAll)
	choice("platform", o.Platform, PlatformAuto, PlatformOpenShift, PlatformKubernetes)
	choice("resource-api-version", o.ResourceAPIVersion, VersionAuto, "v1", "v1beta2", "v1beta1")
	choice("admin-access", string(o.AdminAccess), string(webhooks.AdminAccessAllow), string(webhooks.AdminAccessWarn), string(webhooks.AdminAccessDeny))
	choice("log-format", o.LogFormat, "json", "text")
	for _, ns := range append([]string{o.Namespace}, o.ExemptNamespaces...) {
		if msgs := validation.IsDNS1123Label(ns); len(msgs) > 0 {
			bad("exempt-namespaces", "%q: %s", ns, msgs[0])
		}
	}
	if o.WebhookPort < 1 || o.WebhookPort > 65535 {
		bad("webhook-port", "%d: want 1 to 65535", o.WebhookPort)
	}
	for flag, address := range map[string]string{"health-address": o.HealthAddress, "metrics-address": o.MetricsAddress, "pprof-address": o.PprofAddress} {
		if address == "" && flag == "pprof-address" || address == MetricsOff {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			bad(flag, "%v", err)
		}
	}
	if o.CertDir == "" {
		bad("cert-dir", "is required")
	}
	o.validateTimes(bad)
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (o *Options) validateTimes(bad func(flag, format string, args ...any)) {
	if o.LeaderElect && !(o.RetryPeriod > 0 && o.RetryPeriod < o.RenewDeadline && o.RenewDeadline < o.LeaseDuration) {
		bad("leader-elect-lease-duration", "want retry period %v < renew deadline %v < lease duration %v", o.RetryPeriod, o.RenewDeadline, o.LeaseDuration)
	}
	if o.ShutdownDelay < 0 {
		bad("shutdown-delay", "%v: must not be negative", o.ShutdownDelay)
	}
	if o.ShutdownTimeout <= 0 {
		bad("shutdown-timeout", "%v: must be positive", o.ShutdownTimeout)
	}
	if o.MaxInFlight < 1 {
		bad("max-in-flight", "%d: must be positive", o.MaxInFlight)
	}
	if o.AdmissionTimeout <= 0 || o.AdmissionTimeout >= 30*time.Second {
		bad("admission-timeout", "%v: want more than 0 and less than 30s", o.AdmissionTimeout)
	}
}

// exempt returns all exempt namespaces, sorted.
func (o *Options) exempt() []string {
	all := append([]string{o.Namespace}, o.ExemptNamespaces...)
	slices.Sort(all)
	return slices.Compact(all)
}
