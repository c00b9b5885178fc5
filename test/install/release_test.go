package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

// helm returns Helm's configuration for the cluster.
func helm(t *testing.T, cp *harness.ControlPlane) *action.Configuration {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(true)
	ns := harness.Namespace
	flags.KubeConfig, flags.Namespace = &cp.Kubeconfig, &ns
	c := action.NewConfiguration()
	if err := c.Init(flags, harness.Namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	return c
}

func helmInstall(t *testing.T, cp *harness.ControlPlane, name string, v values) error {
	t.Helper()
	in := action.NewInstall(helm(t, cp))
	in.ReleaseName, in.Namespace, in.WaitStrategy, in.Timeout = name, harness.Namespace, kube.HookOnlyStrategy, time.Minute
	_, err := in.Run(loadChart(t, name), v)
	return err
}

func helmUpgrade(t *testing.T, cp *harness.ControlPlane, name string, v values) error {
	t.Helper()
	up := action.NewUpgrade(helm(t, cp))
	up.Namespace, up.WaitStrategy, up.Timeout = harness.Namespace, kube.HookOnlyStrategy, time.Minute
	_, err := up.Run(name, loadChart(t, name), v)
	return err
}

func helmUninstall(t *testing.T, cp *harness.ControlPlane, name string) error {
	t.Helper()
	un := action.NewUninstall(helm(t, cp))
	un.WaitStrategy, un.Timeout = kube.HookOnlyStrategy, time.Minute
	_, err := un.Run(name)
	return err
}

// helmTest runs `helm test` and plays the kubelet for its pod: it runs the real binary with
// the pod's arguments, and the Service's address for its name.
func helmTest(t *testing.T, cp *harness.ControlPlane) error {
	t.Helper()
	binary, err := harness.Binary(t.Context())
	if err != nil {
		return err
	}
	test := action.NewReleaseTesting(helm(t, cp))
	test.Namespace, test.Timeout = harness.Namespace, time.Minute
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runTestPod(ctx, cp, binary) }()
	_, shutdown, err := test.Run(mainChart)
	stop()
	if played := <-ended; played != nil && err == nil {
		err = played
	}
	return errors.Join(err, shutdown())
}

// runTestPod waits for the pod, runs its container and writes how it ended.
func runTestPod(ctx context.Context, cp *harness.ControlPlane, binary string) error {
	pod, at := &corev1.Pod{}, client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota-test"}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cp.Client.Get(ctx, at, pod)
		if err == nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no test pod to run: %w", err)
		case <-tick.C:
		}
	}
	var args []string
	for _, a := range pod.Spec.Containers[0].Args {
		args = append(args, strings.ReplaceAll(a, host+":", serviceIP+":"))
	}
	pod.Status.Phase = corev1.PodSucceeded
	out, failed := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	if failed != nil {
		pod.Status.Phase, pod.Status.Message = corev1.PodFailed, string(out)
	} else if !strings.Contains(string(out), "[+]webhooks ok") {
		return fmt.Errorf("the test did not look at the webhooks: %s", out)
	}
	return cp.Client.Status().Update(ctx, pod)
}

// service plays Service and EndpointSlices: connections to the Service's ports go to the
// replicas that are ready.
type service struct {
	listeners []net.Listener
	done      sync.WaitGroup

	mu sync.Mutex // protects following
	// replica -> ready
	replicas map[*replica]bool
	next     int
	conns    map[net.Conn]struct{}
	closed   bool
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{replicas: map[*replica]bool{}, conns: map[net.Conn]struct{}{}}
	t.Cleanup(s.close)
	for port, target := range map[string]func(*replica) string{
		servicePort: func(r *replica) string { return r.webhooks },
		healthPort:  func(r *replica) string { return r.health },
	} {
		l, err := net.Listen("tcp", net.JoinHostPort(serviceIP, port))
		if err != nil {
			t.Fatal(err)
		}
		s.listeners = append(s.listeners, l)
		s.done.Go(func() { s.accept(l, target) })
	}
	return s
}

func (s *service) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close() // given up
	}
	s.mu.Unlock()
	for _, l := range s.listeners {
		_ = l.Close() // ends accept
	}
	s.done.Wait()
}

func (s *service) accept(l net.Listener, target func(*replica) string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.done.Go(func() { s.serve(c, target) })
	}
}

func (s *service) serve(in net.Conn, target func(*replica) string) {
	defer in.Close()
	out := s.dial(target)
	if out == nil {
		return
	}
	defer out.Close()
	s.mu.Lock()
	s.conns[in], s.conns[out] = struct{}{}, struct{}{}
	closed := s.closed
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, in)
		delete(s.conns, out)
		s.mu.Unlock()
	}()
	if closed {
		return
	}
	end := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // the end of a connection is no error here
			end <- struct{}{}
		}()
	}
	<-end
}

func (s *service) dial(target func(*replica) string) net.Conn {
	s.mu.Lock()
	var ready []*replica
	for r, ok := range s.replicas {
		if ok {
			ready = append(ready, r)
		}
	}
	s.next++
	n := s.next
	s.mu.Unlock()
	for i := range ready {
		if c, err := net.Dial("tcp", target(ready[(n+i)%len(ready)])); err == nil {
			return c
		}
	}
	return nil
}

func (s *service) set(r *replica, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.gone {
		delete(s.replicas, r)
		return
	}
	s.replicas[r] = ready
}

// replica is one pod: the real binary with the Deployment's arguments, as the chart's
// ServiceAccount, probed as the kubelet does.
type replica struct {
	webhooks, health, metrics string

	cmd  *exec.Cmd
	log  syncBuffer
	done chan struct{}
	stop context.CancelFunc
	gone bool // guarded by service.mu
	svc  *service
}

// startReplica starts a pod of the Deployment that is in the cluster.
func startReplica(t *testing.T, cp *harness.ControlPlane, svc *service, kubeconfig string) *replica {
	t.Helper()
	binary, err := harness.Binary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, config := &appsv1.Deployment{}, &corev1.ConfigMap{}
	at := client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota"}
	if err := errors.Join(cp.Client.Get(t.Context(), at, d), cp.Client.Get(t.Context(), at, config)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config.Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &replica{webhooks: freeAddress(t), health: freeAddress(t), metrics: freeAddress(t), done: make(chan struct{}), svc: svc}
	var args []string
	for _, a := range d.Spec.Template.Spec.Containers[0].Args {
		args = append(args, strings.ReplaceAll(a, "/etc/devicequota/", dir+"/"))
	}
	args = append(args, "--kubeconfig="+kubeconfig, "--webhook-bind-address="+r.webhooks, "--health-probe-bind-address="+r.health, "--metrics-bind-address="+r.metrics)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r.stop = stop
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			certs := filepath.Join(dir, "certs")
			mountSecret(ctx, t, cp, v.Secret.SecretName, certs)
			args = append(args, "--cert-dir="+certs)
		}
	}
	r.cmd = exec.Command(binary, args...)
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // it ends by a signal
		close(r.done)
	}()
	go r.probe(ctx)
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("log of the manager at %s:\n%s", r.webhooks, tail(r.log.String(), 80))
		}
	})
	return r
}

func (r *replica) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		select {
		case <-r.done:
			return fmt.Errorf("it ended:\n%s", tail(r.log.String(), 30))
		default:
			return r.ask(ctx)
		}
	})
}

func (r *replica) ask(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.health+"/readyz?verbose", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("readyz answers %d: %s", resp.StatusCode, body)
	}
	return err
}

func (r *replica) probe(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		r.svc.set(r, r.ask(ctx) == nil)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// leave takes the replica out of the Service for good.
func (r *replica) leave() {
	r.stop()
	r.svc.mu.Lock()
	r.gone = true
	r.svc.mu.Unlock()
	r.svc.set(r, false)
}

func (r *replica) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.done
	r.leave()
}

// terminate ends it as the kubelet does, and waits.
func (r *replica) terminate(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.done:
	case <-time.After(50 * time.Second):
		t.Error("it did not end in 50 s after SIGTERM")
	}
	r.leave()
}

// mountSecret plays the kubelet: it writes the Secret's data into a folder, and again when it changes.
func mountSecret(ctx context.Context, t *testing.T, cp *harness.ControlPlane, name, dir string) {
	t.Helper()
	write := func() error {
		s := &corev1.Secret{}
		if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: harness.Namespace, Name: name}, s); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for k, v := range s.Data {
			path := filepath.Join(dir, k)
			if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, v) {
				continue
			}
			if err := errors.Join(os.WriteFile(path+".new", v, 0o600), os.Rename(path+".new", path)); err != nil {
				return err
			}
		}
		return nil
	}
	eventually(t, 30*time.Second, func(context.Context) error { return write() })
	go func() {
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = write() // the next round tries again
			}
		}
	}()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// identity writes a kubeconfig of the chart's ServiceAccount.
func identity(t *testing.T, cp *harness.ControlPlane) string {
	t.Helper()
	_, kubeconfig, err := cp.User("system:serviceaccount:"+harness.Namespace+":"+harness.ServiceAccount,
		"system:serviceaccounts", "system:serviceaccounts:"+harness.Namespace, "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	return workFile(t, "kubeconfig", kubeconfig)
}

type syncBuffer struct {
	mu  sync.Mutex // protects following
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
