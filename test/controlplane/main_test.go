package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSelectComponents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, args, want string
	}{
		{"no names mean what tests need", "", "etcd kube-apiserver"},
		{"named ones come in build order", "kube-scheduler etcd", "etcd kube-scheduler"},
		{"all means all", "all", "etcd kube-apiserver kube-controller-manager kube-scheduler"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := selectComponents(strings.Fields(tc.args))
			if err != nil {
				t.Fatal(err)
			}
			if names(got) != tc.want {
				t.Errorf("selected %q, want %q", names(got), tc.want)
			}
		})
	}
	if _, err := selectComponents([]string{"kubelet"}); err == nil || !strings.Contains(err.Error(), `unknown component "kubelet"`) {
		t.Errorf("an unknown name gave %v", err)
	}
}

func names(components []component) string {
	var all []string
	for _, c := range components {
		all = append(all, c.name)
	}
	return strings.Join(all, " ")
}

func TestCacheRootFollowsXDGThenHome(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		flag, want string
		env        map[string]string
	}{
		{env: map[string]string{"HOME": "/h"}, want: "/h/.cache/devicequota/controlplane"},
		{env: map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/x"}, want: "/x/devicequota/controlplane"},
		{env: map[string]string{"HOME": "/h"}, flag: "/f", want: "/f"},
	} {
		got, err := cacheRoot(tc.flag, func(name string) string { return tc.env[name] })
		if err != nil || got != tc.want {
			t.Errorf("flag %q, environment %v: got %q, %v; want %q", tc.flag, tc.env, got, err, tc.want)
		}
	}
	if got, err := cacheRoot("", func(string) string { return "" }); err == nil {
		t.Errorf("without HOME: got %q, want an error", got)
	}
}

func TestAssetsOfTheUserReplaceTheBuild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := func(name string) string {
		if name == "KUBEBUILDER_ASSETS" {
			return dir
		}
		return ""
	}
	write(t, filepath.Join(dir, "etcd"), "")
	err := run(t.Context(), nil, env, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "lacks kube-apiserver;") {
		t.Errorf("with kube-apiserver missing: %v", err)
	}
	write(t, filepath.Join(dir, "kube-apiserver"), "")
	if err := run(t.Context(), nil, env, io.Discard); err != nil {
		t.Errorf("with all there: %v", err)
	}
}

// fakeGo writes the output file of go build and remembers the packages built.
type fakeGo struct {
	built []string
	fail  error
}

func (f *fakeGo) run(_ context.Context, _ string, output io.Writer, args ...string) error {
	f.built = append(f.built, args[len(args)-1])
	if f.fail != nil {
		_, _ = io.WriteString(output, "a/package\nfile.go:1:2: it does not compile\n")
		return f.fail
	}
	return os.WriteFile(args[slices.Index(args, "-o")+1], []byte("program"), 0o755)
}

func newBuilder(t *testing.T, f *fakeGo) *builder {
	t.Helper()
	return &builder{
		module: module{kubernetes: "1.37.2", content: "inputs"},
		dir:    filepath.Join(t.TempDir(), "1.37.2"),
		out:    io.Discard,
		every:  time.Hour,
		goTool: f.run,
	}
}

func TestBuildSkipsWhatIsUpToDate(t *testing.T) {
	t.Parallel()
	f := &fakeGo{}
	b := newBuilder(t, f)
	build := func(want int, why string) {
		t.Helper()
		f.built = nil
		if err := b.build(t.Context(), components()); err != nil {
			t.Fatal(err)
		}
		if len(f.built) != want {
			t.Errorf("%s: built %q, want %d programs", why, f.built, want)
		}
	}
	build(4, "first run")
	build(0, "second run")
	if err := os.Remove(filepath.Join(b.dir, "kube-scheduler")); err != nil {
		t.Fatal(err)
	}
	build(1, "one program is gone")
	b.module.content = "other inputs"
	build(4, "the module changed")
}

func TestFailedBuildLeavesNoProgramAndShowsTheCompilersWords(t *testing.T) {
	t.Parallel()
	f := &fakeGo{fail: errors.New("go build: exit status 1")}
	b := newBuilder(t, f)
	err := b.build(t.Context(), components())
	if err == nil || !strings.HasPrefix(err.Error(), "etcd: go build: exit status 1") || !strings.Contains(err.Error(), "it does not compile") {
		t.Errorf("got %v", err)
	}
	if len(b.stale(components())) != 4 {
		t.Error("a failed build counts as up to date")
	}
	if _, err := os.Stat(filepath.Join(b.dir, "etcd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed build left a program: %v", err)
	}
	f.fail = nil
	if err := b.build(t.Context(), components()); err != nil {
		t.Errorf("the next run: %v", err)
	}
}

func TestFailedRebuildIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := &fakeGo{}
	b := newBuilder(t, f)
	if err := b.build(t.Context(), components()); err != nil {
		t.Fatal(err)
	}
	old := b.module.content
	b.module.content, f.fail = "other inputs", errors.New("interrupted")
	if err := b.build(t.Context(), components()); err == nil {
		t.Fatal("the failure was lost")
	}
	b.module.content, f.fail, f.built = old, nil, nil
	if err := b.build(t.Context(), components()); err != nil {
		t.Fatal(err)
	}
	if len(f.built) != 1 {
		t.Errorf("built %q, want only the program whose rebuild failed", f.built)
	}
}

func TestLockIsExclusive(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), ".lock")
	unlock, err := lock(name, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{})
	second := make(chan error, 1)
	go func() {
		unlock, err := lock(name, writerFunc(func(b []byte) (int, error) { close(waiting); return len(b), nil }))
		if err == nil {
			unlock()
		}
		second <- err
	}()
	<-waiting
	if len(second) > 0 {
		t.Error("the second got the lock while the first held it")
	}
	unlock()
	if err := <-second; err != nil {
		t.Errorf("the second after the first: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestProgressCountsLinesThatArriveInPieces(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := startProgress(&out, "etcd 1.37.2", time.Hour)
	for _, piece := range []string{"go: downloading a v1", ".0.0\nb", "/c\nd/e\nsome error", " text\nrest"} {
		if _, err := io.WriteString(p, piece); err != nil {
			t.Fatal(err)
		}
	}
	p.stop()
	p.report()
	if want := "1 modules downloaded, 2 packages compiled\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want it to end in %q", out.String(), want)
	}
	if want := "go: downloading a v1.0.0\nb/c\nd/e\nsome error text\nrest"; p.tail() != want {
		t.Errorf("tail is %q, want %q", p.tail(), want)
	}
}

func TestPinnedModuleIsConsistent(t *testing.T) {
	t.Parallel()
	m, err := readModule(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := parseGoMod(t.Context(), "go.mod")
	if err != nil {
		t.Fatal(err)
	}
	minor := strings.TrimPrefix(m.kubernetes, "1.")
	for _, r := range mod.Require {
		if strings.HasPrefix(r.Path, "k8s.io/api") && r.Version != "v0.0.0" && r.Version != "v0."+minor {
			t.Errorf("%s %s does not belong to Kubernetes %s", r.Path, r.Version, m.kubernetes)
		}
	}
}

func TestTemplateReplacesStagingModules(t *testing.T) {
	t.Parallel()
	upstream := goMod{Go: "1.24.0"}
	for path, version := range map[string]string{etcdClientModule: "v3.6.4", "k8s.io/klog/v2": "v2.130.1", "k8s.io/client-go": "v0.0.0", "k8s.io/api": "v0.0.0"} {
		upstream.Require = append(upstream.Require, struct{ Path, Version string }{path, version})
	}
	got, err := templateGoMod(upstream, "1.34.9")
	if err != nil {
		t.Fatal(err)
	}
	want := `module github.com/devicequota/devicequota/test/controlplane

go 1.24.0

require (
	go.etcd.io/etcd/server/v3 v3.6.4
	k8s.io/kubernetes v1.34.9
)

replace (
	k8s.io/api => k8s.io/api v0.34.9
	k8s.io/client-go => k8s.io/client-go v0.34.9
)
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if _, err := templateGoMod(goMod{}, "1.34.9"); err == nil {
		t.Error("a go.mod without etcd was accepted")
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}
