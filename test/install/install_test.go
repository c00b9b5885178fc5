package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	admission "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// The Service's address, which the API server calls, and its ports.
const (
	serviceIP   = "127.100.0.10"
	servicePort = "10443"
	healthPort  = "8081"
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
	extended.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
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
	given(t, values{})
	projects(t, cp)
	failsClosed(t, cp)

	svc, kubeconfig := newService(t), identity(t, cp)
	if err := helmTest(t, cp); err == nil {
		t.Error("helm test succeeds without a manager")
	}
	first, second := startReplica(t, cp, svc, kubeconfig), startReplica(t, cp, svc, kubeconfig)
	first.waitReady(t)
	second.waitReady(t)
	if !strings.Contains(first.log.String(), `"platform":"Kubernetes"`) {
		t.Error("the manager did not find out that this is Kubernetes")
	}
	if err := helmTest(t, cp); err != nil {
		t.Errorf("helm test: %v", err)
	}
	admits(t, cp)
	projected(t, cp)
	pods(t, cp)
	unseen(t, first)
	moved(t, cp, audit, &quotav1.AppliedClusterResourceQuota{}, "appliedclusterresourcequotas")
	ended(t, cp)
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
	audit.check(t)

	second.kill()
	failsClosed(t, cp)

	if err := helmUninstall(t, cp, mainChart); err != nil {
		t.Fatal(err)
	}
	if err := helmUninstall(t, cp, crdChart); err != nil {
		t.Fatal(err)
	}
	uninstalled(t, cp)
	kept(t, cp)
	if err := cp.Client.Get(ctx, client.ObjectKey{Name: "a"}, &quotav1.ClusterResourceQuota{}); err != nil {
		t.Errorf("quotas are gone: %v", err)
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

// kept checks that the CRDs, and with them all quotas, outlive their release.
func kept(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	crds := mustRender(t, crdChart, values{})
	if len(crds) != 4 {
		t.Errorf("the chart has %d objects, want 4 CRDs", len(crds))
	}
	for _, crd := range crds {
		if err := cp.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
			t.Errorf("%s is gone: %v", key(crd), err)
		} else if crd.GetDeletionTimestamp() != nil {
			t.Errorf("%s is being deleted", key(crd))
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
	if err := cp.Client.Create(ctx, pod("a1", "early", "later"), client.DryRunAll); err != nil {
		t.Errorf("a pod that comes before its claim: %v", err)
	}
	byScheduler(t, cp, "fits")
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

// byScheduler makes the claim that the scheduler makes for a pod with extended resources: the
// manager looks at the pod.
func byScheduler(t *testing.T, cp *harness.ControlPlane, podName string) {
	t.Helper()
	owner := &corev1.Pod{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Namespace: "a1", Name: podName}, owner); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cp.Config)
	config.Impersonate.UserName = "system:kube-scheduler"
	scheduler, err := client.New(config, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	c := claim("a1", "extended", 1)
	c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Pod"))}
	if err := scheduler.Create(t.Context(), c, client.DryRunAll); err != nil {
		t.Errorf("the scheduler's claim for a pod: %v", err)
	}
}

// unseen asks a replica about a claim in a namespace that its cache does not have.
func unseen(t *testing.T, r *replica) {
	t.Helper()
	object, err := json.Marshal(claim("unseen", "first", 1))
	if err != nil {
		t.Fatal(err)
	}
	review, err := json.Marshal(&admission.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admission.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admission.AdmissionRequest{
			UID: "unseen", Operation: admission.Create, Namespace: "unseen", Name: "first", DryRun: ptr.To(true),
			Kind:     metav1.GroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim")),
			Resource: metav1.GroupVersionResource(resourceapi.SchemeGroupVersion.WithResource("resourceclaims")),
			Object:   runtime.RawExtension{Raw: object}}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+r.webhooks+"/validate-resourceclaim", bytes.NewReader(review))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test's own process
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer admission.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Response == nil || !answer.Response.Allowed {
		t.Errorf("a claim in a namespace that no quota covers: %v, %v", answer.Response, err)
	}
}

// moved takes a project out of the quota, and back in. That its projection cannot be deleted
// at first makes the manager look at it again.
func moved(t *testing.T, cp *harness.ControlPlane, audit *auditLog, applied client.Object, resource string) {
	t.Helper()
	ctx := t.Context()
	at := client.ObjectKey{Namespace: "a2", Name: "a"}
	seen := func(want bool) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			err := cp.Client.Get(ctx, at, applied)
			if (err == nil) != want {
				return fmt.Errorf("the project sees the quota: want %v, got %w", want, err)
			}
			return nil
		}
	}
	label := func(team string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a2"}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"`+team+`"}}}`))
		if err := cp.Client.Patch(ctx, ns, patch); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, time.Minute, seen(true))
	gvk, err := cp.Client.GroupVersionKindFor(applied)
	if err != nil {
		t.Fatal(err)
	}
	policy := undeletable(t, cp, applied.DeepCopyObject().(client.Object), gvk.Group, resource)
	label("none")
	eventually(t, time.Minute, func(context.Context) error {
		for _, e := range audit.events(t) {
			if (rightOf(e) == right{group: gvk.Group, resource: resource, verb: "get"}) {
				return nil
			}
		}
		return errors.New("nobody looked what became of the projection")
	})
	if err := cp.Client.Delete(ctx, policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, seen(false))
	label("a")
	eventually(t, time.Minute, seen(true))
}

// undeletable makes a policy that lets nobody delete objects of the resource, and waits until
// it holds for the object.
func undeletable(t *testing.T, cp *harness.ControlPlane, object client.Object, group, resource string) client.Object {
	t.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "keep-" + resource}}
	policy.Spec.Validations = []admissionv1.Validation{{Expression: "false", Message: "kept"}}
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Delete},
			Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}}}}}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policy.Name}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = policy.Name, []admissionv1.ValidationAction{admissionv1.Deny}
	create(t, cp, policy, binding)
	eventually(t, time.Minute, func(ctx context.Context) error {
		if err := cp.Client.Delete(ctx, object, client.DryRunAll); err == nil {
			return errors.New("the policy is not in force")
		}
		return nil
	})
	return binding
}

// ended makes a quota, and deletes it: its ledger goes too. Two conditions of one kind at once
// are one event that happened again.
func ended(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	ctx := t.Context()
	q := deviceQuota("ended", "1")
	create(t, cp, q)
	at := client.ObjectKeyFromObject(q)
	eventually(t, time.Minute, func(ctx context.Context) error {
		l := &v1alpha1.DeviceLedger{}
		err := cp.Client.Get(ctx, at, l)
		if err == nil && len(l.Status.Conditions) == 0 {
			err = errors.New("the ledger has no conditions")
		}
		return err
	})
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"quota":{"hard":{"cpu":"1","memory":"1Gi"}}}}`))
	if err := cp.Client.Patch(ctx, q, patch); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := cp.Client.List(ctx, &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == q.Name && e.Series != nil {
				return nil
			}
		}
		return fmt.Errorf("%d events, none happened again", len(events.Items))
	})
	if err := cp.Client.Delete(ctx, q); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		if err := cp.Client.Get(ctx, at, &v1alpha1.DeviceLedger{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ledger of a quota that is gone: %w", err)
		}
		return nil
	})
}
