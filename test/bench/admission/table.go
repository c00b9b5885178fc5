package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/devicequota/devicequota/test/harness"
)

// median returns the sample with the median throughput, of two the slower one.
func median(s []sample) sample {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b sample) int { return cmp.Compare(a.perSecond, b.perSecond) })
	return s[(len(s)-1)/2]
}

// table writes Markdown: a table per load, with ratios to the do-nothing webhook.
func (b *bench) table(samples map[load]map[string][]sample) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured %s on %d cores (%s) with clients, API server, etcd and managers on the same machine; median of %d rounds, run in turn.\n",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), harness.CPUModel(), len(samples[loads[0]][doNothingName]))
	w.WriteString(verdicts(b.subjects(), samples))
	for _, l := range loads {
		floor := median(samples[l][doNothingName])
		fmt.Fprintf(&w, "\n**%s, %d creates**\n\n", l, int(float64(l.creates)*b.o.scale))
		w.WriteString("| | creates/s | of do-nothing | p50 | p99 | p99 of do-nothing | webhook CPU per create | API server and etcd CPU per create | ledger PUTs per create | failures |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
		for _, s := range b.subjects() {
			x := median(samples[l][s.name])
			failed := int64(0)
			for _, r := range samples[l][s.name] {
				failed += r.failed
			}
			cpu, puts := "-", "-"
			if x.webhook {
				cpu = x.cpu.Round(10 * time.Microsecond).String()
			}
			if x.ledger {
				puts = fmt.Sprintf("%.3f", x.puts)
			}
			fmt.Fprintf(&w, "| %s | %.0f | %.2f | %v | %v | %.2f | %s | %v | %s | %d |\n", s.name, x.perSecond, x.perSecond/floor.perSecond,
				x.p50.Round(100*time.Microsecond), x.p99.Round(100*time.Microsecond), float64(x.p99)/float64(floor.p99),
				cpu, x.server.Round(10*time.Microsecond), puts, failed)
		}
	}
	return w.String()
}

// statusCode returns the HTTP code of an API server's answer, 0 when it is none.
func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return status.Status().Code
}

// waitFor polls until f returns nil, at most a minute.
func waitFor(ctx context.Context, f func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		last = f(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}
