package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/scenario"
)

// testOptions are the flags of test.
type testOptions struct {
	*options
	recursive bool
	run       string
	verbose   bool
}

func newTest(o *options) *cobra.Command {
	t := &testOptions{options: o}
	cmd := &cobra.Command{
		Use:   "test DIR|FILE...",
		Short: "Run scenario files: tests of your quotas for CI",
		Long: "Run scenario files: steps that change a cluster in memory, and what is to be expected of it.\n" +
			"docs/cli.md describes the format, examples/scenarios/ has examples.\n\n" +
			"Exit code: 0 all as expected, 1 something was not, 2 bad input.",
		Example: "  kubectl devicequota test examples/scenarios\n  kubectl devicequota test policy/ -R -o junit > report.xml",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return t.test(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.BoolVarP(&t.recursive, "recursive", "R", false, "read the sub-folders of folders, too")
	f.StringVar(&t.run, "run", "", "run only the scenarios whose name contains this")
	f.BoolVarP(&t.verbose, "verbose", "v", false, "print the number of steps and the time of each scenario")
	f.StringVarP(&o.output, "output", "o", "", "junit or json; text by default")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"junit", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (t *testOptions) test(ctx context.Context, paths []string) error {
	if !slices.Contains([]string{"", "junit", "json"}, t.output) {
		return fmt.Errorf("output %q: want junit or json", t.output)
	}
	reader, err := input.NewReader()
	if err != nil {
		return err
	}
	scenarios, err := scenario.Read(reader, paths, t.recursive)
	if err != nil {
		return err
	}
	scenarios = slices.DeleteFunc(scenarios, func(s *scenario.Scenario) bool { return !strings.Contains(s.Metadata.Name, t.run) })
	if len(scenarios) == 0 {
		return errors.New("no scenario found in " + strings.Join(paths, ", "))
	}
	var outcomes []scenario.Outcome
	failed := 0
	for _, s := range scenarios {
		o, err := scenario.Run(ctx, s)
		if err != nil {
			return err
		}
		outcomes = append(outcomes, o)
		if o.Failure != nil {
			failed++
		}
		if t.output == "" {
			t.print(&o)
		}
	}
	if err := t.write(outcomes, failed); err != nil {
		return err
	}
	if failed > 0 {
		return errNo
	}
	return nil
}

// print writes one outcome as test runners do.
func (t *testOptions) print(o *scenario.Outcome) {
	word := "ok  "
	if o.Failure != nil {
		word = "FAIL"
	}
	more := ""
	if t.verbose {
		more = fmt.Sprintf("  (%d steps, %.3fs)", len(o.Scenario.Steps), o.Elapsed.Seconds())
	}
	fmt.Fprintf(t.Out, "%s  %s%s\n", word, o.Scenario.Metadata.Name, more)
	if f := o.Failure; f != nil {
		fmt.Fprintf(t.Out, "      %s:%d: step %d, %s\n", o.Scenario.File, f.Line, f.Step, f.Verb)
		for _, line := range strings.Split(f.String(), "\n") {
			fmt.Fprintf(t.Out, "        %s\n", line)
		}
	}
}

func (t *testOptions) write(outcomes []scenario.Outcome, failed int) error {
	switch t.output {
	case "junit":
		return scenario.JUnit(t.Out, outcomes)
	case "json":
		return scenario.JSON(t.Out, outcomes)
	}
	_, err := fmt.Fprintf(t.Out, "\n%d passed, %d failed\n", len(outcomes)-failed, failed)
	return err
}
