package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
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

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// metricsServer serves the manager's own registry together with controller-runtime's, which
// is global. Its own server lets two managers run in one process, each with its own metrics.
type metricsServer struct {
	o        *Options
	config   *rest.Config
	client   *http.Client
	registry *prometheus.Registry
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
	if !s.o.MetricsInsecure {
		filter, err := filters.WithAuthenticationAndAuthorization(s.config, s.client)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		if handler, err = filter(s.log, handler); err != nil {
			return errors.Join(err, listener.Close())
		}
		cert, err := scrapeCertificate(time.Now())
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}})
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

// scrapeCertificate is for the metrics alone. Scrapers authenticate by token and do not
// verify it, as is the habit of controller-runtime's metrics server.
func scrapeCertificate(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "devicequota-metrics"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(10 * selfSignedFor), DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// newRegistry returns the registry of one manager, with what tells its version.
func newRegistry() (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "devicequota_build_info", Help: "1, with the version as label.",
		ConstLabels: prometheus.Labels{"version": Version()}}, func() float64 { return 1 })
	return r, r.Register(info)
}
