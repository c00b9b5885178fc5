package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ManagerOptions configure one manager process.
type ManagerOptions struct {
	// Args are flags beyond the harness's own.
	Args []string
	// Binary is built from cmd/devicequota when empty.
	Binary string
	// Identity is the user it runs as; the ServiceAccount of an installation when empty.
	Identity string
	// Direct has it listen at the webhooks' address itself: it is the only one then, and what is
	// measured has no copying of bytes in it that a Service does not do either.
	Direct bool
	// NotReady returns as soon as the process runs instead of when it is ready.
	NotReady bool
}

// Manager is a running manager process.
type Manager struct {
	// Address of its webhooks, and of its health endpoints.
	Address, Health string

	cp   *ControlPlane
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{}
	err  error
}

var build struct {
	sync.Mutex
	path string
}

// Binary builds cmd/devicequota once per process and returns its path. Packages that are tested at
// the same time share the file: one builds it, and nobody runs what is half written.
func Binary(ctx context.Context) (string, error) {
	build.Lock()
	defer build.Unlock()
	if build.path != "" {
		return build.path, nil
	}
	name, flags := "devicequota", []string{}
	if raceDetector {
		name, flags = "devicequota-race", []string{"-race"}
	}
	path := filepath.Join(Root(), "bin", name)
	unlock, err := lockFile(path + ".lock")
	if err != nil {
		return "", fmt.Errorf("build manager: %w", err)
	}
	defer unlock()
	// What is built is up to date as long as the code is: no commit and no other file changes it.
	args := append([]string{"build", "-buildvcs=false", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/devicequota")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build manager: %w\n%s", err, out)
	}
	build.path = path
	return path, nil
}

// lockFile waits until no other process holds the lock.
func lockFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // which gives the lock up
}

// StartManager starts a manager process behind the webhooks' address.
func (c *ControlPlane) StartManager(ctx context.Context, o ManagerOptions) (*Manager, error) {
	var err error
	if o.Binary == "" {
		if o.Binary, err = Binary(ctx); err != nil {
			return nil, err
		}
	}
	kubeconfig, err := c.managerKubeconfig(ctx, o.Identity)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		m, err := c.startManager(o, kubeconfig)
		if err != nil {
			return nil, err
		}
		if o.NotReady {
			return m, nil
		}
		if err = m.WaitReady(ctx); err == nil {
			return m, nil
		}
		err = errors.Join(err, m.Stop())
		// Ports that were free when they were chosen need not be so any more when it listens.
		if attempt == 3 || !strings.Contains(m.Log(), syscall.EADDRINUSE.Error()) {
			return nil, err
		}
	}
}

// startManager starts the process at ports that are free now.
func (c *ControlPlane) startManager(o ManagerOptions, kubeconfig string) (*Manager, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])),
		Health:  net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1])),
		cp:      c, log: &logBuffer{}, done: make(chan struct{}),
	}
	if o.Direct {
		c.webhook.close()
		m.Address = c.webhook.address()
	}
	args := append([]string{
		"--kubeconfig=" + kubeconfig,
		"--webhook-bind-address=" + m.Address,
		"--health-probe-bind-address=" + m.Health,
		"--metrics-bind-address=0",
		"--cert-dir=" + c.tls.dir,
		"--namespace=" + Namespace,
	}, o.Args...)
	m.cmd = exec.Command(o.Binary, args...)
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start manager: %w", err)
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.done)
	}()
	c.webhook.add(m.Address)
	return m, nil
}

// CertDir is the folder of the certificate that the webhooks' address is trusted with.
func (c *ControlPlane) CertDir() string { return c.tls.dir }

// AddBackend makes the webhooks' address lead to a server that the caller runs, too, until the
// returned function is called. It serves the certificate in CertDir. Installed webhooks are required.
func (c *ControlPlane) AddBackend(address string) (remove func()) {
	c.webhook.add(address)
	return func() { c.webhook.remove(address) }
}

// managerKubeconfig writes the kubeconfig of an identity and returns its path.
func (c *ControlPlane) managerKubeconfig(ctx context.Context, identity string) (string, error) {
	path := filepath.Join(c.Dir, strings.ReplaceAll(cmp.Or(identity, ServiceAccount), ":", "_")+".kubeconfig")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	var kubeconfig []byte
	var err error
	if identity == "" {
		kubeconfig, err = c.serviceAccountKubeconfig(ctx)
	} else {
		_, kubeconfig, err = c.User(identity, "system:authenticated")
	}
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, kubeconfig, 0o600)
}

// serviceAccountKubeconfig returns a kubeconfig with a token of the manager's ServiceAccount, which
// is made if need be. A pod has such a token; a certificate would cost the API server more at each request.
func (c *ControlPlane) serviceAccountKubeconfig(ctx context.Context) ([]byte, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ServiceAccount}}
	for _, obj := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, account} {
		if err := c.Client.Create(ctx, obj); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(24 * 60 * 60))}}
	if err := c.Client.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, fmt.Errorf("token of the manager's ServiceAccount: %w", err)
	}
	const name = "manager"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.Write(*config)
}

// WaitReady waits until the manager is ready. The error tells that it ended, or that it takes too long.
func (m *Manager) WaitReady(ctx context.Context) error {
	last := errors.New("not asked")
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		select {
		case <-m.done:
			return false, fmt.Errorf("manager ended: %w", m.err)
		default:
		}
		last = m.probe(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("manager is not ready: %w (%w)\n%s", err, last, m.LogTail(60))
	}
	return nil
}

// probe asks readyz once.
func (m *Manager) probe(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Health+"/readyz?verbose", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var body bytes.Buffer
		_, _ = body.ReadFrom(resp.Body) // what came is in the error
		return fmt.Errorf("readyz answers %d: %s", resp.StatusCode, body.String())
	}
	return nil
}

// Stop ends the manager gracefully, killing it after a while. A manager that ended before is no error.
func (m *Manager) Stop() error {
	_ = m.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-m.done:
	case <-time.After(90 * time.Second): // twice what its own delay and timeout add up to
		m.Kill()
		return errors.New("manager did not end in 90 s after SIGTERM")
	}
	m.cp.webhook.remove(m.Address)
	return nil
}

// Kill ends the manager at once.
func (m *Manager) Kill() {
	m.cp.webhook.remove(m.Address)
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.done
}

// CPU returns the processor time that the manager has used.
func (m *Manager) CPU() (time.Duration, error) {
	return CPU(m.cmd.Process.Pid)
}

// LogTail returns the last lines of the manager's log.
func (m *Manager) LogTail(lines int) string {
	all := strings.Split(strings.TrimSpace(m.log.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Log returns the whole log.
func (m *Manager) Log() string { return m.log.String() }

// logBuffer is a bytes.Buffer that is safe for concurrent use.
type logBuffer struct {
	mu  sync.Mutex // protects following
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// FreeAddress returns a loopback address that was free a moment ago.
func FreeAddress(t testing.TB) string {
	t.Helper()
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
}

// given are the ports that freePorts returned.
var given sync.Map

// freePorts returns loopback ports that were free a moment ago, each only once: whom it was given
// to may not listen yet.
func freePorts(n int) ([]int, error) {
	var ports []int
	var open []net.Listener
	defer func() {
		for _, l := range open {
			_ = l.Close() // given up
		}
	}()
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		open = append(open, l)
		port := l.Addr().(*net.TCPAddr).Port
		if _, before := given.LoadOrStore(port, true); !before {
			ports = append(ports, port)
		}
	}
	return ports, nil
}
