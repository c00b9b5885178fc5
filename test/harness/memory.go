package harness

import (
	"bytes"
	"fmt"
	"os"
)

// Memory returns how much memory the manager has in use, and had at most, in bytes.
func (m *Manager) Memory() (now, most int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	// source: proc_pid_status(5)
	for line := range bytes.Lines(data) {
		var kilobytes int64
		if n, _ := fmt.Sscanf(string(line), "VmRSS: %d kB", &kilobytes); n == 1 {
			now = kilobytes << 10
		} else if n, _ := fmt.Sscanf(string(line), "VmHWM: %d kB", &kilobytes); n == 1 {
			most = kilobytes << 10
		}
	}
	if now == 0 || most == 0 {
		return 0, 0, fmt.Errorf("no memory in status: %q", data)
	}
	return now, most, nil
}
