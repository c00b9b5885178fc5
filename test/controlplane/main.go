// Command controlplane builds etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler from their Go modules into the user's cache folder:
//
//	go run . [-version 1.37.2] [-module DIR] [-cache DIR] [component ...]
//
// Without components it builds etcd and kube-apiserver; "all" means all four. Each
// program is built under a lock, appears with a rename when it is complete, and is
// built again only when what it is made from has changed, so an interrupted run
// continues where it stopped.
//
// With KUBEBUILDER_ASSETS set nothing is built: the folder it names must hold the
// components.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(1)
	}
}

// run is main with its inputs as parameters: the command line, the environment and
// where progress goes.
func run(ctx context.Context, args []string, getenv func(string) string, out io.Writer) error {
	flags := flag.NewFlagSet("controlplane", flag.ContinueOnError)
	flags.SetOutput(out)
	version := flags.String("version", "", "Kubernetes version to build; default: the one that go.mod requires")
	moduleDir := flags.String("module", ".", "folder of the controlplane module")
	cache := flags.String("cache", "", "folder for the results; default: $XDG_CACHE_HOME/devicequota/controlplane")
	if err := flags.Parse(args); err != nil {
		return err
	}
	components, err := selectComponents(flags.Args())
	if err != nil {
		return err
	}
	if assets := getenv("KUBEBUILDER_ASSETS"); assets != "" {
		return checkAssets(assets, components, out)
	}
	root, err := cacheRoot(*cache, getenv)
	if err != nil {
		return err
	}
	pinned, err := readModule(ctx, *moduleDir)
	if err != nil {
		return err
	}
	b := &builder{
		module: pinned,
		dir:    filepath.Join(root, pinned.kubernetes),
		out:    out,
		every:  15 * time.Second,
		goTool: runGo,
	}
	if want := strings.TrimPrefix(*version, "v"); want != "" && want != pinned.kubernetes {
		b.dir = filepath.Join(root, want)
		b.generate = func(ctx context.Context, output io.Writer) (module, error) {
			return generateModule(ctx, pinned, want, filepath.Join(b.dir, "module"), output)
		}
		b.module = module{kubernetes: want}
	}
	return b.build(ctx, components)
}

// cacheRoot returns the folder that holds one folder per version.
func cacheRoot(flagValue string, getenv func(string) string) (string, error) {
	if flagValue != "" {
		return filepath.Abs(flagValue)
	}
	base := getenv("XDG_CACHE_HOME")
	if base == "" {
		home := getenv("HOME")
		if home == "" {
			return "", errors.New("neither XDG_CACHE_HOME nor HOME is set; name a folder with -cache")
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Abs(filepath.Join(base, "devicequota", "controlplane"))
}

// checkAssets tells whether a folder that the user brings holds the components.
func checkAssets(dir string, components []component, out io.Writer) error {
	var missing []string
	for _, c := range components {
		if info, err := os.Stat(filepath.Join(dir, c.name)); err != nil || !info.Mode().IsRegular() {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("KUBEBUILDER_ASSETS=%q lacks %s; add them, or unset it to have them built", dir, strings.Join(missing, ", "))
	}
	fmt.Fprintf(out, "controlplane: using KUBEBUILDER_ASSETS=%s\n", dir)
	return nil
}

// component is one program of the control plane.
type component struct {
	name     string
	pkg      string        // import path, or a path relative to the module
	cold     time.Duration // how long a build takes on two cores with nothing cached
	optional bool          // built on request only
}

// components lists all programs in the order in which they are built.
func components() []component {
	return []component{
		{name: "etcd", pkg: "./etcd", cold: time.Minute},
		{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", cold: 8 * time.Minute},
		{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", cold: 3 * time.Minute, optional: true},
		{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", cold: time.Minute, optional: true},
	}
}

// selectComponents returns the named components in build order; without names, those
// that are not optional; with the name "all", every one.
func selectComponents(names []string) ([]component, error) {
	var known []string
	var selected []component
	all := slices.Contains(names, "all")
	for _, c := range components() {
		known = append(known, c.name)
		if all || slices.Contains(names, c.name) || len(names) == 0 && !c.optional {
			selected = append(selected, c)
		}
	}
	for _, name := range names {
		if name != "all" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown component %q; known: all, %s", name, strings.Join(known, ", "))
		}
	}
	return selected, nil
}
