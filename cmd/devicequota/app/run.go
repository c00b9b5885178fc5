package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/devicequota/devicequota/allocator"
	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/webhooks"
	"github.com/devicequota/devicequota/webhooks/certs"
)

// The leader's election, and the event that tells who leads.
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=devicequota-system,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=events,namespace=devicequota-system,verbs=create

// Run runs the manager against the API server of cfg until ctx ends, then drains: readiness
// is withdrawn first, the webhooks stop ShutdownDelay later. It returns nil after a clean
// end. Several managers may run in one process, each with ports and certificates of its own.
// While it cannot find out what the API server is and has, it stays up, is not ready, says why,
// and asks again.
func Run(ctx context.Context, o Options, cfg *rest.Config) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	// Admission must not wait for a client-side limit; the API server's own fairness decides.
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = -1, -1
	traces, err := newTracing(ctx, &o)
	if err != nil {
		return err
	}
	defer traces.shutdown(ctx)
	cfg.Wrap(traces.transport)
	i := &instance{o: &o, config: cfg, tracing: traces, ready: newReadiness(log.FromContext(ctx).WithName("health"))}
	stop, err := i.serveHealth(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if known, err := i.connect(ctx); err != nil || !known {
		return err
	}
	if err := i.build(ctx); err != nil {
		return err
	}
	return i.run(ctx)
}

// instance is one manager with its parts.
type instance struct {
	o         *Options
	config    *rest.Config
	ready     *health
	mgr       manager.Manager
	client    client.WithWatch
	discovery discovery.DiscoveryInterface
	set       kubernetes.Interface
	api       *devices.API
	platform  cluster.Platform
	// platformKeys: the platform enforces Kubernetes' own keys.
	platformKeys bool
	registry     *prometheus.Registry
	draining     draining
	certs        certs.Source
	// host and port of the webhooks
	host string
	port int

	source *devices.Source
	store  *cluster.Store
	view   *cluster.View
	ledger *ledger.Ledger

	tracing *tracing // nil: off
}

// NewScheme returns a scheme with all types that the manager reads and writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	sb := runtime.NewSchemeBuilder(corev1.AddToScheme, quotav1.AddToScheme, v1alpha1.AddToScheme, devices.AddToScheme)
	return scheme, sb.AddToScheme(scheme)
}

// build makes all parts and adds them to the manager; nothing runs yet.
func (i *instance) build(ctx context.Context) error {
	for _, phase := range []func(context.Context) error{i.newCertificates, i.newManager, i.newLedger, i.addReconcilers, i.addWebhooks, i.addServers} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// newCertificates makes the source that all servers take their certificate from.
func (i *instance) newCertificates(ctx context.Context) error {
	var err error
	if i.registry, err = newRegistry(Version(i.o.Version)); err != nil {
		return err
	}
	if i.set, err = kubernetes.NewForConfig(i.config); err != nil {
		return err
	}
	if i.o.TLSMode == TLSFiles {
		i.certs, err = certs.FromFiles(i.o.CertDir)
	} else {
		i.certs, err = certs.New(i.set, certs.Options{Namespace: i.o.Namespace, Secret: i.o.TLSSecret, Service: i.o.TLSService,
			Validating: named(i.o.ValidatingConfiguration), Mutating: named(i.o.MutatingConfiguration), Logger: log.FromContext(ctx).WithName("certs")})
	}
	if err != nil {
		return err
	}
	return i.registry.Register(certs.Collector(i.certs))
}

// named returns the name as list, empty when there is none.
func named(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func (i *instance) newManager(ctx context.Context) error {
	host, port, err := net.SplitHostPort(i.o.WebhookAddress)
	if err != nil {
		return err
	}
	i.host = host
	if i.port, err = net.LookupPort("tcp", port); err != nil {
		return err
	}
	i.mgr, err = ctrl.NewManager(i.config, ctrl.Options{
		Scheme:                 i.client.Scheme(),
		Logger:                 log.FromContext(ctx),
		BaseContext:            func() context.Context { return context.WithoutCancel(ctx) },
		Metrics:                metricsserver.Options{BindAddress: AddressOff}, // see metricsServer
		HealthProbeBindAddress: AddressOff,                                     // see addServers
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: i.host, Port: i.port, TLSOpts: []func(*tls.Config){i.o.minTLS, i.certs.Configure}}),
		LeaderElection: i.o.LeaderElect, LeaderElectionID: i.o.LeaseName, LeaderElectionNamespace: i.o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &i.o.LeaseDuration, RenewDeadline: &i.o.RenewDeadline, RetryPeriod: &i.o.RetryPeriod,
		GracefulShutdownTimeout: &i.o.ShutdownTimeout,
	})
	if err != nil {
		return err
	}
	return i.mgr.Add(i.certs)
}

func (i *instance) newLedger(ctx context.Context) error {
	recorder, err := newLedgerMetrics(i.registry)
	if err != nil {
		return err
	}
	logger := log.FromContext(ctx)
	if i.source, err = devices.NewSource(devices.SourceOptions{Client: i.client, API: i.api, Log: logger.WithName("devices")}); err != nil {
		return err
	}
	i.store = cluster.NewStore(cluster.StoreOptions{Client: i.client, Log: logger.WithName("store")})
	i.view, err = cluster.NewView(cluster.Options{
		Client: i.client, API: i.api, Source: i.source, Store: i.store, Exempt: i.o.exempt(),
		Parse: quota.ParseOptions{PlatformKeys: i.platformKeys, Enforcement: i.o.Enforcement}, Log: logger.WithName("view"),
	})
	if err != nil {
		return err
	}
	i.ledger = ledger.New(i.tracing.store(i.store), i.tracing.view(i.view),
		ledger.Options{PlatformKeys: i.platformKeys, Recorder: recorder, Tracer: i.tracing.ledgerTracer()})
	err = i.registry.Register(cluster.NewQuotaCollector(cluster.QuotaMetrics{
		View: i.view, Store: i.store, State: i.ledger.State, ProjectSeries: i.o.MetricsProjectSeries}))
	if err != nil {
		return err
	}
	return addAll(i.mgr, i.source, i.store, i.view)
}

func (i *instance) onOpenShift() bool { return i.platform == cluster.OpenShift }

func (i *instance) addReconcilers(ctx context.Context) error {
	logger := log.FromContext(ctx)
	projection := cluster.NewProjection(cluster.ProjectionOptions{
		Client: i.client, View: i.view, Platform: i.platform, Interval: i.o.SettleInterval, Log: logger.WithName("projection")})
	usage := cluster.NewUsage(cluster.UsageOptions{
		View: i.view, Store: i.store, Ledger: i.ledger, Projection: projection, Interval: i.o.SettleInterval,
		Recorder: i.mgr.GetEventRecorder("devicequota"), Log: logger.WithName("usage")})
	if err := i.registry.Register(cluster.NewCollector(i.view, projection)); err != nil {
		return err
	}
	if err := addAll(i.mgr, projection, usage); err != nil || i.o.Allocation == AllocationOff {
		return err
	}
	allocation, err := devices.NewAllocation(devices.AllocationOptions{
		Client: i.client, API: i.api, Source: i.source, Allocator: allocator.Options{Features: allocator.DefaultFeatures()},
		Recorder: i.mgr.GetEventRecorder("devicequota"), Log: logger.WithName("allocation")})
	if err != nil {
		return err
	}
	return i.mgr.Add(allocation)
}

func addAll(mgr manager.Manager, runnables ...manager.Runnable) error {
	for _, r := range runnables {
		if err := mgr.Add(r); err != nil {
			return err
		}
	}
	return nil
}

func (i *instance) addWebhooks(context.Context) error {
	recorder, err := webhooks.NewMetrics(i.registry)
	if err != nil {
		return err
	}
	objects := objects{client: i.client, api: i.api, view: i.view, store: i.store}
	deps := webhooks.Deps{
		Admitter: i.tracing.admitter(i.ledger), Coverage: objects, Devices: i.view, Objects: objects, Usage: objects,
		Explainer: webhooks.NewDeviceExplainer(i.inventory),
		Access:    webhooks.NewAccessReviews(i.set.AuthorizationV1().SubjectAccessReviews(), clock.RealClock{}),
		Recorder:  recorder,
		Ready:     latch(func() error { return i.view.Ready(nil) }),
	}
	options := webhooks.Options{
		AdminAccess: i.o.AdminAccess, Schedulers: i.o.Schedulers, ExemptNamespaces: i.o.exempt(),
		PlatformKeys: i.platformKeys, PlatformQuota: i.onOpenShift(), Enforcement: i.o.Enforcement,
		MaxInFlight: i.o.MaxInFlight, Timeout: i.o.WebhookTimeout, ClaimControllers: i.o.ClaimControllers,
	}
	for path, hook := range webhooks.Webhooks(deps, options) {
		i.mgr.GetWebhookServer().Register(path, i.draining.leave(i.tracing.webhook(path, hook)))
	}
	return nil
}

// latch asks until the answer is nil once: caches that were filled stay filled, and the
// question costs too much for each admission.
func latch(ready func() error) func() error {
	var done atomic.Bool
	return func() error {
		if done.Load() {
			return nil
		}
		err := ready()
		done.Store(err == nil)
		return err
	}
}

// inventory returns what explanations may go by: nothing before all devices are known.
func (i *instance) inventory() *allocator.Inventory {
	if !i.source.Synced() {
		return nil
	}
	return i.view.Inventory()
}

func (i *instance) checks() map[string]healthz.Checker {
	return map[string]healthz.Checker{
		"draining":     i.draining.check,
		"caches":       i.view.Ready,
		"server":       i.mgr.GetWebhookServer().StartedChecker(),
		"certificates": i.certs.Ready,
		"webhooks":     newSelfCheck(i.o, i.host, i.port).check,
	}
}

// addServers adds the checks of readiness, metrics and profiles. Two managers can run in one process, so
// nothing global is served but controller-runtime's own metrics.
func (i *instance) addServers(ctx context.Context) error {
	checks := i.checks()
	if i.o.Started != nil {
		if err := i.mgr.Add(started{checks: checks, call: i.o.Started}); err != nil {
			return err
		}
	}
	i.ready.set(checks)
	if i.o.MetricsAddress != AddressOff {
		config := &tls.Config{}
		i.o.minTLS(config)
		i.certs.Configure(config)
		err := i.mgr.Add(&metricsServer{o: i.o, config: i.config, client: i.mgr.GetHTTPClient(), registry: i.registry,
			tls: config, log: log.FromContext(ctx).WithName("metrics")})
		if err != nil {
			return err
		}
	}
	if i.o.PprofAddress == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return i.mgr.Add(everywhere{"pprof", i.o.PprofAddress, mux})
}

// run runs the manager until ctx ends, or the API server was upgraded, and the drain is over.
func (i *instance) run(ctx context.Context) error {
	logger := log.FromContext(ctx)
	logger.Info("starting", "version", Version(i.o.Version), "platform", i.platform, "resourceAPIVersion", i.api.Version, "allocation", i.o.Allocation)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done, upgraded := make(chan error, 1), make(chan error, 1)
	go func() { done <- i.mgr.Start(running) }()
	go func() { upgraded <- i.upgraded(running, changedEvery) }()
	var reason error
	select {
	case err := <-done:
		return errors.Join(err, ctx.Err())
	case reason = <-upgraded:
		logger.Error(reason, "ending")
	case <-ctx.Done():
	}
	logger.Info("draining", "delay", i.o.ShutdownDelay)
	i.draining.on.Store(true)
	delay := time.NewTimer(i.o.ShutdownDelay)
	defer delay.Stop()
	select {
	case err := <-done:
		return errors.Join(reason, err)
	case <-delay.C:
	}
	stop()
	return errors.Join(reason, <-done)
}
