package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
)

// Who scrapes, and whether he may.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create,roleName=devicequota-metrics
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create,roleName=devicequota-metrics

// metricsServer serves the manager's own registry together with controller-runtime's, which
// is global. Its own server lets two managers run in one process, each with its own metrics.
type metricsServer struct {
	o        *Options
	config   *rest.Config
	client   *http.Client
	registry *prometheus.Registry
	tls      *tls.Config
	log      logr.Logger
}

// NeedLeaderElection is false: every replica has metrics.
func (*metricsServer) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *metricsServer) Start(ctx context.Context) error {
	handler := promhttp.HandlerFor(prometheus.Gatherers{metrics.Registry, s.registry},
		promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	listener, err := net.Listen("tcp", s.o.MetricsAddress)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	if s.o.MetricsSecure {
		filter, err := filters.WithAuthenticationAndAuthorization(s.config, s.client)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		if handler, err = filter(s.log, handler); err != nil {
			return errors.Join(err, listener.Close())
		}
		listener = tls.NewListener(listener, s.tls)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	return serve(ctx, listener, mux)
}

// serve answers until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// The parent's context has ended, the end of the server needs one of its own.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(end)
	if served := <-done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// everywhere serves HTTP on each replica.
type everywhere struct {
	name, address string
	handler       http.Handler
}

// NeedLeaderElection is false.
func (everywhere) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (e everywhere) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", e.address)
	if err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	return serve(ctx, listener, e.handler)
}

// newRegistry returns the registry of one manager, with what tells its version.
func newRegistry(version string) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "devicequota_build_info", Help: "1, with the version as label.",
		ConstLabels: prometheus.Labels{"version": version}}, func() float64 { return 1 })
	return r, r.Register(info)
}
