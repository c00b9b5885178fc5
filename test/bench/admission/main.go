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
	"time"

	"github.com/devicequota/devicequota/test/harness"
)

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "rounds per cell, at most; the median is shown")
	flag.DurationVar(&o.limit, "limit", 7*time.Minute, "no round begins that would probably end later")
	flag.Float64Var(&o.scale, "scale", 1, "factor on the creates per round")
	flag.StringVar(&o.only, "only", "", "regular expression: only cells whose \"subject, load\" it matches; the table needs all")
	flag.StringVar(&o.profiles, "profiles", "", "folder for CPU profiles and metrics of each cell, its first 8 s; empty: none")
	flag.BoolVar(&o.reviews, "reviews", false, "only compare the CPU of one answer, without an API server")
	flag.StringVar(&o.nothing, "serve-nothing", "", "serve a webhook that does nothing at this address, and nothing else; for the benchmark itself")
	flag.StringVar(&o.certDir, "cert-dir", "", "with -serve-nothing: folder of tls.crt and tls.key")
	flag.StringVar(&o.write, "write", "", "Markdown file whose section between the admission markers is replaced; empty: print")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	switch {
	case o.nothing != "":
		err = serveNothing(ctx, o.nothing, o.certDir)
	case o.reviews:
		err = printReviews()
	default:
		err = run(ctx, o)
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	rounds                int
	scale                 float64
	write, only, profiles string
	limit                 time.Duration
	reviews               bool
	nothing, certDir      string
}

func printReviews() error {
	line, err := reviews()
	if err != nil {
		return err
	}
	_, err = fmt.Print(line)
	return err
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
	review, err := reviews()
	if err != nil {
		return err
	}
	table += review
	if o.write == "" {
		_, err = fmt.Print(table)
		return err
	}
	return harness.ReplaceSection(o.write, "admission", table)
}
