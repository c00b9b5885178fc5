package certs

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// Source is where the servers take their certificate from. All methods are safe for
// concurrent use.
type Source interface {
	// Start follows changes until the context ends.
	Start(ctx context.Context) error
	// NeedLeaderElection returns false: every replica serves.
	NeedLeaderElection() bool
	// Configure makes a server take its certificates from here.
	Configure(c *tls.Config)
	// Ready is a readiness check: nil when there is a certificate that clients accept.
	Ready(r *http.Request) error
	// Expiry returns when the certificates in use end, by kind ("serving", "ca").
	Expiry() map[string]time.Time
}

// Options of a SelfSigned source. Namespace, Secret and Service are required.
type Options struct {
	// Namespace of the Secret and of the Service.
	Namespace string
	// Secret that holds authority and certificate; it has to exist and may be empty.
	Secret string
	// Service is the name that clients call.
	Service string
	// Validating and Mutating name the webhook configurations whose caBundle is written, in
	// each webhook that calls the Service.
	Validating, Mutating []string

	// AuthorityLife defaults to 10 years, ServingLife to 1 year. Both are renewed after two thirds.
	AuthorityLife, ServingLife time.Duration
	// Propagation is how long a new authority is only trusted before it signs. Defaults to 30 s.
	Propagation time.Duration

	// Logger may be the zero value.
	Logger logr.Logger
	// Clock and Random are for tests.
	Clock  clock.WithTicker
	Random io.Reader
}

// names returns the names in the serving certificate.
func (o *Options) names() []string {
	host := o.Service + "." + o.Namespace + ".svc"
	return []string{host, host + ".cluster.local"}
}

func (o Options) withDefaults() Options {
	const year = 365 * 24 * time.Hour
	if o.AuthorityLife == 0 {
		o.AuthorityLife = 10 * year
	}
	if o.ServingLife == 0 {
		o.ServingLife = year
	}
	if o.Propagation == 0 {
		o.Propagation = 30 * time.Second
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	return o
}

// SelfSigned makes, renews, serves and publishes certificates of its own authority. It is a
// Source; any number of replicas may run one on the same Secret.
type SelfSigned struct {
	Options
	client  kubernetes.Interface
	configs []bundled
	wake    chan struct{}
	current atomic.Pointer[material]

	mu sync.Mutex // protects following
	// last is why the last round did not end well.
	last error
	// done is set when one did.
	done bool
}

// New returns a source that is not started.
func New(client kubernetes.Interface, o Options) (*SelfSigned, error) {
	if o.Namespace == "" || o.Secret == "" || o.Service == "" {
		return nil, errors.New("self-signed certificates need the names of namespace, secret and service")
	}
	s := &SelfSigned{Options: o.withDefaults(), client: client, wake: make(chan struct{}, 1)}
	for _, name := range o.Validating {
		s.configs = append(s.configs, validating(client, name))
	}
	for _, name := range o.Mutating {
		s.configs = append(s.configs, mutating(client, name))
	}
	return s, nil
}

// NeedLeaderElection returns false.
func (s *SelfSigned) NeedLeaderElection() bool { return false }

// Configure sets GetCertificate.
func (s *SelfSigned) Configure(c *tls.Config) { c.GetCertificate = s.certificate }

func (s *SelfSigned) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := s.current.Load()
	if m == nil {
		return nil, errors.New("there is no serving certificate yet")
	}
	return m.serving, nil
}

// Ready returns nil once the certificate is served and trusted, and as long as it is valid.
// A webhook configuration that an admin removes later does not make it unready.
func (s *SelfSigned) Ready(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		if s.last != nil {
			return s.last
		}
		return errors.New("there is no serving certificate yet")
	}
	if end := s.current.Load().serving.Leaf.NotAfter; !s.Clock.Now().Before(end) {
		return fmt.Errorf("the serving certificate expired at %s: %w", end.Format(time.RFC3339), s.last)
	}
	return nil
}

// Expiry returns the ends of the serving certificate and of the newest authority.
func (s *SelfSigned) Expiry() map[string]time.Time {
	m := s.current.Load()
	if m == nil {
		return nil
	}
	return map[string]time.Time{"serving": m.serving.Leaf.NotAfter, "ca": m.authorities[0].NotAfter}
}

// Start makes, follows and publishes the certificates until the context ends.
func (s *SelfSigned) Start(ctx context.Context) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, run := range s.watches() {
		watches.Go(func() { run(ctx) })
	}
	retry := time.Second
	for {
		next, err := s.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := min(max(next.Sub(s.Clock.Now()), time.Second), 12*time.Hour)
		if err != nil {
			s.Logger.Error(err, "certificates are not in order", "secret", s.Secret)
			wait, retry = retry, min(2*retry, 30*time.Second)
		} else {
			retry = time.Second
		}
		timer := s.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.wake:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// poke makes Start look again.
func (s *SelfSigned) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// round brings Secret, certificate in use and caBundles in order. It returns when it has to
// be called again.
func (s *SelfSigned) round(ctx context.Context) (time.Time, error) {
	next, err := s.settle(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
	s.done = s.done || err == nil
	return next, err
}

func (s *SelfSigned) settle(ctx context.Context) (time.Time, error) {
	m, err := s.load(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if old := s.current.Swap(m); old == nil || !old.serving.Leaf.Equal(m.serving.Leaf) {
		s.Logger.Info("serving certificate in use", "serial", m.serving.Leaf.SerialNumber.Text(16), "notAfter", m.serving.Leaf.NotAfter)
	}
	bundle := m.bundle()
	var errs []error
	for _, c := range s.configs {
		changed, err := s.publish(ctx, c, bundle)
		if err != nil {
			errs = append(errs, fmt.Errorf("caBundle of %s: %w", c, err))
		} else if changed {
			s.Logger.Info("caBundle written", "configuration", c.String())
		}
	}
	return m.next(s.Options), errors.Join(errs...)
}

// load returns what is in the Secret after renewing what is due. Of replicas that renew at
// the same time one wins, and the others take over what it made.
func (s *SelfSigned) load(ctx context.Context) (*material, error) {
	for {
		secret, err := s.client.CoreV1().Secrets(s.Namespace).Get(ctx, s.Secret, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("secret %q: %w", s.Namespace+"/"+s.Secret, err)
		}
		old := parse(secret.Data)
		m, changed, err := old.renew(s.Clock.Now(), s.trusted(ctx, &old), s.Options)
		if err != nil || !changed {
			return &m, err
		}
		if err := s.save(ctx, secret, &m); err == nil {
			s.Logger.Info("certificates renewed", "secret", s.Secret, "serial", m.serving.Leaf.SerialNumber.Text(16), "authorities", len(m.authorities))
			return &m, nil
		} else if !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("secret %q: %w", s.Namespace+"/"+s.Secret, err)
		}
	}
}

func (s *SelfSigned) save(ctx context.Context, secret *corev1.Secret, m *material) error {
	data, err := m.encode()
	if err != nil {
		return err
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	for k, v := range data {
		secret.Data[k] = v
	}
	_, err = s.client.CoreV1().Secrets(s.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	return err
}
