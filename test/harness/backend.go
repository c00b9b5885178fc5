package harness

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// RemoveBackend keeps new connections away from what AddBackend added.
func (c *ControlPlane) RemoveBackend(address string) { c.webhook.remove(address) }

// ClientConfig points a webhook to a path at the webhooks' address.
func (c *ControlPlane) ClientConfig(path string) admissionv1.WebhookClientConfig {
	return admissionv1.WebhookClientConfig{URL: ptr.To("https://" + c.webhook.address() + path), CABundle: c.tls.ca}
}

// CPU returns the processor time that a child process of this one, etcd or kube-apiserver, has used.
func (c *ControlPlane) CPU(name string) (time.Duration, error) {
	pid, err := child(name)
	if err != nil {
		return 0, err
	}
	return CPU(pid)
}

// CPU returns the processor time that a process has used.
func CPU(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// the fields after the command's name, which may contain spaces; source: proc_pid_stat(5)
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("unexpected content of stat: %q", data)
	}
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on Linux
}
