package ledger

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	flagTraces = flag.Int("model.traces", 10, "traces per configuration of the model test")
	flagSeed   = flag.Uint64("model.seed", 1, "first seed of the model test")
	flagShow   = flag.Bool("model.show", false, "print the trace of each violation")
)

func everything(c *modelConfig) {
	c.quotas, c.replicas = 2, 3
	c.relabel, c.hardChange, c.keyChange, c.recreate, c.ledgerDelete, c.bump, c.shrink, c.regrow, c.ext = true, true, true, true, true, true, true, true, true
}

// stalledConfigs are worlds in which one watch of one replica stands still all the time.
func stalledConfigs() []modelConfig {
	var out []modelConfig
	for i, name := range []string{"claims", "pods", "namespaces", "quotas", "ledgers"} {
		out = append(out, configOf("the watch of "+name+" stands still", func(c *modelConfig) {
			c.stalled, c.crash, c.relabel, c.hardChange, c.steps = 1+i, false, true, true, 300
		}))
	}
	return out
}

func modelConfigs() []modelConfig {
	return append(stalledConfigs(),
		configOf("one replica", func(c *modelConfig) { c.replicas = 1 }),
		configOf("two replicas", func(c *modelConfig) {}),
		configOf("three replicas one place", func(c *modelConfig) { c.replicas, c.hard, c.maxCharge = 3, 1, 1 }),
		configOf("two quotas", func(c *modelConfig) { c.quotas = 2 }),
		configOf("two quotas three deliveries", func(c *modelConfig) { c.quotas, c.maxDeliveries, c.names, c.replicas = 2, 3, 2, 3 }),
		configOf("relabels", func(c *modelConfig) { c.quotas, c.relabel = 2, true }),
		configOf("projects appear", func(c *modelConfig) { c.late, c.namespaces, c.steps = 3, 1, 300 }),
		configOf("limits change", func(c *modelConfig) { c.hardChange, c.bump = true, true }),
		configOf("keys come and go", func(c *modelConfig) { c.hardChange, c.keyChange = true, true }),
		configOf("quota recreated", func(c *modelConfig) { c.recreate, c.hardChange = true, true }),
		configOf("ledger deleted", func(c *modelConfig) { c.ledgerDelete = true }),
		configOf("ledger deleted and quota recreated", func(c *modelConfig) { c.ledgerDelete, c.recreate = true, true }),
		configOf("charges shrink", func(c *modelConfig) { c.shrink = true }),
		configOf("charges shrink and grow", func(c *modelConfig) { c.shrink, c.regrow = true, true }),
		configOf("extended pods", func(c *modelConfig) { c.ext = true }),
		configOf("the edge of age", func(c *modelConfig) {
			c.pods, c.crash, c.split, c.faults, c.noise, c.marks, c.lean = false, false, false, false, false, false, true
			c.maxDeliveries, c.steps = 1, 300
		}),
		configOf("everything", everything),
		configOf("everything at 34 and 40 s", func(c *modelConfig) {
			everything(c)
			c.persist, c.age, c.steps, c.maxRequests = 34*time.Second, 40*time.Second, 800, 60
		}),
	)
}

// oneThread makes the bubbles' goroutines run in nearly the same order for the same seed.
func oneThread(t *testing.T) {
	n := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(n) })
}

// hunt runs seeds until the first violation.
func hunt(t *testing.T, c modelConfig, traces int) (violation string, seed uint64, stats map[string]int) {
	t.Helper()
	stats = map[string]int{}
	for i := range traces {
		seed = *flagSeed + uint64(i)
		if violation, _ = runTrace(t, c, seed, false, stats); violation != "" {
			return violation, seed, stats
		}
	}
	return "", 0, stats
}

func statsText(stats map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(stats)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, stats[k]))
	}
	return strings.Join(parts, ", ")
}

func TestModel(t *testing.T) {
	oneThread(t)
	for _, c := range modelConfigs() {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			violation, seed, stats := hunt(t, c, *flagTraces)
			t.Logf("seeds from %d: %s", *flagSeed, statsText(stats))
			if violation == "" {
				return
			}
			t.Errorf("seed %d: %s", seed, violation)
			if *flagShow {
				_, lines := runTrace(t, c, seed, true, map[string]int{})
				t.Log("\n" + strings.Join(lines, "\n"))
			}
		})
	}
}
