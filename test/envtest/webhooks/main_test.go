// Package webhooks proves each row of the webhooks' table on a real kube-apiserver with the
// shipped configuration, as the users who really call it.
package webhooks

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
	"github.com/devicequota/devicequota/test/harness"
)

const (
	driver     = "gpu.example.com"
	devicesKey = "gpu.deviceclass.devicequota.io/devices"
	scheduler  = "system:kube-scheduler"
	controller = "system:serviceaccount:kube-system:resource-claim-controller"
)

var (
	cp      *harness.ControlPlane
	manager *harness.Manager
)

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if cp, err = harness.Start(harness.Options{OldVersions: true}); err != nil {
		return 1, err
	}
	defer func() {
		if manager != nil {
			if e := manager.Stop(); e != nil {
				code, err = 1, e
			}
		}
		if e := cp.Stop(); e != nil {
			code, err = 1, e
		}
	}()
	if err := cp.Install(ctx); err != nil {
		return 1, err
	}
	if err := publish(ctx); err != nil {
		return 1, err
	}
	if err := startManager(ctx); err != nil {
		return 1, err
	}
	if code = m.Run(); code != 0 && manager != nil {
		fmt.Fprintf(os.Stderr, "\nmanager:\n%s\n", manager.LogTail(60))
	}
	return code, nil
}

func startManager(ctx context.Context) error {
	var err error
	manager, err = cp.StartManager(ctx, harness.ManagerOptions{Args: []string{"--admin-access=Deny", "--shutdown-delay=0s"}})
	return err
}

// publish makes one node with eight GPUs, which an extended resource asks for, too.
func publish(ctx context.Context) error {
	gpu := builders.Class("gpu", `device.driver == "gpu.example.com"`)
	gpu.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
	precious := builders.Class("precious", `device.driver == "gpu.example.com"`)
	precious.Annotations = map[string]string{quota.RequireQuotaAnnotation: "true"}
	var gpus []resourceapi.Device
	for i := range 8 {
		d := builders.Device(fmt.Sprintf("gpu-%d", i), "memory", "40Gi")
		d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": builders.Text("a100")}
		gpus = append(gpus, d)
	}
	slice := builders.Slice(driver, "n1", gpus...)
	for _, o := range []client.Object{builders.Node("n1"), gpu, precious, slice} {
		o.SetUID("")
		o.SetResourceVersion("")
		if err := cp.Client.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// warnings keeps the warnings that a client got.
type warnings struct {
	mu   sync.Mutex // protects following
	list []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

func (w *warnings) has(reason string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.list, func(s string) bool { return strings.HasPrefix(s, reason+": ") })
}

// as returns a client of a user, and the warnings that it gets.
func as(t *testing.T, user string, groups ...string) (client.Client, *warnings) {
	t.Helper()
	cfg, _, err := cp.User(user, append(groups, "system:authenticated")...)
	if err != nil {
		t.Fatal(err)
	}
	w := &warnings{}
	cfg.WarningHandler = w
	c, err := client.New(cfg, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

// project is a namespace with a quota of its own and a member who may do everything in it.
type project struct {
	t        *testing.T
	name     string
	member   client.Client
	warnings *warnings
}

// newProject creates it; annotations shape its claims. Without limits it has no quota.
func newProject(t *testing.T, annotations map[string]string, limits ...string) *project {
	t.Helper()
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	name = strings.Trim(name[max(0, len(name)-60):], "-")
	p := &project{t: t, name: name}
	create(t, cp.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}, Annotations: annotations}})
	create(t, cp.Client, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "member"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "member"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}})
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "member"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims", "resourceclaimtemplates"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"*"}}}}
	if err := cp.Client.Create(t.Context(), role); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	p.member, p.warnings = as(t, name)
	harness.Eventually(t, "the member's rights", func(ctx context.Context) error {
		return p.member.List(ctx, &resourceapi.ResourceClaimList{}, client.InNamespace(name))
	})
	if len(limits) > 0 {
		q := builders.Quota(name, builders.List(limits...))
		q.UID, q.ResourceVersion = "", ""
		create(t, cp.Client, q)
		t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), q) }) // it may be gone
		harness.Eventually(t, "quota in force", func(ctx context.Context) error {
			l := &v1alpha1.DeviceLedger{}
			return cp.Client.Get(ctx, client.ObjectKey{Name: name}, l)
		})
	}
	return p
}

// patchQuota changes the project's quota; the manager writes its status at the same time.
func (p *project) patchQuota(body string) {
	p.t.Helper()
	q := newQuota(p.name)
	if err := cp.Client.Patch(p.t.Context(), q, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
		p.t.Fatal(err)
	}
}

func create(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	o.SetUID("")
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
}

func (p *project) claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := builders.Claim(p.name, name, requests...)
	c.UID = ""
	return c
}

func (p *project) template(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaimTemplate {
	c := builders.Template(p.name, name, requests...)
	c.UID = ""
	return c
}

func (p *project) pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := builders.Pod(p.name, name, corev1.Container{Name: "main", Image: "none"})
	pod.UID = ""
	for _, f := range change {
		f(pod)
	}
	return pod
}

func fromTemplate(template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: template, ResourceClaimTemplateName: &template})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: template})
	}
}

func extended(n string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		l := builders.List("example.com/gpu", n)
		p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits = l, l
	}
}

// wantDenied checks the reason, and that the client sees the text.
func wantDenied(t *testing.T, err error, reason, text string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, metav1.CauseType(reason)) || !strings.Contains(err.Error(), text) {
		t.Errorf("want 403 %s with %q, got %v", reason, text, err)
	}
}

// newQuota returns a quota that no project has.
func newQuota(name string, limits ...string) *quotav1.ClusterResourceQuota {
	q := builders.Quota(name, builders.List(limits...))
	q.UID, q.ResourceVersion = "", ""
	return q
}
