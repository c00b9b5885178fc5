// Command admission measures creates of device claims per second and their latency, side by
// side in one run on one API server: without any quota, with a webhook that does nothing (the
// floor for any webhook), with Kubernetes' own ResourceQuota, and with devicequota.
//
// All of it, clients included, shares one machine: only the ratios mean something.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/devicequota/devicequota/test/harness"
)

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "rounds per cell; the median is shown")
	flag.Float64Var(&o.scale, "scale", 1, "factor on the creates per round")
	flag.StringVar(&o.write, "write", "", "Markdown file whose section between the admission markers is replaced; empty: print")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	rounds int
	scale  float64
	write  string
}

func run(ctx context.Context, o options) (err error) {
	cp, err := harness.Start(harness.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an open watch would keep the API server
	if err := cp.Install(ctx); err != nil {
		return err
	}
	if err := cp.ApplyPath(ctx, harness.Root()+"/examples/cluster"); err != nil {
		return err
	}
	if err := cp.UninstallWebhooks(ctx); err != nil {
		return err
	}
	b, err := newBench(ctx, cp, o)
	if err != nil {
		return err
	}
	table, err := b.measure(ctx)
	if err != nil {
		return err
	}
	if o.write == "" {
		_, err = fmt.Print(table)
		return err
	}
	return replaceSection(o.write, "admission", table)
}
