package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// generator makes a module; what it runs writes to output.
type generator func(ctx context.Context, output io.Writer) (module, error)

// builder builds components of one version into one folder.
type builder struct {
	module   module        // what is built; only its version is known before generate
	generate generator     // makes the module of a version that go.mod does not pin; nil otherwise
	dir      string        // results: one program, its .inputs and its .log per component
	out      io.Writer     // progress
	every    time.Duration // between progress lines
	goTool   func(ctx context.Context, dir string, output io.Writer, args ...string) error
}

// build builds the components that are missing or out of date, one after another.
func (b *builder) build(ctx context.Context, components []component) error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	if b.generate == nil && len(b.stale(components)) == 0 {
		fmt.Fprintf(b.out, "controlplane: %s is up to date\n", b.dir)
		return nil
	}
	unlock, err := lock(filepath.Join(b.dir, ".lock"), b.out)
	if err != nil {
		return err
	}
	defer unlock()

	if b.generate != nil {
		fmt.Fprintf(b.out, "controlplane: resolving the modules of Kubernetes %s\n", b.module.kubernetes)
		p := startProgress(b.out, "modules of "+b.module.kubernetes, b.every)
		b.module, err = b.generate(ctx, p)
		p.stop()
		if err != nil {
			return fmt.Errorf("modules of Kubernetes: %w\n%s", err, p.tail())
		}
	}
	stale := b.stale(components) // again: another process may have built them meanwhile
	if len(stale) == 0 {
		fmt.Fprintf(b.out, "controlplane: %s is up to date\n", b.dir)
		return nil
	}
	var names []string
	var cold time.Duration
	for _, c := range stale {
		names = append(names, c.name)
		cold += c.cold
	}
	fmt.Fprintf(b.out, "controlplane: building %s %s into %s: once, about %v on two cores when nothing is cached yet\n",
		strings.Join(names, ", "), b.module.kubernetes, b.dir, cold)
	for _, c := range stale {
		if err := b.buildOne(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// stale returns the components whose program is missing or was made from other inputs.
func (b *builder) stale(components []component) []component {
	var stale []component
	for _, c := range components {
		program := filepath.Join(b.dir, c.name)
		have, err := os.ReadFile(program + ".inputs")
		if _, statErr := os.Stat(program); err != nil || statErr != nil || string(have) != b.inputs(c) {
			stale = append(stale, c)
		}
	}
	return stale
}

// inputs is a fingerprint of all that a program is made from.
func (b *builder) inputs(c component) string {
	h := sha256.New()
	for _, part := range append([]string{runtime.Version(), runtime.GOOS, runtime.GOARCH, b.module.content}, b.buildArgs(c)...) {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)) + "\n"
}

// buildArgs are the arguments of go build that shape the program, without its place.
func (b *builder) buildArgs(c component) []string {
	ldflags := "-s -w"
	if c.name != "etcd" {
		// Without these the API server reports v0.0.0-master, which clients refuse to negotiate with.
		part := strings.SplitN(b.module.kubernetes, ".", 3)
		ldflags += " -X k8s.io/component-base/version.gitVersion=v" + b.module.kubernetes +
			" -X k8s.io/component-base/version.gitMajor=" + part[0] +
			" -X k8s.io/component-base/version.gitMinor=" + part[1]
	}
	return []string{"-mod=readonly", "-trimpath", "-ldflags", ldflags, c.pkg}
}

// buildOne builds one program and puts it, then its fingerprint, in place.
func (b *builder) buildOne(ctx context.Context, c component) error {
	program := filepath.Join(b.dir, c.name)
	if err := os.Remove(program + ".inputs"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := os.Create(program + ".log")
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()

	partial := program + ".partial"
	defer func() { _ = os.Remove(partial) }()
	fmt.Fprintf(b.out, "controlplane: %s %s: building, about %v when nothing is cached\n", c.name, b.module.kubernetes, c.cold)
	p := startProgress(b.out, c.name+" "+b.module.kubernetes, b.every)
	err = b.goTool(ctx, b.module.dir, io.MultiWriter(log, p), append([]string{"build", "-v", "-o", partial}, b.buildArgs(c)...)...)
	elapsed := p.stop()
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w; its last lines (all of them: %s):\n%s", err, log.Name(), p.tail())
	}
	if err := os.Rename(partial, program); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "controlplane: %s %s: built in %v\n", c.name, b.module.kubernetes, elapsed)
	return writeFile(program+".inputs", b.inputs(c))
}

// writeFile replaces the file at once, so that nobody reads a part of it.
func writeFile(name, content string) error {
	if err := os.WriteFile(name+".partial", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".partial", name)
}

// lock waits for the exclusive lock on the file and returns what releases it. The
// lock ends with the process, however that ends.
func lock(name string, out io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		fmt.Fprintf(out, "controlplane: waiting for another build, which holds %s\n", name)
		for {
			if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("locking %q: %w", name, err)
	}
	return func() { _ = file.Close() }, nil
}

// runGo runs the go command in the folder. Both its outputs go to output.
func runGo(ctx context.Context, dir string, output io.Writer, args ...string) error {
	cmd := goCommand(ctx, dir, args...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

// goOutput returns what the go command prints to its standard output, also when it fails.
func goOutput(ctx context.Context, dir string, args ...string) ([]byte, error) {
	output, err := goCommand(ctx, dir, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return output, fmt.Errorf("go %s: %w: %s", args[0], err, bytes.TrimSpace(exit.Stderr))
	}
	return output, err
}

// goCommand prepares a run of the go command that an end of ctx interrupts.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
