package install

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// issuer plays cert-manager and OpenShift's service CA: a certificate authority that fills a
// Secret and writes its own certificate into annotated webhook configurations.
type issuer struct {
	key *ecdsa.PrivateKey
	ca  *x509.Certificate
	pem []byte
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "issuer"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{key: key, ca: ca, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue writes a new certificate for the names into the Secret.
func (i *issuer) issue(t *testing.T, cp *harness.ControlPlane, secret string, names ...string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: names}
	der, err := x509.CreateCertificate(rand.Reader, template, i.ca, &key.PublicKey, i.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: secret}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), "ca.crt": i.pem}}
	if err := cp.Client.Create(t.Context(), s); apierrors.IsAlreadyExists(err) {
		err = cp.Client.Update(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
}

// inject writes caBundle into both configurations, if they have the annotation.
func (i *issuer) inject(t *testing.T, cp *harness.ControlPlane, annotation, value string) {
	t.Helper()
	v, m := validatingConfig(t, cp), &admissionv1.MutatingWebhookConfiguration{}
	if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(v), m); err != nil {
		t.Fatal(err)
	}
	if v.Annotations[annotation] != value || m.Annotations[annotation] != value {
		t.Fatalf("annotation %s: %q and %q, want %q", annotation, v.Annotations[annotation], m.Annotations[annotation], value)
	}
	for n := range v.Webhooks {
		v.Webhooks[n].ClientConfig.CABundle = i.pem
	}
	for n := range m.Webhooks {
		m.Webhooks[n].ClientConfig.CABundle = i.pem
	}
	if err := errors.Join(cp.Client.Update(t.Context(), v), cp.Client.Update(t.Context(), m)); err != nil {
		t.Fatal(err)
	}
}

const host = "devicequota." + harness.Namespace + ".svc"

// TestEveryWayToGetCertificates installs with each tls.mode that takes the certificate from
// elsewhere, on the platform that has it, and renews it under load.
func TestEveryWayToGetCertificates(t *testing.T) {
	cp := startAPIServer(t, nil)
	foreign(t, cp, monitoringKinds()...)
	// On OpenShift the platform brings ClusterResourceQuota, here and there the chart its own.
	if _, err := envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{
		Paths: []string{chartDir(crdChart) + "/files/quota.openshift.io_clusterresourcequotas.yaml"}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	if err := helmInstall(t, cp, crdChart, values{"platform": "openshift"}); err != nil {
		t.Fatal(err)
	}
	projects(t, cp)
	kubeconfig := identity(t, cp)
	ca := newIssuer(t)
	for _, mode := range []struct {
		name, values string
		before       func(t *testing.T)
		after        func(t *testing.T) // plays what answers to the installed objects
		secret       string
	}{
		{name: "serviceCA", values: "{platform: openshift, tls: {mode: serviceCA}}", secret: "devicequota-tls", after: func(t *testing.T) {
			s := &corev1.Service{}
			if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota"}, s); err != nil {
				t.Fatal(err)
			}
			ca.issue(t, cp, s.Annotations["service.beta.openshift.io/serving-cert-secret-name"], host)
			ca.inject(t, cp, "service.beta.openshift.io/inject-cabundle", "true")
		}},
		{name: "certManager", values: "{platform: openshift, tls: {mode: certManager}}", secret: "devicequota-tls", after: func(t *testing.T) {
			c := &unstructured.Unstructured{}
			c.SetGroupVersionKind(schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"})
			if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota"}, c); err != nil {
				t.Fatal(err)
			}
			secret, _, _ := unstructured.NestedString(c.Object, "spec", "secretName") // an empty name is refused
			dns, _, _ := unstructured.NestedStringSlice(c.Object, "spec", "dnsNames")
			ca.issue(t, cp, secret, dns...)
			ca.inject(t, cp, "cert-manager.io/inject-ca-from", harness.Namespace+"/devicequota")
		}},
		{name: "provided", values: "{platform: openshift, tls: {mode: provided, secretName: mine}}", secret: "mine",
			before: func(t *testing.T) { ca.issue(t, cp, "mine", host) }},
	} {
		t.Run(mode.name, func(t *testing.T) {
			v := atService(t, mode.values)
			if mode.before != nil {
				mode.before(t)
				v["tls"].(values)["caBundle"] = string(ca.pem)
			}
			if err := helmInstall(t, cp, mainChart, v); err != nil {
				t.Fatal(err)
			}
			if mode.after != nil {
				mode.after(t)
			}
			svc := newService(t, net.JoinHostPort(serviceIP, servicePort))
			r := startReplica(t, cp, svc, kubeconfig)
			r.waitReady(t)
			admits(t, cp)
			openShiftProjection(t, cp)

			under := startLoad(t, cp, "load")
			old, err := certificateAt(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ca.issue(t, cp, mode.secret, host)
			eventually(t, time.Minute, func(ctx context.Context) error {
				got, err := certificateAt(ctx)
				if err == nil && bytes.Equal(got, old) {
					err = errors.New("the old certificate is served")
				}
				return err
			})
			n := under.count()
			eventually(t, time.Minute, func(context.Context) error { return moreThan(under, n+50) })
			under.end(t, "renewal of the certificate")

			// An upgrade leaves alone what was injected.
			v["log"] = values{"level": 1}
			if err := helmUpgrade(t, cp, mainChart, v); err != nil {
				t.Fatal(err)
			}
			if got := validatingConfig(t, cp).Webhooks[0].ClientConfig.CABundle; !bytes.Equal(got, ca.pem) {
				t.Errorf("caBundle after an upgrade: %q", got)
			}
			admits(t, cp)
			if err := helmUninstall(t, cp, mainChart); err != nil {
				t.Fatal(err)
			}
			r.terminate(t)
		})
	}
}

// openShiftProjection checks that a project sees its quota as AppliedDeviceQuota, and that
// the platform's object is not written.
func openShiftProjection(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	create(t, cp, claim("a1", "seen", 2))
	eventually(t, time.Minute, func(ctx context.Context) error {
		q := &v1alpha1.AppliedDeviceQuota{}
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: "a1", Name: "a"}, q); err != nil {
			return err
		}
		if used := q.Status.Total.Used[deviceKey]; used.Value() != 2 {
			return fmt.Errorf("the project sees %v", q.Status)
		}
		return nil
	})
	crq := &quotav1.ClusterResourceQuota{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: "a"}, crq); err != nil {
		t.Fatal(err)
	}
	if len(crq.Status.Total.Used) > 0 || len(crq.Status.Namespaces) > 0 {
		t.Errorf("the platform's status was written: %v", crq.Status)
	}
	if err := cp.Client.Delete(t.Context(), claim("a1", "seen", 2)); err != nil {
		t.Error(err)
	}
}
