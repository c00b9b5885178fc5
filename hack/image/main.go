// Command image builds the manager for each platform and writes an OCI image layout: one
// index, one image and one SBOM (SPDX) per platform. It needs Go only, no container engine
// and no network. The same sources and version give the same digest.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// options of a build.
type options struct {
	root, out, version, goCmd string
	platforms                 []string
	created                   time.Time
}

func main() {
	o := options{}
	var platforms, created string
	flag.StringVar(&o.root, "root", ".", "root folder of the repository")
	flag.StringVar(&o.out, "out", "dist/image", "folder to write; it is replaced")
	flag.StringVar(&o.version, "version", "v0.0.0-dev", "version of the binary")
	flag.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "platforms")
	flag.StringVar(&created, "created", "1970-01-01T00:00:00Z", "time of creation, for example that of the commit")
	flag.Parse()
	o.platforms, o.goCmd = strings.Split(platforms, ","), "go"
	var err error
	if o.created, err = time.Parse(time.RFC3339, created); err == nil {
		var digest string
		if digest, err = build(o); err == nil {
			fmt.Println(digest)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// compile builds the manager for a platform and returns the binary's path.
func compile(o options, platform, dir string) (string, error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return "", fmt.Errorf("platform %q: want OS/ARCH", platform)
	}
	binary := filepath.Join(dir, "devicequota-"+goarch)
	cmd := exec.Command(o.goCmd, "build", "-ldflags", "-s -w -buildid= -X main.version="+o.version, "-o", binary, "./cmd/devicequota")
	cmd.Dir = o.root
	// What a developer has set for himself must not be in a release.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch,
		"GOFLAGS=-trimpath -buildvcs=false", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build for %s: %w", platform, err), errors.New(string(out)))
	}
	return binary, nil
}
