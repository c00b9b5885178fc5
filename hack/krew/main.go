// Command krew builds kubectl-devicequota for each platform and writes what a release needs for
// krew: one archive per platform, SHA256SUMS and the plugin's manifest. It needs Go only. The same
// sources and version give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed" // the manifest
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"
)

const program = "kubectl-devicequota"

// platforms of a release.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

//go:embed devicequota.yaml.tmpl
var manifest string

// options of a build.
type options struct {
	root, out, version string
	platforms          []string
	created            time.Time
	// compile builds the program for a platform into the file.
	compile func(o *options, goos, goarch, file string) error
}

// archive is what one platform downloads.
type archive struct {
	OS, Arch, Name, Binary, SHA256 string
}

func main() {
	o := options{compile: compile}
	var list, created string
	flag.StringVar(&o.root, "root", ".", "root folder of the repository")
	flag.StringVar(&o.out, "out", "dist/krew", "folder to write; it is replaced")
	flag.StringVar(&o.version, "version", "", "version of the release, as v1.2.3")
	flag.StringVar(&list, "platforms", platforms, "platforms")
	flag.StringVar(&created, "created", "1970-01-01T00:00:00Z", "time of the files, for example that of the commit")
	flag.Parse()
	o.platforms = strings.Split(list, ",")
	var err error
	if o.created, err = time.Parse(time.RFC3339, created); err == nil {
		err = build(&o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
}

// krew takes semantic versions with a v only.
var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// build writes the archives, their checksums and the manifest.
func build(o *options) error {
	if !versions.MatchString(o.version) {
		return fmt.Errorf("version %q: want v1.2.3", o.version)
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var archives []archive
	var sums strings.Builder
	for _, platform := range o.platforms {
		a, err := o.archive(platform)
		if err != nil {
			return err
		}
		archives = append(archives, a)
		fmt.Fprintf(&sums, "%s  %s\n", a.SHA256, a.Name)
	}
	text, err := render(o.version, archives)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.out, "SHA256SUMS"), []byte(sums.String()), 0o644),
		os.WriteFile(filepath.Join(o.out, "devicequota.yaml"), text, 0o644),
	)
}

// render returns the manifest.
func render(version string, archives []archive) ([]byte, error) {
	t, err := template.New("manifest").Option("missingkey=error").Parse(manifest)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct {
		Version  string
		Archives []archive
	}{version, archives})
	return b.Bytes(), err
}

// archive builds the program for the platform and packs it.
func (o *options) archive(platform string) (archive, error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return archive{}, fmt.Errorf("platform %q: want OS/ARCH", platform)
	}
	a := archive{OS: goos, Arch: goarch, Binary: program, Name: fmt.Sprintf("%s_%s_%s.tar.gz", program, goos, goarch)}
	if goos == "windows" {
		a.Binary += ".exe"
	}
	dir, err := os.MkdirTemp("", "krew-")
	if err != nil {
		return a, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	binary := filepath.Join(dir, a.Binary)
	if err := o.compile(o, goos, goarch, binary); err != nil {
		return a, err
	}
	packed, err := o.pack(binary, filepath.Join(o.root, "LICENSE"))
	if err != nil {
		return a, err
	}
	a.SHA256 = fmt.Sprintf("%x", sha256.Sum256(packed))
	return a, os.WriteFile(filepath.Join(o.out, a.Name), packed, 0o644)
}

// pack returns the program and the licence as tar.gz, without anything that differs between machines.
func (o *options) pack(binary, licence string) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(z)
	for _, f := range []struct {
		path string
		mode int64
	}{{licence, 0o644}, {binary, 0o755}} {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return nil, err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(f.path), Mode: f.mode, Size: int64(len(content)), ModTime: o.created, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(t, bytes.NewReader(content)); err != nil {
			return nil, err
		}
	}
	err = errors.Join(t.Close(), z.Close())
	return b.Bytes(), err
}

// compile builds the program for a platform.
func compile(o *options, goos, goarch, file string) error {
	fmt.Fprintf(os.Stderr, "building %s for %s/%s\n", program, goos, goarch)
	cmd := exec.Command("go", "build", "-ldflags", "-s -w -buildid= -X main.version="+o.version, "-o", file, "./cmd/"+program)
	cmd.Dir = o.root
	// What a developer has set for himself must not be in a release.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch,
		"GOFLAGS=-trimpath -buildvcs=false", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("build for %s/%s: %w", goos, goarch, err), errors.New(string(out)))
	}
	return nil
}
