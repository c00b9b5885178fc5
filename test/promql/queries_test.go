// Package promql checks the queries of the chart with Prometheus' own parser and engine.
package promql

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

func files() string { return filepath.Join("..", "..", "charts", "devicequota", "files") }

// rules returns the chart's alerts.
func rules(t *testing.T) []rule {
	t.Helper()
	var out []rule
	data, err := os.ReadFile(filepath.Join(files(), "alerts.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// dashboard is the chart's.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr, RefID string }
	}
}

func board(t *testing.T) dashboard {
	t.Helper()
	var out dashboard
	data, err := os.ReadFile(filepath.Join(files(), "dashboard.json"))
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// panels returns the dashboard's queries by where they are, for the values of its variables.
func panels(t *testing.T, quota, project, key string) map[string]string {
	t.Helper()
	out := map[string]string{}
	variables := strings.NewReplacer("$job", "devicequota", "$quota", quota, "$project", project, "$key", key, "$__rate_interval", "5m")
	for _, p := range board(t).Panels {
		for _, target := range p.Targets {
			out["panel "+p.Title+" "+target.RefID] = variables.Replace(target.Expr)
		}
	}
	if len(out) < 25 {
		t.Fatalf("%d queries", len(out))
	}
	return out
}

// queries returns all queries of alerts and dashboard by where they are.
func queries(t *testing.T) map[string]string {
	t.Helper()
	out := panels(t, ".*", ".*", ".*")
	alerts := rules(t)
	for _, a := range alerts {
		out["alert "+a.Alert] = strings.ReplaceAll(a.Expr, "JOB", "devicequota")
	}
	if len(alerts) < 14 {
		t.Fatalf("%d alerts", len(alerts))
	}
	return out
}

func TestQueriesParseAndNameTheirJob(t *testing.T) {
	t.Parallel()
	simple := regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	for where, query := range queries(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %s: %v", where, query, err)
			continue
		}
		found := 0
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			v, ok := n.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			found++
			job := false
			for _, m := range v.LabelMatchers {
				job = job || m.Type == labels.MatchEqual && m.Name == "job" && m.Value == "devicequota"
			}
			if !job {
				t.Errorf("%s: %s takes metrics of every job", where, v)
			}
			return nil
		})
		// test/install finds the selectors like this, to hold them against a running manager.
		if n := len(simple.FindAllString(query, -1)); n != found || n == 0 {
			t.Errorf("%s: %d selectors, %d of them written NAME{MATCHERS}", where, found, n)
		}
	}
}

func TestDurationsAndSeverities(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range rules(t) {
		if a.For != "" && !regexp.MustCompile(`^[0-9]+[smh]$`).MatchString(a.For) {
			t.Errorf("%s: for %q", a.Alert, a.For)
		}
		if seen[a.Alert] || !strings.HasPrefix(a.Alert, "DeviceQuota") {
			t.Errorf("%s: twice, or without the product's name", a.Alert)
		}
		seen[a.Alert] = true
	}
}
