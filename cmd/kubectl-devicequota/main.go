// Command kubectl-devicequota is the kubectl plugin "kubectl devicequota": it answers, with the
// product's own code, whether objects fit device quotas and why, offline or against a cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/cli"
)

// version is set by release builds: -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], version, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
