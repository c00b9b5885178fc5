package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/test/harness"
)

// nothingName is what the webhook refuses, so that it is seen to be called.
const nothingName = "refused-by-nothing"

// doNothing admits everything but the probe: the floor of what any webhook costs.
func doNothing() *admission.Webhook {
	return &admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, r admission.Request) admission.Response {
		return admission.ValidationResponse(r.Name != nothingName, "")
	})}
}

// serveNothing serves it, as a manager serves its webhooks, until ctx ends.
func serveNothing(ctx context.Context, address, certDir string) error {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{Host: host, Port: port, CertDir: certDir,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}})
	server.Register("/", doNothing())
	return server.Start(ctx)
}

// nothingProcess is the webhook in a process of its own, behind the same address as managers are.
type nothingProcess struct {
	cp      *harness.ControlPlane
	address string
	cmd     *exec.Cmd
}

func startNothing(cp *harness.ControlPlane) (*nothingProcess, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &nothingProcess{cp: cp, address: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n.cmd = exec.Command(self, "-serve-nothing", n.address, "-cert-dir", cp.CertDir())
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	cp.AddBackend(n.address)
	return n, nil
}

func (n *nothingProcess) cpu() time.Duration {
	d, err := harness.CPU(n.cmd.Process.Pid)
	if err != nil {
		return 0
	}
	return d
}

func (n *nothingProcess) stop() error {
	n.cp.RemoveBackend(n.address)
	if err := n.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = n.cmd.Wait() // it was killed
	return nil
}

func (n *nothingProcess) configuration() *registrationv1.ValidatingWebhookConfiguration {
	return &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "nothing"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name:         "nothing.bench.devicequota.io",
			ClientConfig: n.cp.ClientConfig("/"),
			Rules: []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule: registrationv1.Rule{APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"resourceclaims"}}}},
			FailurePolicy:           ptr.To(registrationv1.Fail),
			SideEffects:             ptr.To(registrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{admissionv1.SchemeGroupVersion.Version},
			TimeoutSeconds:          ptr.To[int32](5),
		}}}
}

// install makes the API server call the webhook, and waits until it does.
func (n *nothingProcess) install(ctx context.Context, c client.Client, namespace string) error {
	if err := c.Create(ctx, n.configuration()); err != nil {
		return err
	}
	return waitFor(ctx, func(ctx context.Context) error {
		err := c.Create(ctx, claim(namespace, nothingName), client.DryRunAll)
		if err == nil {
			return errors.New("the webhook is not called yet")
		}
		if code := statusCode(err); code != http.StatusForbidden {
			return fmt.Errorf("code %d: %w", code, err)
		}
		return nil
	})
}

func (n *nothingProcess) uninstall(ctx context.Context, c client.Client) error {
	return c.Delete(ctx, n.configuration())
}
