package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// standIn is built in place of the program: what is proven here is the packing.
const standIn = `package main

import "fmt"

var version string

func main() { fmt.Println("devicequota", version) }
`

// buildStandIn builds it for this machine; the other platforms get some bytes.
func buildStandIn(o *options, goos, goarch, file string) error {
	if goos != runtime.GOOS || goarch != runtime.GOARCH {
		return os.WriteFile(file, []byte(goos+"/"+goarch), 0o600)
	}
	source := file + ".go"
	if err := os.WriteFile(source, []byte(standIn), 0o600); err != nil {
		return err
	}
	out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-buildid= -X main.version="+o.version, "-o", file, source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func buildInto(t *testing.T, dir string) {
	t.Helper()
	o := &options{root: filepath.Join("..", ".."), out: dir, version: "v1.2.3", platforms: strings.Split(platforms, ","),
		created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), compile: buildStandIn}
	if err := build(o); err != nil {
		t.Fatal(err)
	}
}

// tool runs one of krew's own programs.
func tool(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestTheSameSourcesGiveTheSameBytes(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	buildInto(t, a)
	buildInto(t, b)
	files, err := os.ReadDir(a)
	if err != nil || len(files) != 8 {
		t.Fatalf("want 6 archives, the checksums and the manifest, got %v, error %v", files, err)
	}
	sums, err := os.ReadFile(filepath.Join(a, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		one, err := os.ReadFile(filepath.Join(a, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(filepath.Join(b, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if string(one) != string(other) {
			t.Errorf("%s differs between two builds", f.Name())
		}
		if strings.HasSuffix(f.Name(), ".tar.gz") && !strings.Contains(string(sums), fmt.Sprintf("%x  %s\n", sha256.Sum256(one), f.Name())) {
			t.Errorf("no checksum of %s in\n%s", f.Name(), sums)
		}
	}
}

// krew's own programs take the manifest, and install the plugin from it.
func TestKrewInstallsThePlugin(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dist")
	buildInto(t, dir)
	file := filepath.Join(dir, "devicequota.yaml")
	tool(t, nil, "validate-krew-manifest", "-skip-install", "-manifest", file)

	root := t.TempDir()
	archive := filepath.Join(dir, fmt.Sprintf("%s_%s_%s.tar.gz", program, runtime.GOOS, runtime.GOARCH))
	tool(t, []string{"KREW_ROOT=" + root, "KREW_NO_UPGRADE_CHECK=1"}, "krew", "install", "--manifest="+file, "--archive="+archive)
	out, err := exec.Command(filepath.Join(root, "bin", program), "version").CombinedOutput()
	if err != nil || string(out) != "devicequota v1.2.3\n" {
		t.Errorf("the installed plugin says %q, error %v", out, err)
	}
}

func TestOddOptionsAreErrors(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*options{
		"a version without v":         {version: "1.2.3"},
		"a version of no release":     {version: "3f139c4"},
		"a platform without slash":    {version: "v1.2.3", platforms: []string{"linux"}},
		"a program that is not there": {version: "v1.2.3", platforms: []string{"linux/amd64"}, compile: func(*options, string, string, string) error { return nil }},
	} {
		o.out = filepath.Join(t.TempDir(), "out")
		if err := build(o); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}
