package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	kubernetesModule = "k8s.io/kubernetes"
	etcdServerModule = "go.etcd.io/etcd/server/v3"
	etcdClientModule = "go.etcd.io/etcd/client/v3"
)

// module is a Go module from which the components build.
type module struct {
	dir        string // absolute
	kubernetes string // version of k8s.io/kubernetes, without v
	content    string // of all files that decide what is built
}

// moduleFiles decide, with the go command and its flags, what is built.
func moduleFiles() []string { return []string{"go.mod", "go.sum", "etcd/main.go"} }

// readModule reads a module that is ready to build.
func readModule(ctx context.Context, dir string) (module, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return module{}, err
	}
	m := module{dir: dir}
	for _, name := range moduleFiles() {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return module{}, fmt.Errorf("module folder %q: %w", dir, err)
		}
		m.content += name + "\n" + string(content)
	}
	mod, err := parseGoMod(ctx, filepath.Join(dir, "go.mod"))
	if err != nil {
		return module{}, err
	}
	if m.kubernetes = strings.TrimPrefix(mod.version(kubernetesModule), "v"); m.kubernetes == "" {
		return module{}, fmt.Errorf("module folder %q: go.mod does not require %s", dir, kubernetesModule)
	}
	return m, nil
}

// goMod is the part of `go mod edit -json` that is used here.
type goMod struct {
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
}

// version returns the required version of the module, empty if it is not required.
func (m goMod) version(path string) string {
	for _, r := range m.Require {
		if r.Path == path {
			return r.Version
		}
	}
	return ""
}

func parseGoMod(ctx context.Context, file string) (goMod, error) {
	output, err := goOutput(ctx, filepath.Dir(file), "mod", "edit", "-json", file)
	if err != nil {
		return goMod{}, err
	}
	var mod goMod
	if err := json.Unmarshal(output, &mod); err != nil {
		return goMod{}, fmt.Errorf("%q: %w", file, err)
	}
	return mod, nil
}

// generateModule returns the module of another Kubernetes version, which it makes in
// the folder unless it is there already. It is tidied through the module proxy.
func generateModule(ctx context.Context, pinned module, version, dir string, output io.Writer) (module, error) {
	if m, err := readModule(ctx, dir); err == nil && m.kubernetes == version {
		return m, nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return module{}, err
	}
	upstream, err := downloadGoMod(ctx, pinned.dir, version)
	if err != nil {
		return module{}, err
	}
	mod, err := templateGoMod(upstream, version)
	if err != nil {
		return module{}, err
	}
	partial := dir + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.RemoveAll(dir), os.MkdirAll(filepath.Join(partial, "etcd"), 0o755)); err != nil {
		return module{}, err
	}
	if err := os.WriteFile(filepath.Join(partial, "go.mod"), []byte(mod), 0o644); err != nil {
		return module{}, err
	}
	for _, name := range []string{"requirements.go", "etcd/main.go"} {
		content, err := os.ReadFile(filepath.Join(pinned.dir, name))
		if err != nil {
			return module{}, err
		}
		if err := os.WriteFile(filepath.Join(partial, name), content, 0o644); err != nil {
			return module{}, err
		}
	}
	if err := runGo(ctx, partial, output, "mod", "tidy"); err != nil {
		return module{}, err
	}
	if err := os.Rename(partial, dir); err != nil {
		return module{}, err
	}
	return readModule(ctx, dir)
}

// downloadGoMod returns the go.mod of k8s.io/kubernetes at the version.
func downloadGoMod(ctx context.Context, dir, version string) (goMod, error) {
	output, err := goOutput(ctx, dir, "mod", "download", "-json", kubernetesModule+"@v"+version)
	var info struct{ GoMod, Error string }
	if jsonErr := json.Unmarshal(output, &info); jsonErr == nil && info.Error != "" {
		return goMod{}, errors.New(info.Error)
	}
	if err != nil {
		return goMod{}, err
	}
	return parseGoMod(ctx, info.GoMod)
}

// templateGoMod writes the go.mod for a Kubernetes version: upstream requires each
// staging module at v0.0.0, and its published version is v0.<minor>.<patch>.
func templateGoMod(upstream goMod, version string) (string, error) {
	_, minor, found := strings.Cut(version, ".")
	etcd := upstream.version(etcdClientModule)
	if !found || etcd == "" {
		return "", fmt.Errorf("version %q: no etcd version in its go.mod, or not of the form 1.x.y", version)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "module github.com/devicequota/devicequota/test/controlplane\n\ngo %s\n\n", upstream.Go)
	fmt.Fprintf(&b, "require (\n\t%s %s\n\t%s v%s\n)\n\nreplace (\n", etcdServerModule, etcd, kubernetesModule, version)
	var staging []string
	for _, r := range upstream.Require {
		if r.Version == "v0.0.0" {
			staging = append(staging, r.Path)
		}
	}
	slices.Sort(staging)
	for _, path := range staging {
		fmt.Fprintf(&b, "\t%s => %s v0.%s\n", path, path, minor)
	}
	b.WriteString(")\n")
	return b.String(), nil
}
