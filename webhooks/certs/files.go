package certs

import (
	"context"
	"crypto/tls"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Files is a Source that follows tls.crt and tls.key in a folder, as a mounted Secret has them.
type Files struct{ watcher *certwatcher.CertWatcher }

// FromFiles reads the folder; the error says what is wrong with the files.
func FromFiles(dir string) (*Files, error) {
	w, err := certwatcher.New(filepath.Join(dir, KeyCert), filepath.Join(dir, KeyKey))
	if err != nil {
		return nil, err
	}
	return &Files{watcher: w}, nil
}

// Start follows the files until the context ends.
func (f *Files) Start(ctx context.Context) error { return f.watcher.Start(ctx) }

// NeedLeaderElection returns false.
func (f *Files) NeedLeaderElection() bool { return false }

// Configure sets GetCertificate.
func (f *Files) Configure(c *tls.Config) { c.GetCertificate = f.watcher.GetCertificate }

// Ready returns nil: without usable files there is no Files.
func (f *Files) Ready(*http.Request) error { return nil }

// Expiry returns the end of the serving certificate.
func (f *Files) Expiry() map[string]time.Time {
	pair, err := f.watcher.GetCertificate(nil)
	if err != nil || pair == nil || pair.Leaf == nil {
		return nil
	}
	return map[string]time.Time{"serving": pair.Leaf.NotAfter}
}

// Collector exports devicequota_certificate_expiry_timestamp_seconds{kind} for a source.
func Collector(s Source) prometheus.Collector { return &collector{source: s, expiry: newExpiryDesc()} }

type collector struct {
	source Source
	expiry *prometheus.Desc
}

func newExpiryDesc() *prometheus.Desc {
	return prometheus.NewDesc("devicequota_certificate_expiry_timestamp_seconds",
		"When the certificate in use ends, in seconds since 1970, by kind (serving, ca).", []string{"kind"}, nil)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) { out <- c.expiry }

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for kind, end := range c.source.Expiry() {
		out <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, float64(end.Unix()), kind)
	}
}
