package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// RestartAPIServer kills kube-apiserver, without any grace, and starts it again with the same
// flags on the same etcd. It returns when the API server is ready, which takes some seconds.
func (c *ControlPlane) RestartAPIServer(ctx context.Context) error {
	pid, err := child("kube-apiserver")
	if err != nil {
		return err
	}
	commandLine, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	// its port has to be free; whoever started it waits for it
	if err := waitUntil(ctx, time.Minute, func(context.Context) error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kube-apiserver %d still runs: %w", pid, err)
		}
		return nil
	}); err != nil {
		return err
	}
	args := strings.Split(string(bytes.TrimRight(commandLine, "\x00")), "\x00")
	p, err := startProcess("kube-apiserver", args[0], args[1:]...)
	if err != nil {
		return err
	}
	c.restarted = append(c.restarted, p)
	return c.waitAPIServer(ctx, p)
}

// waitAPIServer waits until the API server is ready, over connections of its own.
func (c *ControlPlane) waitAPIServer(ctx context.Context, p *Process) error {
	transport, err := rest.TransportFor(rest.CopyConfig(c.Config))
	if err != nil {
		return err
	}
	cl := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	err = waitUntil(ctx, 2*time.Minute, func(ctx context.Context) error {
		select {
		case <-p.done:
			return errors.New("kube-apiserver ended")
		default:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.Config.Host, "/")+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := cl.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz answers %d", resp.StatusCode)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("restart kube-apiserver: %w\n%s", err, p.Log())
	}
	return nil
}

// waitUntil polls until f returns nil, at most for d.
func waitUntil(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, d, true, func(ctx context.Context) (bool, error) {
		now := f(ctx)
		if last == nil || ctx.Err() == nil { // what fails because the time is over tells nothing
			last = now
		}
		return now == nil, nil
	})
	if err != nil {
		return errors.Join(last, err)
	}
	return nil
}

// startProcess starts a program whose output is kept.
func startProcess(name, path string, args ...string) (*Process, error) {
	p := &Process{name: name, log: &logBuffer{}, done: make(chan struct{})}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // it is stopped by a signal
		close(p.done)
	}()
	return p, nil
}
