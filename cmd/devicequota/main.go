// Command devicequota is the manager: it serves the admission webhooks and runs the
// reconcilers that keep device quotas true.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
)

func main() {
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "devicequota:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := app.DefaultOptions()
	var kubeconfig, kubecontext string
	cmd := &cobra.Command{
		Use:           "devicequota",
		Short:         "Device quotas for Dynamic Resource Allocation: admission webhooks and reconcilers",
		Version:       app.Version(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			logger := newLogger(&o)
			ctrl.SetLogger(logger)
			klog.SetLogger(logger)
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = kubeconfig
			config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
				&clientcmd.ConfigOverrides{CurrentContext: kubecontext}).ClientConfig()
			if err != nil {
				return err
			}
			config.UserAgent = "devicequota/" + app.Version()
			return app.Run(ctrl.LoggerInto(cmd.Context(), logger), o, config)
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the usual places and, in a pod, its ServiceAccount")
	cmd.Flags().StringVar(&kubecontext, "context", "", "context of the kubeconfig; empty for the current one")
	return cmd
}

func newLogger(o *app.Options) logr.Logger {
	// logr's V(n) is slog's level -n.
	options := &slog.HandlerOptions{Level: slog.Level(-o.LogLevel)}
	if o.LogFormat == "text" {
		return logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, options))
	}
	return logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, options))
}
