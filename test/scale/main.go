// Command scale measures one manager on a large cluster that a real API server holds: how long
// it takes to be ready, what memory it needs, how fast claims are admitted, and how soon
// projects see what they use. The same is measured on a tenth of that cluster, which shows how
// it grows.
//
// All of it, clients, API server and etcd included, shares one machine. There are no kubelets,
// no controllers and no scheduler: nodes, slices and allocations are written directly.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/devicequota/devicequota/test/harness"
)

func main() {
	debug.SetGCPercent(400) // what measures shall take little of the cores
	var o options
	var sizes string
	flag.StringVar(&sizes, "sizes", "0.1,1,1x2", "sizes to measure, as parts of the full cluster, separated by commas, with x2 where each project has two quotas; none: only show what is kept")
	flag.StringVar(&o.write, "write", "", "Markdown file whose section between the scale markers is replaced; empty: print only")
	flag.StringVar(&o.state, "state", filepath.Join(harness.Root(), "dist", "scale"), "folder that keeps the result of each size, so that sizes can be measured one at a time")
	flag.StringVar(&o.profile, "profile", "", "folder for profiles of the manager and the API server; empty: none")
	flag.DurationVar(&o.load, "load", 40*time.Second, "how long claims are created at a steady rate")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, sizes)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "scale: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	write, state, profile string
	load                  time.Duration
}

func run(ctx context.Context, o options, sizes string) error {
	if err := os.MkdirAll(o.state, 0o755); err != nil {
		return err
	}
	for text := range strings.SplitSeq(sizes, ",") {
		if text == "" {
			continue
		}
		c, err := parseCluster(text)
		if err != nil {
			return err
		}
		r, err := measure(ctx, o, c)
		if err != nil {
			return fmt.Errorf("size %v: %w", c, err)
		}
		if err := keep(o.state, r); err != nil {
			return err
		}
	}
	results, err := kept(o.state)
	if err != nil {
		return err
	}
	text := table(results)
	fmt.Print(text)
	if o.write == "" {
		return nil
	}
	return harness.ReplaceSection(o.write, "scale", text)
}

// keep stores the result of one size.
func keep(dir string, r result) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%v.json", r.Cluster)), append(data, '\n'), 0o644)
}

// kept returns all stored results, smallest first.
func kept(dir string) ([]result, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []result
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var r result
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, r)
	}
	sortResults(out)
	return out, nil
}

// measure starts a control plane, fills it and measures a manager on it.
func measure(ctx context.Context, o options, c cluster) (r result, err error) {
	cp, err := harness.Start(harness.Options{})
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an open watch would keep the API server
	if err := cp.Install(ctx); err != nil {
		return result{}, err
	}
	if err := cp.UninstallWebhooks(ctx); err != nil {
		return result{}, err
	}
	s := &session{o: o, c: c, cp: cp, r: result{Cluster: c, Measured: time.Now().UTC()}}
	for _, phase := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"fill the cluster", s.fill},
		{"create without devicequota", s.baseline},
		{"first start", s.firstStart},
		{"projections are written", s.settled},
		{"restart", s.restart},
		{"changes at rest", s.probeAtRest},
		{"create with devicequota", s.underLoad},
		{"counts are true", s.verify},
		{"create beside plain writes", s.alone},
	} {
		begun := time.Now()
		if err := phase.run(ctx); err != nil {
			return result{}, errors.Join(fmt.Errorf("%s: %w", phase.name, err), s.end())
		}
		fmt.Fprintf(os.Stderr, "size %v: %s: %v\n", c, phase.name, time.Since(begun).Round(10*time.Millisecond))
	}
	return s.r, s.end()
}
