package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Pause stops a child process of this one (etcd or kube-apiserver) for a while, as a slow disk
// or a starved node does. It returns when the process goes on.
func (c *ControlPlane) Pause(name string, d time.Duration) error {
	pid, err := child(name)
	if err != nil {
		return err
	}
	return pause(pid, d)
}

// Pause stops the manager for a while: its caches and watches stand still, then go on.
func (m *Manager) Pause(d time.Duration) error { return pause(m.cmd.Process.Pid, d) }

func pause(pid int, d time.Duration) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	<-time.After(d)
	return syscall.Kill(pid, syscall.SIGCONT)
}

// child returns the process id of a child of this process. Source: proc_pid_stat(5).
func child(name string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // it ended
		} else if err != nil {
			return 0, err
		}
		open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
		if open < 0 || end < open || string(data[open+1:end]) != name {
			continue
		}
		fields := strings.Fields(string(data[end+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		return strconv.Atoi(strings.TrimSpace(string(data[:open])))
	}
	return 0, fmt.Errorf("no child process %q", name)
}

// ReadOnlyEtcd makes etcd refuse all writes for a while, as one does whose disk is full. It
// returns when etcd takes writes again.
// Source: https://etcd.io/docs/v3.6/op-guide/maintenance/#space-quota.
func (c *ControlPlane) ReadOnlyEtcd(ctx context.Context, d time.Duration) error {
	pid, err := child("etcd")
	if err != nil {
		return err
	}
	commandLine, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	var address string
	for arg := range strings.SplitSeq(string(commandLine), "\x00") {
		if v, ok := strings.CutPrefix(arg, "--listen-client-urls="); ok {
			address = v
		}
	}
	if err := alarm(ctx, address, "ACTIVATE"); err != nil {
		return err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return alarm(context.WithoutCancel(ctx), address, "DEACTIVATE")
}

// alarm sets or ends the alarm that etcd has no space left.
func alarm(ctx context.Context, address, action string) error {
	body := strings.NewReader(fmt.Sprintf(`{"action": %q, "memberID": 0, "alarm": "NOSPACE"}`, action))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v3/maintenance/alarm", body)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body) // only for the message
		return fmt.Errorf("etcd alarm %s: %s: %s", action, resp.Status, text)
	}
	return nil
}
