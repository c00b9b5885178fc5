package live

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// dialTimeout bounds a connection: from outside a cluster its Services cannot be reached.
const dialTimeout = 2 * time.Second

// endpoint is where webhooks are called.
type endpoint struct {
	// name that the certificate must be valid for.
	name string
	// address to connect to; empty for a Service.
	address string
	service *endpointService
}

type endpointService struct {
	namespace, name string
	port            int32
}

func (h *hook) endpoint() (endpoint, error) {
	if s := h.client.Service; s != nil {
		return endpoint{name: s.Name + "." + s.Namespace + ".svc", service: &endpointService{s.Namespace, s.Name, ptr.Deref(s.Port, 443)}}, nil
	}
	u, err := url.Parse(ptr.Deref(h.client.URL, ""))
	if err != nil {
		return endpoint{}, err
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return endpoint{name: u.Hostname(), address: net.JoinHostPort(u.Hostname(), port)}, nil
}

// serving looks at the certificates that the webhooks show, once for webhooks that share place
// and authority.
func (r *Reader) serving(ctx context.Context, hooks []hook, now time.Time) []Finding {
	var out []Finding
	seen := map[string]bool{}
	for i := range hooks {
		h := &hooks[i]
		e, err := h.endpoint()
		if err != nil {
			out = append(out, Finding{Level: Error, Check: "certificate", Object: h.object, Message: err.Error()})
			continue
		}
		key := e.name + " " + e.address + " " + string(h.client.CABundle)
		if seen[key] {
			continue
		}
		seen[key] = true
		chain, err := r.chain(ctx, e)
		if err != nil {
			out = append(out, Finding{Level: Info, Check: "certificate", Object: e.name,
				Message: "the serving certificate cannot be seen from here: " + err.Error()})
			continue
		}
		out = append(out, verify(e.name, chain, h.client.CABundle, now)...)
	}
	return out
}

// chain returns the certificate that is shown at the endpoint, with its intermediates: from a
// connection, or from the Secret that has it. The error tells why neither can be had.
func (r *Reader) chain(ctx context.Context, e endpoint) ([]*x509.Certificate, error) {
	if e.service == nil {
		return dial(ctx, e.address, e.name)
	}
	var service corev1.Service
	err := r.Get(ctx, client.ObjectKey{Namespace: e.service.namespace, Name: e.service.name}, &service)
	if err == nil {
		address := net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(e.service.port)))
		var chain []*x509.Certificate
		if chain, err = dial(ctx, address, e.name); err == nil {
			return chain, nil
		}
	}
	chain, secretErr := r.secret(ctx, e)
	if secretErr != nil {
		return nil, fmt.Errorf("%w; %w", err, secretErr)
	}
	return chain, nil
}

// dial returns what a server shows.
func dial(ctx context.Context, address, name string) ([]*x509.Certificate, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: &tls.Config{
		ServerName: name, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // verify says more than a handshake that fails
	}}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	state, ok := conn.(*tls.Conn)
	if !ok {
		return nil, fmt.Errorf("%s: no TLS", address)
	}
	return state.ConnectionState().PeerCertificates, nil
}

// secret looks among the TLS Secrets of the Service's namespace for the certificate with its
// name, and takes the one that ends last.
func (r *Reader) secret(ctx context.Context, e endpoint) ([]*x509.Certificate, error) {
	list := &corev1.SecretList{}
	if err := r.List(ctx, list, client.InNamespace(e.service.namespace)); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("you may not list Secrets of %q", e.service.namespace)
		}
		return nil, err
	}
	var best []*x509.Certificate
	for i := range list.Items {
		chain := certificates(list.Items[i].Data[corev1.TLSCertKey])
		if len(chain) == 0 || chain[0].IsCA || !slices.Contains(chain[0].DNSNames, e.name) {
			continue
		}
		if best == nil || chain[0].NotAfter.After(best[0].NotAfter) {
			best = chain
		}
	}
	if best == nil {
		return nil, fmt.Errorf("no Secret of %q has a certificate for it", e.service.namespace)
	}
	return best, nil
}

// verify finds what would make the API server refuse the certificate.
func verify(name string, chain []*x509.Certificate, bundle []byte, now time.Time) []Finding {
	if len(chain) == 0 {
		return []Finding{{Level: Error, Check: "certificate", Object: name, Message: "the server shows no certificate"}}
	}
	leaf := chain[0]
	var out []Finding
	add := func(level Level, message string) {
		out = append(out, Finding{Level: level, Check: "certificate", Object: name, Message: message})
	}
	if f := ends("the serving certificate", leaf.NotAfter, now); f != nil {
		add(f.Level, f.Message)
	}
	if now.Before(leaf.NotBefore) {
		add(Error, "the serving certificate is not valid before "+leaf.NotBefore.Format(time.RFC3339))
	}
	if err := leaf.VerifyHostname(name); err != nil {
		add(Error, "the serving certificate is for other names: "+err.Error())
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range certificates(bundle) {
		roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	var invalid x509.CertificateInvalidError
	if outOfTime := now.After(leaf.NotAfter) || now.Before(leaf.NotBefore); err != nil && !(outOfTime && errors.As(err, &invalid) && invalid.Reason == x509.Expired) {
		add(Error, "caBundle does not vouch for the serving certificate: "+err.Error())
	}
	if len(out) == 0 {
		add(Info, "valid until "+leaf.NotAfter.Format(time.DateOnly))
	}
	return out
}

// denied tells whether a webhook refused the request: then it was called.
func denied(err error) bool {
	return strings.Contains(err.Error(), "admission webhook") && strings.Contains(err.Error(), "denied the request")
}

// Ask asks the API server for a claim in the namespace, without storing it, to see whether it
// can call the webhooks.
func (r *Reader) Ask(ctx context.Context, namespace string) Finding {
	claim := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"devices": map[string]any{}}}}
	claim.SetGroupVersionKind(schema.GroupVersionKind{Group: "resource.k8s.io", Version: r.API.Version, Kind: "ResourceClaim"})
	claim.SetNamespace(namespace)
	claim.SetGenerateName("devicequota-doctor-")
	err := r.Create(ctx, claim, client.DryRunAll)
	f := Finding{Level: Info, Check: "webhook", Object: "dry run in namespace " + namespace, Message: "answered"}
	switch {
	case err == nil || denied(err):
	case apierrors.IsForbidden(err):
		f.Message = "you may not create ResourceClaims here: not asked whether the webhooks answer"
	case apierrors.IsNotFound(err):
		f.Message = "not asked whether the webhooks answer: " + err.Error()
	case apierrors.IsInternalError(err):
		f.Level, f.Message = Error, err.Error()
	default:
		f.Level, f.Message = Warning, err.Error()
	}
	return f
}
