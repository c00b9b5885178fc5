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
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
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

// mode is an installation of the chart.
type mode struct {
	name, values string
	before       func(t *testing.T, v values)
	after        func(t *testing.T)             // plays what answers to the installed objects
	started      func(t *testing.T, r *replica) // looks at a manager that is not ready yet
	during       func(t *testing.T)             // looks at what the manager does
	renew        func(t *testing.T)             // renews the certificate under load
}

// TestEveryWayToGetCertificates installs with each tls.mode, on the platform that has it, and
// renews the certificate under load. With it come the other modes that need rights of their
// own. The API server is one that cannot stream lists.
func TestEveryWayToGetCertificates(t *testing.T) {
	audit := newAudit(t)
	flags := audit.flags()
	flags["feature-gates"] = "WatchList=false"
	cp := startAPIServer(t, flags)
	foreign(t, cp, append(monitoringKinds(), "security.openshift.io/v1/SecurityContextConstraint")...)
	installCRD(t, cp, "quota.openshift.io_clusterresourcequotas.yaml") // the platform's
	if err := helmInstall(t, cp, crdChart, values{}); err != nil {
		t.Fatal(err)
	}
	crd := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: "appliedclusterresourcequotas.quota.openshift.io"}, crd); !apierrors.IsNotFound(err) {
		t.Errorf("the chart did not find out that this is OpenShift: %v", err)
	}
	projects(t, cp)
	kubeconfig, ca := identity(t, cp), newIssuer(t)
	applied := func(t *testing.T) {
		t.Helper()
		openShiftProjection(t, cp)
	}
	for _, m := range []mode{{
		name: "serviceCA", values: "{platform: openshift, tls: {mode: serviceCA}}",
		after: func(t *testing.T) {
			s := &corev1.Service{}
			if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota"}, s); err != nil {
				t.Fatal(err)
			}
			ca.issue(t, cp, s.Annotations["service.beta.openshift.io/serving-cert-secret-name"], host)
			ca.inject(t, cp, "service.beta.openshift.io/inject-cabundle", "true")
		},
		during: func(t *testing.T) {
			applied(t)
			moved(t, cp, audit, &v1alpha1.AppliedDeviceQuota{}, "applieddevicequotas")
		},
		renew: func(t *testing.T) { reissued(t, cp, ca, "devicequota-tls") },
	}, {
		name: "certManager", values: "{platform: openshift, tls: {mode: certManager}}",
		after: func(t *testing.T) {
			c := &unstructured.Unstructured{}
			c.SetGroupVersionKind(schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"})
			if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota"}, c); err != nil {
				t.Fatal(err)
			}
			secret, _, _ := unstructured.NestedString(c.Object, "spec", "secretName") // an empty name is refused
			dns, _, _ := unstructured.NestedStringSlice(c.Object, "spec", "dnsNames")
			ca.issue(t, cp, secret, dns...)
			ca.inject(t, cp, "cert-manager.io/inject-ca-from", harness.Namespace+"/devicequota")
		},
		during: applied,
		renew:  func(t *testing.T) { reissued(t, cp, ca, "devicequota-tls") },
	}, {
		name: "provided", values: "{platform: openshift, tls: {mode: provided, secretName: mine}, adminAccess: Deny, metrics: {enabled: false}}",
		before: func(t *testing.T, v values) {
			ca.issue(t, cp, "mine", host)
			v["tls"].(values)["caBundle"] = string(ca.pem)
		},
		during: func(t *testing.T) { adminAccess(t, cp) },
		renew:  func(t *testing.T) { reissued(t, cp, ca, "mine") },
	}, {
		name: "selfSigned on an OpenShift that is found out", values: "{}",
		after:   func(t *testing.T) { servedBy(t, cp, map[string]any{"namespace": "openshift-apiserver", "name": "api"}) },
		started: func(t *testing.T, r *replica) { foundOpenShift(t, cp, r) },
		during:  applied,
		renew:   func(t *testing.T) { renew(t, cp) },
	}, {
		name:   "selfSigned, the only replica allocates",
		values: "{platform: kubernetes, allocation: all, replicas: 1, leaderElection: {enabled: false}, metrics: {secure: false}}",
		before: func(t *testing.T, _ values) {
			installCRD(t, cp, "quota.openshift.io_appliedclusterresourcequotas.yaml")
		},
		during: func(t *testing.T) {
			projected(t, cp)
			allocates(t, cp, audit)
		},
		renew: func(t *testing.T) { renew(t, cp) },
	}} {
		t.Run(m.name, func(t *testing.T) { m.play(t, cp, kubeconfig) })
	}
	audit.check(t)
}

// play installs, looks, renews, upgrades and uninstalls.
func (m mode) play(t *testing.T, cp *harness.ControlPlane, kubeconfig string) {
	v := atService(t, m.values)
	v["shutdown"] = values{"preStopSeconds": 0, "delay": "1s"} // the drain is TestInstall's business
	if m.before != nil {
		m.before(t, v)
	}
	given(t, v, "security.openshift.io/v1")
	if err := helmInstall(t, cp, mainChart, v); err != nil {
		t.Fatal(err)
	}
	if m.after != nil {
		m.after(t)
	}
	r := startReplica(t, cp, newService(t), kubeconfig)
	if m.started != nil {
		m.started(t, r)
	}
	r.waitReady(t)
	admits(t, cp)
	m.during(t)
	m.renew(t)
	injected := validatingConfig(t, cp).Webhooks[0].ClientConfig.CABundle

	// An upgrade leaves alone what was injected.
	v["log"] = values{"level": 1}
	if err := helmUpgrade(t, cp, mainChart, v); err != nil {
		t.Fatal(err)
	}
	if got := validatingConfig(t, cp).Webhooks[0].ClientConfig.CABundle; len(got) == 0 || !bytes.Equal(got, injected) {
		t.Errorf("caBundle after an upgrade: %q", got)
	}
	admits(t, cp)
	r.terminate(t) // as long as it has its rights
	if err := helmUninstall(t, cp, mainChart); err != nil {
		t.Fatal(err)
	}
	// Helm does not take over what another made, and that stays.
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: "devicequota-tls"}}
	if err := client.IgnoreNotFound(cp.Client.Delete(t.Context(), s)); err != nil {
		t.Fatal(err)
	}
}

// TestAnotherIssuersSecretIsNotTakenOver shows what docs/upgrade.md says of a change to selfSigned.
func TestAnotherIssuersSecretIsNotTakenOver(t *testing.T) {
	cp := startAPIServer(t, nil)
	foreign(t, cp, monitoringKinds()...)
	if err := helmInstall(t, cp, mainChart, parseValues(t, "{platform: kubernetes, tls: {mode: certManager}}")); err != nil {
		t.Fatal(err)
	}
	newIssuer(t).issue(t, cp, "devicequota-tls", host)
	issued, err := tlsSecret(t.Context(), cp)
	if err != nil {
		t.Fatal(err)
	}
	const refusal = `Secret "devicequota-tls" in namespace "` + harness.Namespace + `" exists and cannot be imported into the current release`
	if err := helmUpgrade(t, cp, mainChart, parseValues(t, "{platform: kubernetes}")); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("an upgrade to selfSigned beside the issuer's Secret: %v", err)
	}
	if err := helmUpgrade(t, cp, mainChart, parseValues(t, "{platform: kubernetes, tls: {secretName: devicequota-own-tls}}")); err != nil {
		t.Errorf("an upgrade to selfSigned with a Secret of its own: %v", err)
	}
	if s, err := tlsSecret(t.Context(), cp); err != nil || s.ResourceVersion != issued.ResourceVersion {
		t.Errorf("the issuer's Secret was changed: %v, %v", s, err)
	}
}

func installCRD(t *testing.T, cp *harness.ControlPlane, file string) {
	t.Helper()
	if _, err := envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join(chartDir(crdChart), "files", file)}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
}

// reissued writes a new certificate into the Secret under load, and waits until it is served.
func reissued(t *testing.T, cp *harness.ControlPlane, ca *issuer, secret string) {
	t.Helper()
	under := startLoad(t, cp, "load")
	old, err := certificateAt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ca.issue(t, cp, secret, host)
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
}

// servedBy lets a Service serve quota.openshift.io, as on OpenShift, or nil the API server itself.
func servedBy(t *testing.T, cp *harness.ControlPlane, service map[string]any) {
	t.Helper()
	s := &unstructured.Unstructured{}
	s.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		if err := cp.Client.Get(ctx, client.ObjectKey{Name: "v1." + quotav1.GroupName}, s); err != nil {
			return err
		}
		s.SetLabels(nil) // nobody else manages it
		spec := s.Object["spec"].(map[string]any)
		delete(spec, "service")
		delete(spec, "insecureSkipTLSVerify")
		if service != nil {
			spec["service"], spec["insecureSkipTLSVerify"] = service, true
		}
		return cp.Client.Update(ctx, s)
	})
}

// foundOpenShift waits until the manager says which platform it found. Only then the quotas
// are served again: this API server cannot do both.
func foundOpenShift(t *testing.T, cp *harness.ControlPlane, r *replica) {
	t.Helper()
	eventually(t, time.Minute, func(context.Context) error {
		if text := r.log.String(); !strings.Contains(text, `"platform":"OpenShift"`) {
			return fmt.Errorf("the manager did not find out that this is OpenShift:\n%s", tail(text, 5))
		}
		return nil
	})
	servedBy(t, cp, nil)
	eventually(t, time.Minute, func(ctx context.Context) error {
		return cp.Client.List(ctx, &quotav1.ClusterResourceQuotaList{})
	})
}

// adminAccess asks for it without the right to.
func adminAccess(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	namespace(t, cp, "admins", map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"})
	create(t, cp, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "tenants"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "tenant"}}})
	config := rest.CopyConfig(cp.Config)
	config.Impersonate.UserName = "tenant"
	tenant, err := client.New(config, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	c := claim("admins", "monitor", 1)
	c.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		if err := tenant.Create(ctx, c.DeepCopy()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "adminaccess.devicequota.io") {
			return fmt.Errorf("adminAccess without the right to use it: %w", err)
		}
		return nil
	})
	if err := cp.Client.Create(t.Context(), c, client.DryRunAll); err != nil {
		t.Errorf("adminAccess of a cluster admin: %v", err)
	}
}

// allocates has the manager allocate and release a claim, which it may do only with the right
// to bind claims: that is asked for by the API server within the write, not in a request.
func allocates(t *testing.T, cp *harness.ControlPlane, audit *auditLog) {
	t.Helper()
	ctx := t.Context()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", Pool: resourceapi.ResourcePool{Name: "node", Generation: 1, ResourceSliceCount: 1},
		NodeName: ptr.To("node"), Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}}}}
	create(t, cp, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, slice, claim("a1", "allocated", 2))
	allocated := func(name string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			c := &resourceapi.ResourceClaim{}
			err := cp.Client.Get(ctx, client.ObjectKey{Namespace: "a1", Name: name}, c)
			if err == nil && (c.Status.Allocation == nil || len(c.Status.Allocation.Devices.Results) != 2) {
				err = fmt.Errorf("the claim has %v", c.Status)
			}
			return err
		}
	}
	eventually(t, 3*time.Minute, allocated("allocated"))
	gone := func(name string) {
		if err := cp.Client.Delete(ctx, claim("a1", name, 2)); err != nil {
			t.Fatal(err)
		}
		eventually(t, 3*time.Minute, func(ctx context.Context) error {
			if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: "a1", Name: name}, &resourceapi.ResourceClaim{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the claim is not released: %w", err)
			}
			return nil
		})
	}
	gone("allocated")

	role := &rbacv1.ClusterRole{}
	if err := cp.Client.Get(ctx, client.ObjectKey{Name: "devicequota-allocation"}, role); err != nil {
		t.Fatal(err)
	}
	whole := role.DeepCopy().Rules
	for i, rule := range role.Rules {
		role.Rules[i].Resources = slices.DeleteFunc(slices.Clone(rule.Resources), func(r string) bool { return r == "resourceclaims/binding" })
	}
	if err := cp.Client.Update(ctx, role); err != nil {
		t.Fatal(err)
	}
	before := len(audit.events(t))
	create(t, cp, claim("a1", "unbound", 2))
	eventually(t, 3*time.Minute, func(context.Context) error {
		for _, e := range audit.events(t)[before:] {
			if (rightOf(e) == right{group: resourceapi.GroupName, resource: "resourceclaims/status", verb: "update"}) && e.ResponseStatus.Code >= 400 {
				return nil
			}
		}
		return errors.New("no allocation was refused")
	})
	role.Rules = whole
	if err := cp.Client.Update(ctx, role); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, allocated("unbound"))
	used(right{group: resourceapi.GroupName, resource: "resourceclaims/binding", verb: "update"})
	gone("unbound")
	if err := cp.Client.Delete(ctx, slice); err != nil {
		t.Fatal(err)
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
