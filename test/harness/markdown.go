package harness

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// ReplaceSection replaces what stands between a section's markers in a Markdown file,
// <!-- section:begin --> and <!-- section:end --> on lines of their own. The error tells that one
// is missing.
func ReplaceSection(file, section, text string) error {
	begin, end := "<!-- "+section+":begin -->\n", "<!-- "+section+":end -->\n"
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(data), begin)
	if !found {
		return fmt.Errorf("%s: no %q", file, strings.TrimSpace(begin))
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return fmt.Errorf("%s: no %q after %q", file, strings.TrimSpace(end), strings.TrimSpace(begin))
	}
	return os.WriteFile(file, []byte(before+begin+text+end+after), 0o644)
}

// CPUModel returns the processor's name as the kernel knows it.
func CPUModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range bytes.Lines(data) {
		if name, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
