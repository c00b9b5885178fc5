// Package harness starts a real etcd and kube-apiserver on loopback, installs what ships in
// config/ with nothing edited but the webhook's address, and runs managers against it.
// The demo and the tests use it.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/go-logr/logr"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Namespace and ServiceAccount are the manager's identity in every installation.
const (
	Namespace      = "devicequota-system"
	ServiceAccount = "devicequota"
)

// Options of a control plane. The zero value serves only resource.k8s.io/v1.
type Options struct {
	// OldVersions serves resource.k8s.io/v1beta1 and v1beta2 too.
	OldVersions bool
	// Flags for kube-apiserver, name to value, beyond the harness's own.
	Flags map[string]string
	// Output of the API server and etcd goes to stderr when set.
	Output bool
}

// ControlPlane is a running etcd and kube-apiserver.
type ControlPlane struct {
	// Config is a cluster admin's.
	Config *rest.Config
	// Client is a cluster admin's, uncached.
	Client client.Client
	// Kubeconfig is the path of a cluster admin's kubeconfig.
	Kubeconfig string
	// Dir holds this control plane's files; it is removed by Stop.
	Dir string

	env     *envtest.Environment
	webhook *balancer
	tls     *servingCert
	// restarted are API servers that were started in place of the first.
	restarted []*Process
}

// Scheme returns a scheme with every type that the suite touches.
func Scheme() (*k8sruntime.Scheme, error) {
	s := k8sruntime.NewScheme()
	err := errors.Join(
		clientgoscheme.AddToScheme(s), resourceapi.AddToScheme(s), resourcev1beta1.AddToScheme(s), resourcev1beta2.AddToScheme(s),
		quotav1.Install(s), v1alpha1.AddToScheme(s),
	)
	return s, err
}

// Root returns the root folder of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Start starts etcd and kube-apiserver from KUBEBUILDER_ASSETS, which must be set.
func Start(o Options) (*ControlPlane, error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return nil, errors.New("KUBEBUILDER_ASSETS is not set: run it through make")
	}
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "devicequota-")
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{
		Scheme:                   scheme,
		BinaryAssetsDirectory:    assets,
		ControlPlaneStartTimeout: patience,
		ControlPlaneStopTimeout:  patience,
		AttachControlPlaneOutput: o.Output,
	}
	args := env.ControlPlane.GetAPIServer().Configure()
	if o.OldVersions {
		args.Set("runtime-config", "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true")
	}
	for name, value := range o.Flags {
		args.Set(name, value)
	}
	cp := &ControlPlane{Dir: dir, env: env, Kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	if cp.Config, err = env.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), env.Stop(), os.RemoveAll(dir))
	}
	log.SetLogger(logr.Discard())
	cp.Config.QPS, cp.Config.Burst = -1, 0
	if cp.Client, err = client.New(cp.Config, client.Options{Scheme: scheme}); err == nil {
		err = os.WriteFile(cp.Kubeconfig, env.KubeConfig, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	return cp, nil
}

// Stop ends the control plane and removes its files.
func (c *ControlPlane) Stop() error {
	if c.webhook != nil {
		c.webhook.close()
	}
	for _, p := range c.restarted {
		p.kill() // nothing of it is needed any more
	}
	return errors.Join(c.env.Stop(), os.RemoveAll(c.Dir))
}

// User adds a user and returns its client configuration and kubeconfig.
func (c *ControlPlane) User(name string, groups ...string) (*rest.Config, []byte, error) {
	u, err := c.env.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("add user %q: %w", name, err)
	}
	kubeconfig, err := u.KubeConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig of user %q: %w", name, err)
	}
	cfg := u.Config()
	cfg.QPS, cfg.Burst = -1, 0
	return cfg, kubeconfig, nil
}

// InstallOptions leave out parts of an installation. The zero value leaves out nothing.
type InstallOptions struct {
	// CRDs are files or folders of CRDs to install instead of all of config/crd/bases.
	CRDs []string
	// Roles are the names of the ClusterRoles to bind to the manager's identity; nil binds all
	// that ship.
	Roles []string
}

// Install applies the shipped CRDs, roles, flow schema and webhook configuration. The
// webhooks are reached at one loopback address behind which all managers stand.
func (c *ControlPlane) Install(ctx context.Context) error {
	return c.InstallParts(ctx, InstallOptions{})
}

// InstallParts is Install without what o leaves out.
func (c *ControlPlane) InstallParts(ctx context.Context, o InstallOptions) error {
	root := Root()
	if o.CRDs == nil {
		o.CRDs = []string{filepath.Join(root, "config", "crd", "bases")}
	}
	if _, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: o.CRDs, ErrorIfPathMissing: true}); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := c.Client.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, dir := range []string{"rbac", "apf"} {
		if err := c.ApplyPath(ctx, filepath.Join(root, "config", dir)); err != nil {
			return err
		}
	}
	if err := c.bindRoles(ctx, o.Roles); err != nil {
		return err
	}
	return c.InstallWebhooks(ctx)
}

// bindRoles binds the shipped roles, of the ClusterRoles only those named if any is, to the
// manager's ServiceAccount, as the chart does.
func (c *ControlPlane) bindRoles(ctx context.Context, only []string) error {
	subject := rbacv1.Subject{Kind: "ServiceAccount", Namespace: Namespace, Name: ServiceAccount}
	var cluster rbacv1.ClusterRoleList
	if err := c.Client.List(ctx, &cluster); err != nil {
		return err
	}
	for _, r := range cluster.Items {
		if !shipped(r.Name) || only != nil && !slices.Contains(only, r.Name) {
			continue
		}
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: r.Name}, Subjects: []rbacv1.Subject{subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.Name}}
		if err := c.Client.Create(ctx, b); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	var namespaced rbacv1.RoleList
	if err := c.Client.List(ctx, &namespaced); err != nil {
		return err
	}
	for _, r := range namespaced.Items {
		if !shipped(r.Name) {
			continue
		}
		b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: r.Name, Namespace: r.Namespace}, Subjects: []rbacv1.Subject{subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.Name}}
		if err := c.Client.Create(ctx, b); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}
