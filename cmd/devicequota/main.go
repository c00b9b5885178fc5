// Command devicequota is the manager: it serves the admission webhooks and runs the
// reconcilers that keep device quotas true.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
)

// version is set by release builds: -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "devicequota:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := app.DefaultOptions()
	o.Version = version
	var kubeconfig, kubecontext, config string
	cmd := &cobra.Command{
		Use:           "devicequota",
		Short:         "Device quotas for Dynamic Resource Allocation: admission webhooks and reconcilers",
		Version:       app.Version(version),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(cmd, config); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			logger := newLogger(&o)
			ctrl.SetLogger(logger)
			klog.SetLogger(logger)
			otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Info("spans not exported", "error", err.Error()) }))
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = kubeconfig
			rest, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
				&clientcmd.ConfigOverrides{CurrentContext: kubecontext}).ClientConfig()
			if err != nil {
				return err
			}
			rest.UserAgent = "devicequota/" + app.Version(version)
			return app.Run(ctrl.LoggerInto(cmd.Context(), logger), o, rest)
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&config, "config", "", "YAML file of kind "+app.ConfigKind+" with the flags' names in camelCase as keys; flags win over it")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the usual places and, in a pod, its ServiceAccount")
	cmd.Flags().StringVar(&kubecontext, "context", "", "context of the kubeconfig; empty for the current one")
	cmd.AddCommand(versionCommand(), verifyCommand())
	return cmd
}

func configure(cmd *cobra.Command, file string) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := app.ApplyConfig(cmd.Flags(), data); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := app.VersionText(version, output)
			fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or empty for plain text")
	return cmd
}

func verifyCommand() *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use: "verify", Short: "Tell whether a manager is ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := app.Verify(cmd.Context(), url)
			fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVar(&url, "url", "http://localhost:8081", "address of the health endpoints")
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
