package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

// The Service's address, which the API server calls.
const (
	serviceIP   = "127.100.0.10"
	servicePort = "10443"
)

// atService returns values that put the Service at the test's address.
func atService(t *testing.T, text string) values {
	t.Helper()
	v := parseValues(t, text)
	v["service"] = values{"clusterIP": serviceIP, "port": 10443}
	return v
}

// projects makes what the tests need in the cluster.
func projects(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	namespace(t, cp, "a1", map[string]string{"team": "a"})
	namespace(t, cp, "a2", map[string]string{"team": "a"})
	namespace(t, cp, "load", map[string]string{"team": "load"})
	create(t, cp, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, deviceQuota("a", "4"), deviceQuota("load", "1000"))
}

// admits checks that claims are admitted up to the limit over both projects, and not beyond.
func admits(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	ctx := t.Context()
	eventually(t, time.Minute, func(ctx context.Context) error {
		return cp.Client.Create(ctx, claim("a1", "three", 3), client.DryRunAll)
	})
	if err := cp.Client.Create(ctx, claim("a1", "three", 3)); err != nil {
		t.Errorf("a claim within the limit: %v", err)
	}
	err := cp.Client.Create(ctx, claim("a2", "two", 2))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: a, requested: "+deviceKey+"=2, used: "+deviceKey+"=3, limited: "+deviceKey+"=4") {
		t.Errorf("a claim beyond the limit: %v", err)
	}
	if err := cp.Client.Create(ctx, claim("a2", "one", 1)); err != nil {
		t.Errorf("the last device: %v", err)
	}
	if err := errors.Join(cp.Client.Delete(ctx, claim("a1", "three", 3)), cp.Client.Delete(ctx, claim("a2", "one", 1))); err != nil {
		t.Error(err)
	}
	if err := cp.Client.Create(ctx, claim("a2", "four", 4)); err != nil {
		t.Errorf("after the deletion of all claims: %v", err)
	}
	if err := cp.Client.Delete(ctx, claim("a2", "four", 4)); err != nil {
		t.Error(err)
	}
}

// certificateAt returns the certificate that is served at the Service's address.
func certificateAt(ctx context.Context) ([]byte, error) {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // it is looked at, not trusted
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(serviceIP, servicePort))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw, nil
}

func validatingConfig(t *testing.T, cp *harness.ControlPlane) *admissionv1.ValidatingWebhookConfiguration {
	t.Helper()
	v := &admissionv1.ValidatingWebhookConfiguration{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: "devicequota"}, v); err != nil {
		t.Fatal(err)
	}
	return v
}

// failsClosed checks what holds while nobody serves the webhooks.
func failsClosed(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	ctx := t.Context()
	if err := cp.Client.Create(ctx, claim("a1", "unchecked", 1)); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("a claim that nobody checks: %v", err)
	}
	if err := cp.Client.Create(ctx, pod("a1", "plain"), client.DryRunAll); err != nil {
		t.Errorf("a pod without devices: %v", err)
	}
	if err := cp.Client.Create(ctx, pod("a1", "with-claim", "c"), client.DryRunAll); err != nil {
		t.Errorf("a pod with a claim, whose webhook fails open: %v", err)
	}
	if err := cp.Client.Create(ctx, claim("kube-system", "exempt", 1), client.DryRunAll); err != nil {
		t.Errorf("a claim in an exempt namespace: %v", err)
	}
	extended := pod("a1", "extended")
	extended.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu": claimQuantity()}
	if err := cp.Client.Create(ctx, extended, client.DryRunAll); err == nil {
		t.Error("a pod with an extended resource that nobody checks is admitted")
	}
}

// TestInstall installs both charts as an admin does, and lives with them until they are
// uninstalled.
func TestInstall(t *testing.T) {
	whole, audit := t, newAudit(t) // replicas live longer than the part that starts them
	cp := startAPIServer(t, audit.flags())
	ctx := t.Context()
	for _, name := range []string{crdChart, mainChart} {
		if err := helmInstall(t, cp, name, map[string]values{crdChart: {}, mainChart: atService(t, "{}")}[name]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	projects(t, cp)
	failsClosed(t, cp)

	svc, kubeconfig := newService(t, net.JoinHostPort(serviceIP, servicePort)), identity(t, cp)
	first, second := startReplica(t, cp, svc, kubeconfig), startReplica(t, cp, svc, kubeconfig)
	first.waitReady(t)
	second.waitReady(t)
	admits(t, cp)
	projected(t, cp)
	pods(t, cp)
	moved(t, cp)
	observed(t, cp, first, second)

	t.Run("certificates are renewed under load", func(t *testing.T) { renew(t, cp) })

	t.Run("upgrade", func(t *testing.T) {
		under := startLoad(t, cp, "load")
		v := atService(t, "{log: {level: 1}, webhooks: {resourceClaims: {timeoutSeconds: 7}, podResourceClaims: {enabled: false}}}")
		if err := helmUpgrade(t, cp, mainChart, v); err != nil {
			t.Fatal(err)
		}
		got := validatingConfig(t, cp)
		if len(got.Webhooks) != 4 {
			t.Errorf("%d validating webhooks after one was turned off, want 4", len(got.Webhooks))
		}
		for _, w := range got.Webhooks {
			if len(w.ClientConfig.CABundle) == 0 {
				t.Errorf("%s lost its caBundle by the upgrade", w.Name)
			}
			if w.Name == "resourceclaims.validate.devicequota.io" && *w.TimeoutSeconds != 7 {
				t.Errorf("timeout %d, want 7", *w.TimeoutSeconds)
			}
		}
		// The Deployment's controller replaces the pods one by one.
		third := startReplica(whole, cp, svc, kubeconfig)
		third.waitReady(t)
		first.terminate(t)
		fourth := startReplica(whole, cp, svc, kubeconfig)
		fourth.waitReady(t)
		second.terminate(t)
		under.end(t, "upgrade with both pods replaced")
		first, second = third, fourth
	})
	admits(t, cp)
	// The API server keeps its connections, so not every replica is asked.
	if !strings.Contains(first.log.String()+second.log.String(), `"admitted"`) {
		t.Error("the new log level is not in use")
	}

	t.Run("a replica is killed under load", func(t *testing.T) {
		under := startLoad(t, cp, "load")
		n := under.count()
		eventually(t, time.Minute, func(context.Context) error { return moreThan(under, n+50) })
		first.kill()
		n = under.count()
		eventually(t, time.Minute, func(context.Context) error { return moreThan(under, n+100) })
		under.cancel()
		under.done.Wait()
		// What was on its way in the killed process fails; everything after goes to the other one.
		if len(under.failures) > 8 {
			t.Errorf("%d of %d requests failed: %v", len(under.failures), under.requests, under.failures[:5])
		}
	})
	admits(t, cp)
	audit.check(t, cp)

	second.kill()
	failsClosed(t, cp)

	if err := helmUninstall(t, cp, mainChart); err != nil {
		t.Fatal(err)
	}
	if err := helmUninstall(t, cp, crdChart); err != nil {
		t.Fatal(err)
	}
	uninstalled(t, cp)
	if err := cp.Client.Get(ctx, client.ObjectKey{Name: "a"}, &quotav1.ClusterResourceQuota{}); err != nil {
		t.Errorf("quotas are gone: %v", err)
	}
	var crds apiextensionsv1.CustomResourceDefinitionList
	if err := cp.Client.List(ctx, &crds); err == nil && len(crds.Items) < 4 {
		t.Errorf("%d CRDs are left", len(crds.Items))
	}
	if err := cp.Client.Create(ctx, claim("a1", "after", 100)); err != nil {
		t.Errorf("a claim after the uninstallation: %v", err)
	}
}

func moreThan(l *load, n int) error {
	if got := l.count(); got < n {
		return fmt.Errorf("%d requests, want %d", got, n)
	}
	return nil
}

// uninstalled checks that nothing of the release is left.
func uninstalled(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	for _, o := range mustRender(t, mainChart, values{}) {
		if o.GetKind() == "Pod" {
			continue
		}
		if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o.DeepCopy()); !apierrors.IsNotFound(err) {
			t.Errorf("%s is left (%v)", key(o), err)
		}
	}
}

// projected waits until each project sees the quota with its own share.
func projected(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	create(t, cp, claim("a1", "seen", 2))
	eventually(t, time.Minute, func(ctx context.Context) error {
		q := &quotav1.AppliedClusterResourceQuota{}
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: "a1", Name: "a"}, q); err != nil {
			return err
		}
		used := q.Status.Total.Used[deviceKey]
		if used.Value() != 2 || len(q.Status.Namespaces) != 1 {
			return fmt.Errorf("the project sees %v", q.Status)
		}
		return nil
	})
	if err := cp.Client.Delete(t.Context(), claim("a1", "seen", 2)); err != nil {
		t.Error(err)
	}
}

func tlsSecret(ctx context.Context, cp *harness.ControlPlane) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	err := cp.Client.Get(ctx, client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota-tls"}, s)
	return s, err
}

// renew renews certificate and authority, as the manager does by itself every few years,
// while claims are created.
func renew(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	under := startLoad(t, cp, "load")
	for _, part := range []string{"tls.crt", "ca.key"} {
		var old []byte
		eventually(t, 10*time.Second, func(ctx context.Context) error {
			s, err := tlsSecret(ctx, cp)
			if err != nil {
				return err
			}
			old = s.Data["tls.crt"]
			delete(s.Data, part)
			return cp.Client.Update(ctx, s)
		})
		eventually(t, 2*time.Minute, func(ctx context.Context) error {
			s, err := tlsSecret(ctx, cp)
			if err == nil && (len(s.Data["tls.crt"]) == 0 || bytes.Equal(s.Data["tls.crt"], old)) {
				err = errors.New("the certificate is not renewed")
			}
			if err != nil {
				return err
			}
			block, _ := pem.Decode(s.Data["tls.crt"])
			for range 4 { // all replicas are asked in turn
				if got, err := certificateAt(ctx); err != nil {
					return err
				} else if !bytes.Equal(got, block.Bytes) {
					return errors.New("the renewed certificate is not served everywhere")
				}
			}
			return nil
		})
	}
	n := under.count()
	eventually(t, time.Minute, func(context.Context) error { return moreThan(under, n+100) })
	if n := bytes.Count(validatingConfig(t, cp).Webhooks[0].ClientConfig.CABundle, []byte("BEGIN CERTIFICATE")); n != 2 {
		t.Errorf("caBundle has %d authorities, want 2", n)
	}
	under.end(t, "renewal of certificate and authority")
}

// pods checks pods that refer to a claim and to a template, early.
func pods(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	ctx := t.Context()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "a1", Name: "three"}}
	template.Spec.Spec = claim("a1", "", 3).Spec
	create(t, cp, template, claim("a1", "made", 2))
	if err := cp.Client.Create(ctx, pod("a1", "fits", "made")); err != nil {
		t.Errorf("a pod with a claim that is charged already: %v", err)
	}
	big := pod("a1", "big")
	big.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: &template.Name}}
	if err := cp.Client.Create(ctx, big); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: a") {
		t.Errorf("a pod whose template does not fit now: %v", err)
	}
	never := template.DeepCopy()
	never.Name, never.ResourceVersion, never.Spec.Spec = "never", "", claim("a1", "", 5).Spec
	if err := cp.Client.Create(ctx, never); !apierrors.IsForbidden(err) {
		t.Errorf("a template that never fits: %v", err)
	}
	for _, o := range []client.Object{pod("a1", "fits"), template, claim("a1", "made", 2)} {
		if err := cp.Client.Delete(ctx, o, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	}
}

// moved takes a project out of the quota, and back in.
func moved(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	label := func(team string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a2"}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"`+team+`"}}}`))
		if err := cp.Client.Patch(t.Context(), ns, patch); err != nil {
			t.Fatal(err)
		}
	}
	label("none")
	seen := func(want bool) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			err := cp.Client.Get(ctx, client.ObjectKey{Namespace: "a2", Name: "a"}, &quotav1.AppliedClusterResourceQuota{})
			if (err == nil) != want {
				return fmt.Errorf("the project sees the quota: want %v, got %w", want, err)
			}
			return nil
		}
	}
	eventually(t, time.Minute, seen(false))
	label("a")
	eventually(t, time.Minute, seen(true))
}
