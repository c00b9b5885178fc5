// Package cli is the command line of kubectl-devicequota.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
)

// Exit codes.
const (
	// ExitOK: everything is admitted, passed or in order.
	ExitOK = 0
	// ExitNo: something was denied, failed or was found.
	ExitNo = 1
	// ExitBad: the question could not be answered: bad input, or the cluster did not answer.
	ExitBad = 2
)

// errNo ends a command with ExitNo; everything has been said already.
var errNo = errors.New("no")

// options are what all commands share.
type options struct {
	genericiooptions.IOStreams
	version string
	output  string
	// noHeaders leaves headings out.
	noHeaders bool
}

// Run runs the command line and returns the exit code. Data is written to Out, anything else to ErrOut.
func Run(ctx context.Context, args []string, version string, streams genericiooptions.IOStreams) int {
	ctx = log.IntoContext(ctx, logr.Discard())
	cmd := newCommand(version, streams)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, errNo):
		return ExitNo
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(streams.ErrOut, "error: "+strings.TrimRight(line, "\n"))
	}
	return ExitBad
}

func newCommand(version string, streams genericiooptions.IOStreams) *cobra.Command {
	o := &options{IOStreams: streams, version: version}
	cmd := &cobra.Command{
		Use:   "kubectl-devicequota",
		Short: "Ask whether devices fit their quotas, and why not",
		Long: "Ask whether claims, pods and workloads fit the device quotas of their projects, and why not:\n" +
			"offline from manifests, or in a cluster. The decisions are those of the devicequota webhooks.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl devicequota"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       app.Version(version),
	}
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	cmd.SetIn(streams.In)
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w\nsee '%s --help'", err, c.CommandPath())
	})
	cmd.AddCommand(newCheck(o), newTest(o), newExplain(o), newUsage(o), newDoctor(o), newVersion(o))
	return cmd
}

func newVersion(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := app.VersionText(o.version, o.output)
			if err != nil {
				return err
			}
			_, err = io.WriteString(o.Out, text)
			return err
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "json, or nothing for text")
	return cmd
}

// addOutput adds the flags of commands that write tables.
func (o *options) addOutput(cmd *cobra.Command, forms ...string) {
	cmd.Flags().StringVarP(&o.output, "output", "o", "", strings.Join(forms, ", ")+"; a table by default")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "leave the headings of tables out")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
}

// style says how text is written to Out.
func (o *options) style() report.Style {
	tty := terminal(o.Out)
	return report.Style{NoHeaders: o.noHeaders, Terminal: tty, Colour: tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// terminal tells whether somebody looks at what is written.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// lines prints text line by line to ErrOut.
func (o *options) say(format string, args ...any) {
	fmt.Fprintf(o.ErrOut, format+"\n", args...)
}
