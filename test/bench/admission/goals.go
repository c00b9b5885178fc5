package main

import (
	"fmt"
	"strings"
)

// goal is what one number of ours has to be under one load.
type goal struct {
	load load
	what string
	// measure returns the number of x; floor and native are measured under the same load.
	measure func(x, floor, native sample) float64
	bound   float64
	// least tells whether the bound is the least or the most that is good.
	least bool
}

func (g goal) met(value float64) bool {
	if g.least {
		return value >= g.bound
	}
	return value <= g.bound
}

func (g goal) String() string {
	relation := "at most"
	if g.least {
		relation = "at least"
	}
	return fmt.Sprintf("%s: %s, %s %v", g.load, g.what, relation, g.bound)
}

// goals are those of the design, load by load.
func goals() []goal {
	ofFloor := func(x, floor, _ sample) float64 { return x.perSecond / floor.perSecond }
	ofNative := func(x, _, native sample) float64 { return x.perSecond / native.perSecond }
	p99 := func(x, floor, _ sample) float64 { return float64(x.p99) / float64(floor.p99) }
	puts := func(x, _, _ sample) float64 { return x.puts }
	failed := func(x, _, _ sample) float64 { return float64(x.failed) }
	var out []goal
	for _, l := range loads {
		switch {
		case l.accounts:
			out = append(out, goal{l, "failures", failed, 0, false})
		case l.clients == 1:
			out = append(out, goal{l, "creates/s of native quota's", ofNative, 1, true})
		default:
			out = append(out, goal{l, "creates/s of the do-nothing webhook's", ofFloor, 0.8, true}, goal{l, "p99 of the do-nothing webhook's", p99, 1.5, false})
		}
		if l.clients == 20 && l.namespaces > 1 {
			out = append(out, goal{l, "creates/s of native quota's", ofNative, 1, true})
		}
		if l.clients == 200 {
			out = append(out, goal{l, "ledger PUTs per create", puts, 0.2, false})
		}
	}
	return out
}

// verdicts writes Markdown: what every row of ours reaches of each goal.
func verdicts(subjects []subject, samples map[load]map[string][]sample) string {
	var ours []subject
	for _, s := range subjects {
		if s.replicas > 0 {
			ours = append(ours, s)
		}
	}
	var w strings.Builder
	w.WriteString("\nWhat is reached of each goal:\n\n| goal |")
	for _, s := range ours {
		fmt.Fprintf(&w, " %s |", strings.TrimPrefix(s.name, "devicequota, "))
	}
	w.WriteString("\n|---|" + strings.Repeat("--:|", len(ours)) + "\n")
	for _, g := range goals() {
		fmt.Fprintf(&w, "| %s |", g)
		floor, native := median(samples[g.load][doNothingName]), median(samples[g.load][nativeName])
		for _, s := range ours {
			x := median(samples[g.load][s.name])
			for _, r := range samples[g.load][s.name] {
				x.failed = max(x.failed, r.failed)
			}
			verdict := "missed"
			value := g.measure(x, floor, native)
			if g.met(value) {
				verdict = "met"
			}
			fmt.Fprintf(&w, " %.3g, %s |", value, verdict)
		}
		w.WriteString("\n")
	}
	return w.String()
}
