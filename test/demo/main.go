// Command demo plays the main job from nothing: a real kube-apiserver, the shipped CRDs and
// webhooks, the manager, and claims that are admitted, denied, allocated and projected. It
// prints what it expects and what happens, and exits non-zero if anything differs.
//
// With STAY=1 it stays up afterwards and prints a kubeconfig to play with.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/devicequota/devicequota/test/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Getenv("STAY") == "1")
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// run plays the demo and returns an error if anything differed from what was expected.
func run(ctx context.Context, out io.Writer, stay bool) (err error) {
	begun := time.Now()
	fmt.Fprintln(out, "Starting etcd and kube-apiserver on loopback ...")
	cp, err := harness.Start(harness.Options{OldVersions: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	fmt.Fprintln(out, "Installing the CRDs, roles, flow schema and webhooks from config/ ...")
	if err := cp.Install(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "Starting the manager as its own ServiceAccount ...")
	m, err := cp.StartManager(ctx, harness.ManagerOptions{Args: []string{"--allocation=all"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	fmt.Fprintf(out, "Ready after %s.\n", time.Since(begun).Round(100*time.Millisecond))

	p := &player{ctx: ctx, out: out, cp: cp}
	p.play()
	if err := p.result(); err != nil {
		fmt.Fprintf(out, "\nThe manager's last log lines:\n%s\n", m.LogTail(40))
		return err
	}
	if !stay {
		fmt.Fprintln(out, "\nSTAY=1 make demo stays up and prints a kubeconfig to play with.")
		return nil
	}
	fmt.Fprintf(out, "\nThe cluster stays up until Ctrl-C. Play with it:\n\n  export KUBECONFIG=%s\n"+
		"  kubectl get clusterresourcequotas,deviceledgers\n  kubectl create -f examples/claims/one-gpu.yaml\n\n", cp.Kubeconfig)
	<-ctx.Done()
	return nil
}
