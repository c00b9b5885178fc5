package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// platform is built twice; one is enough to see what the image is.
const platform = "linux/" + runtime.GOARCH

func buildInto(t *testing.T, dir string) string {
	t.Helper()
	digest, err := build(options{root: root(), out: dir, version: "v1.2.3", goCmd: "go", platforms: []string{platform}, created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	digest := buildInto(t, dir)
	t.Setenv("GOFLAGS", "-tags=mine")
	t.Setenv("GOAMD64", "v2")
	t.Setenv("GOARM64", "v8.1")
	if again := buildInto(t, filepath.Join(t.TempDir(), "out")); again != digest {
		t.Errorf("two builds give %s and %s", digest, again)
	}
	outer, err := layout.ImageIndexFromPath(filepath.Join(dir, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	outerManifest, err := outer.IndexManifest()
	if err != nil || len(outerManifest.Manifests) != 1 || outerManifest.Manifests[0].Digest.String() != digest {
		t.Fatalf("layout: %v, %v", outerManifest, err)
	}
	index, err := outer.ImageIndex(outerManifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("index: %v, %v", manifest, err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	checkConfig(t, img)
	checkFiles(t, img)
	checkSBOM(t, filepath.Join(dir, "sbom-"+runtime.GOARCH+".spdx.json"))
}

func checkConfig(t *testing.T, img v1.Image) {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.User != "65532:65532" || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/devicequota" {
		t.Errorf("user %q, entrypoint %q", c.Config.User, c.Config.Entrypoint)
	}
	if c.Config.Labels["org.opencontainers.image.version"] != "v1.2.3" {
		t.Errorf("labels %v", c.Config.Labels)
	}
}

func checkFiles(t *testing.T, img v1.Image) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	modes := map[string]int64{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		modes[h.Name] = h.Mode
		if h.Name == "devicequota" && runtime.GOOS == "linux" {
			checkVersion(t, r)
		}
	}
	if len(modes) != 3 || modes["devicequota"] != 0o755 || modes["licenses/LICENSE"] != 0o644 {
		t.Errorf("files %v", modes)
	}
}

// checkVersion runs the image's program.
func checkVersion(t *testing.T, content io.Reader) {
	t.Helper()
	data, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "devicequota")
	if err := os.WriteFile(program, data, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v1.2.3") {
		t.Errorf("version of v1.2.3: %q, %v", out, err)
	}
}

func checkSBOM(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc spdx
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	ids, found := map[string]bool{}, map[string]bool{}
	for _, p := range doc.Packages {
		if ids[p.SPDXID] {
			t.Errorf("two packages have the ID %s", p.SPDXID)
		}
		ids[p.SPDXID], found[p.Name] = true, true
	}
	for _, name := range []string{"github.com/devicequota/devicequota", "stdlib", "k8s.io/api", "sigs.k8s.io/controller-runtime"} {
		if !found[name] {
			t.Errorf("the SBOM has no %s", name)
		}
	}
	if len(doc.Relationships) != len(doc.Packages) {
		t.Errorf("%d packages, %d relationships", len(doc.Packages), len(doc.Relationships))
	}
}
