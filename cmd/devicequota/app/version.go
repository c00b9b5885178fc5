package app

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version returns the version: the released one if there is one, else the module's, else the
// commit that the binary was built from.
func Version(released string) string {
	if released != "" {
		return released
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return "devel"
	}
	return revision[:min(12, len(revision))] + dirty
}

// VersionText returns the version for people, or as JSON.
func VersionText(released, output string) (string, error) {
	v := Version(released)
	switch output {
	case "":
		return "devicequota " + v + "\n", nil
	case "json":
		b, err := json.MarshalIndent(map[string]string{"version": v, "goVersion": runtime.Version(),
			"platform": runtime.GOOS + "/" + runtime.GOARCH}, "", "  ")
		return string(b) + "\n", err
	}
	return "", fmt.Errorf("output %q: want json or nothing", output)
}
