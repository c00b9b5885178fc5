package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/devicequota/devicequota/test/harness"
)

// result is what was measured on one size.
type result struct {
	Cluster  cluster
	Measured time.Time

	First, Restart  startup
	FirstProjection time.Duration
	Without, With   latencies
	Alone           latencies
	OwnAtRest       []time.Duration
	OwnUnderLoad    []time.Duration
	// EverywhereAtRest is how long it took until all projects saw one change, WritesAtRest the
	// projections that were written for it.
	EverywhereAtRest time.Duration
	WritesAtRest     int64
	Load             load
}

// startup is one start of a manager.
type startup struct {
	Ready, Admits, CPU time.Duration
	Memory, MostMemory int64
}

// latencies are those of creates.
type latencies struct {
	Creates, Failed int
	P50, P99, Max   time.Duration
	FirstFailure    string `json:",omitempty"`
}

// load is what happened while claims were created.
type load struct {
	CPU                        time.Duration
	Applied, Statuses, Ledgers int64
	// AppliedAfter were written after the last create, until Everywhere, when all projects saw it.
	AppliedAfter int64
	Everywhere   time.Duration
	// Calls of the webhook by the API server's count, and those that took at most 25 ms.
	Calls, Within      int64
	Memory, MostMemory int64
}

func sortResults(rs []result) {
	slices.SortFunc(rs, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.Cluster.Size, b.Cluster.Size), strings.Compare(a.Cluster.String(), b.Cluster.String()))
	})
}

// row is one line of the table: a number per size, what is wanted of it and how it is written.
type row struct {
	name string
	// most is the goal, 0 for none; at least instead of at most when least is set.
	most  float64
	least bool
	unit  func(float64) string
	value func(r result) float64
}

func seconds(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.0f ms", v*1000)
	}
	return fmt.Sprintf("%.1f s", v)
}

func millis(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("%.1f ms", v*1000)
	}
	return seconds(v)
}

func bytesOf(v float64) string { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }
func number(v float64) string  { return fmt.Sprintf("%.2f", v) }
func whole(v float64) string   { return fmt.Sprintf("%.0f", v) }
func percent(v float64) string { return fmt.Sprintf("%.1f %%", v*100) }

func most(ds []time.Duration) float64 {
	if len(ds) == 0 {
		return 0
	}
	return slices.Max(ds).Seconds()
}

func rows() []row {
	perClaim := func(n int64, r result) float64 { return float64(n) / float64(max(1, r.With.Creates)) }
	return []row{
		{"start to ready, no ledgers yet", 60, false, seconds, func(r result) float64 { return r.First.Ready.Seconds() }},
		{"... to the first claim admitted (lost ledgers are rebuilt for 40 s)", 0, false, seconds, func(r result) float64 { return r.First.Admits.Seconds() }},
		{"... until every project shows its quotas", 0, false, seconds, func(r result) float64 { return (r.First.Admits + r.FirstProjection).Seconds() }},
		{"restart to ready", 60, false, seconds, func(r result) float64 { return r.Restart.Ready.Seconds() }},
		{"... to the first claim admitted", 60, false, seconds, func(r result) float64 { return r.Restart.Admits.Seconds() }},
		{"manager CPU until ready", 0, false, seconds, func(r result) float64 { return r.Restart.CPU.Seconds() }},
		{"manager memory (RSS), most until ready", 1 << 30, false, bytesOf, func(r result) float64 { return float64(max(r.First.MostMemory, r.Restart.MostMemory)) }},
		{"manager memory (RSS), most under load", 1 << 30, false, bytesOf, func(r result) float64 { return float64(r.Load.MostMemory) }},
		{"create at 50/s without devicequota, p99", 0, false, millis, func(r result) float64 { return r.Without.P99.Seconds() }},
		{"... beside a ledger and a projection write per claim and quota by a plain client: p50", 0, false, millis, func(r result) float64 { return r.Alone.P50.Seconds() }},
		{"... p99", 0, false, millis, func(r result) float64 { return r.Alone.P99.Seconds() }},
		{"create at 50/s, p50", 0, false, millis, func(r result) float64 { return r.With.P50.Seconds() }},
		{"create at 50/s, p99", 0, false, millis, func(r result) float64 { return r.With.P99.Seconds() }},
		{"admission at 50/s: calls within 25 ms, by the API server", 0.99, true, percent, func(r result) float64 { return float64(r.Load.Within) / float64(max(1, r.Load.Calls)) }},
		{"failed creates", 0.5, false, whole, func(r result) float64 { return float64(r.With.Failed) }},
		{"manager CPU per create, recounts and projections included", 0, false, millis, func(r result) float64 { return r.Load.CPU.Seconds() / float64(max(1, r.With.Creates)) }},
		{"ledger writes per claim at 50/s", 0, false, number, func(r result) float64 { return perClaim(r.Load.Ledgers, r) }},
		{"projection and status writes per claim at 50/s", 4, false, number, func(r result) float64 { return perClaim(r.Load.Applied+r.Load.Statuses, r) }},
		{"seen in the claim's own project, at rest, worst", 2, false, seconds, func(r result) float64 { return most(r.OwnAtRest) }},
		{"seen in the claim's own project, at 50/s, worst", 2, false, seconds, func(r result) float64 { return most(r.OwnUnderLoad) }},
		{"seen in all projects, at rest", 60, false, seconds, func(r result) float64 { return r.EverywhereAtRest.Seconds() }},
		{"seen in all projects, after 50/s", 60, false, seconds, func(r result) float64 { return r.Load.Everywhere.Seconds() }},
	}
}

// table writes Markdown: a row per number, a column per size, how it grows from the smallest to the
// largest with one quota per project, and what was missed.
func table(rs []result) string {
	var w strings.Builder
	if len(rs) == 0 {
		return "Nothing was measured.\n"
	}
	last := rs[0]
	for _, r := range rs {
		if !r.Cluster.Twice {
			last = r
		}
	}
	fmt.Fprintf(&w, "Measured %s on %d cores (%s) with clients, API server, etcd and the manager on the same machine.\n\n",
		last.Measured.Format("2006-01-02"), runtime.NumCPU(), harness.CPUModel())
	w.WriteString("| | goal |")
	for _, r := range rs {
		fmt.Fprintf(&w, " %d nodes × %d GPUs, %d projects, %d quotas, %d claims%s |",
			r.Cluster.Nodes, gpusPerNode, r.Cluster.Projects, r.Cluster.Quotas, r.Cluster.Claims, map[bool]string{true: ", two quotas per project"}[r.Cluster.Twice])
	}
	w.WriteString(" growth |\n|---|--:|" + strings.Repeat("--:|", len(rs)+1) + "\n")
	missed := make([][]string, len(rs))
	for _, x := range rows() {
		fmt.Fprintf(&w, "| %s | %s |", x.name, x.goal())
		for _, r := range rs {
			fmt.Fprintf(&w, " %s |", x.unit(x.value(r)))
		}
		fmt.Fprintf(&w, " %s |\n", growth(x.value(rs[0]), x.value(last)))
		for i, r := range rs {
			if v := x.value(r); x.missed(v) {
				missed[i] = append(missed[i], fmt.Sprintf("%s (%s, goal %s)", x.name, x.unit(v), x.goal()))
			}
		}
	}
	w.WriteString("\n")
	for i, r := range rs {
		fmt.Fprintf(&w, "- Size %v: %s.\n", r.Cluster, cmp.Or(strings.Join(missed[i], "; "), "all goals are met"))
	}
	return w.String()
}

func (x row) goal() string {
	switch {
	case x.name == "failed creates":
		return "0"
	case x.most == 0:
		return ""
	case x.least:
		return "≥ " + x.unit(x.most)
	}
	return "< " + x.unit(x.most)
}

func (x row) missed(v float64) bool {
	if x.most == 0 {
		return false
	}
	if x.least {
		return v < x.most
	}
	return v >= x.most
}

func growth(from, to float64) string {
	if from == 0 || from == to {
		return ""
	}
	return fmt.Sprintf("× %.1f", to/from)
}
