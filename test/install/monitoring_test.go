package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	io_prometheus_client "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/devicequota/devicequota/test/harness"
)

// alert is an entry of files/alerts.yaml.
type alert struct {
	Alert, Expr, For, Severity, Summary, Description string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir(mainChart), "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out []alert
	if err := yaml.UnmarshalStrict(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// queries returns all queries of alerts and dashboard by where they are.
func queries(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, a := range alerts(t) {
		out["alert "+a.Alert] = strings.ReplaceAll(a.Expr, "JOB", "devicequota")
	}
	data, err := os.ReadFile(filepath.Join(chartDir(mainChart), "files", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$job", "devicequota", "$quota", ".*", "$project", ".*", "$key", ".*", "$__rate_interval", "5m")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			out["panel "+p.Title+" "+target.RefID] = variables.Replace(target.Expr)
		}
	}
	return out
}

// selector is a vector selector of a query.
type selector struct {
	name     string
	matchers []matcher
}

type matcher struct {
	label, op, value string
}

func (m matcher) matches(value string) bool {
	switch m.op {
	case "=":
		return value == m.value
	case "=~":
		return regexp.MustCompile("^(?:" + m.value + ")$").MatchString(value)
	}
	return false
}

// selectors returns the vector selectors of a query. test/promql parses the queries with
// Prometheus' own parser and checks that this finds what that finds.
func selectors(query string) []selector {
	var out []selector
	for _, found := range regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`).FindAllStringSubmatch(query, -1) {
		s := selector{name: found[1]}
		for _, m := range regexp.MustCompile(`(\w+)(=~|!=|!~|=)"([^"]*)"`).FindAllStringSubmatch(found[2], -1) {
			s.matchers = append(s.matchers, matcher{m[1], m[2], m[3]})
		}
		out = append(out, s)
	}
	return out
}

func TestAlertsAreComplete(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if a.Summary == "" || a.Description == "" || a.Severity != "info" && a.Severity != "warning" && a.Severity != "critical" {
			t.Errorf("%s: %+v", a.Alert, a)
		}
		if !strings.Contains(string(doc), "### "+a.Alert+"\n") {
			t.Errorf("%s has no runbook in docs/troubleshooting.md", a.Alert)
		}
	}
}

// scrape gets the metrics as Prometheus does: over HTTPS, with a token that has the chart's
// role, trusting the certificate in the Secret. It returns the exposition.
func scrape(t *testing.T, cp *harness.ControlPlane, r *replica) []byte {
	t.Helper()
	ctx := t.Context()
	create(t, cp, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prometheus"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "devicequota-metrics-reader"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}}})
	clients, err := kubernetes.NewForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	token, err := clients.CoreV1().ServiceAccounts("default").CreateToken(ctx, "prometheus", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	if err := cp.Client.Get(ctx, client.ObjectKey{Namespace: harness.Namespace, Name: "devicequota-tls"}, secret); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret.Data["ca.crt"])
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "devicequota." + harness.Namespace + ".svc"}}
	defer transport.CloseIdleConnections()
	get := func(bearer string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.metrics+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		return (&http.Client{Transport: transport}).Do(req)
	}
	if resp, err := get(""); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("metrics without a token: %v, %v", resp, err)
	} else {
		_ = resp.Body.Close() // only its status matters
	}
	resp, err := get(token.Status.Token)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %s: %v: %s", resp.Status, err, body)
	}
	return body
}

// families is an exposition, by metric.
type families = map[string]*io_prometheus_client.MetricFamily

func parse(t *testing.T, exposition []byte) families {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	out, err := p.TextToMetricFamilies(bytes.NewReader(exposition))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// series returns the labels of all series of a scrape, by metric.
func series(all families) map[string][]map[string]string {
	out := map[string][]map[string]string{"up": {{"job": "devicequota"}}}
	add := func(name string, m *io_prometheus_client.Metric) {
		l := map[string]string{"job": "devicequota"}
		for _, p := range m.GetLabel() {
			l[p.GetName()] = p.GetValue()
		}
		out[name] = append(out[name], l)
	}
	for name, f := range all {
		for _, m := range f.GetMetric() {
			if m.GetHistogram() == nil {
				add(name, m)
				continue
			}
			for _, suffix := range []string{"_sum", "_count", "_bucket"} {
				add(name+suffix, m)
			}
		}
	}
	return out
}

// observed checks that every series that an alert or a panel asks for is exported by the
// running managers, and that what they export is what test/promql evaluates the queries over.
// Of labels whose values appear with rare events only the name is checked.
func observed(t *testing.T, cp *harness.ControlPlane, replicas ...*replica) {
	t.Helper()
	var before, after []string
	for _, r := range replicas {
		before = append(before, queried(scrape(t, cp, r)))
	}
	admits(t, cp)
	create(t, cp, claim("load", "measured", 5))
	// Whichever replica wrote the ledger, all tell the same.
	eventually(t, time.Minute, func(context.Context) error {
		after = nil
		for i, r := range replicas {
			text := scrape(t, cp, r)
			after = append(after, queried(text))
			all := parse(t, text)
			for quota, want := range map[string][]string{"load": {"hard 1000", "held 0", "used 5"}, "a": {"hard 4", "held 0", "used 0"}} {
				if got := use(all, "devicequota_clusterresourcequota", quota); !slices.Equal(got, want) {
					return fmt.Errorf("replica %d: quota %s has %v, want %v", i, quota, got, want)
				}
			}
			if got := use(all, "devicequota_clusterresourcequota_project", "load"); !slices.Equal(got, []string{"hard 1000", "used 5"}) {
				return fmt.Errorf("replica %d: project load has %v", i, got)
			}
		}
		return nil
	})
	if err := cp.Client.Delete(t.Context(), claim("load", "measured", 5)); err != nil {
		t.Error(err)
	}
	have, live, kept := series(nil), map[string]string{}, map[string]string{}
	for i := range replicas {
		all := parse(t, []byte(after[i]))
		for name, found := range series(all) {
			have[name] = append(have[name], found...)
		}
		shape(t, all, live)
		shape(t, parse(t, goldenScrape(t, i, "before", before[i])), kept)
		shape(t, parse(t, goldenScrape(t, i, "after", after[i])), kept)
		shape(t, parse(t, []byte(before[i])), live)
	}
	if diff := cmp.Diff(kept, live); diff != "" {
		t.Errorf("test/promql evaluates queries over another exposition (-kept +exported; go test -run TestInstall -update takes it anew):\n%s", diff)
	}
	asked(t, have)
}

// use returns the series of a quota as "type value", sorted.
func use(all families, metric, quota string) []string {
	var out []string
	for _, m := range all[metric].GetMetric() {
		kind, of := "", ""
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "type":
				kind = l.GetValue()
			case "clusterresourcequota":
				of = l.GetValue()
			}
		}
		if of == quota {
			out = append(out, fmt.Sprintf("%s %v", kind, m.GetGauge().GetValue()))
		}
	}
	slices.Sort(out)
	return out
}

// queried is the part of an exposition that dashboards and alerts ask about.
func queried(exposition []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(exposition)) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "devicequota_") || strings.HasPrefix(name, "process_") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// goldenScrape returns what was once scraped of a replica.
func goldenScrape(t *testing.T, i int, when, got string) []byte {
	t.Helper()
	file := filepath.Join(harness.Root(), "test", "promql", "testdata", fmt.Sprintf("replica-%d-%s.prom", i, when))
	if *update {
		golden(t, file, got)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// shape adds type, help and the names of labels of each of our metrics.
func shape(t *testing.T, all families, to map[string]string) {
	t.Helper()
	for name, f := range all {
		if !strings.HasPrefix(name, "devicequota_") {
			continue
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			to[name] = fmt.Sprintf("%v %v %s", f.GetType(), labels, f.GetHelp())
		}
	}
}

// asked checks that the series are those that the queries ask for.
func asked(t *testing.T, have map[string][]map[string]string) {
	t.Helper()
	all := queries(t)
	rare := map[string]bool{"decision": true, "result": true}
	for _, where := range sorted(all) {
		found := selectors(all[where])
		if len(found) == 0 {
			t.Errorf("%s: no metrics in %s", where, all[where])
		}
		for _, v := range found {
			if !slices.ContainsFunc(have[v.name], func(l map[string]string) bool {
				for _, m := range v.matchers {
					value, ok := l[m.label]
					if !m.matches(value) && !(ok && rare[m.label]) {
						return false
					}
				}
				return true
			}) {
				t.Errorf("%s: the manager exports no %v; it has %v", where, v, have[v.name])
			}
		}
	}
}
