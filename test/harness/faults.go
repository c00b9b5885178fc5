package harness

import (
	"bytes"
	"errors"
	"fmt"
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
