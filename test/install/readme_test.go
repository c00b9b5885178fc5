package install

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/devicequota/devicequota/test/harness"
)

// TestReadmesAreUpToDate makes README.md of each chart, and docs/values.md, from Chart.yaml
// and the comments in values.yaml. -update writes them.
func TestReadmesAreUpToDate(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	all.WriteString("# Values of the charts\n\nMade from the comments in values.yaml; `go test -run Readmes -update` in test/install makes it anew.\n")
	for _, name := range []string{mainChart, crdChart} {
		c := loadChart(t, name)
		table := valuesTable(t, name)
		golden(t, filepath.Join(chartDir(name), "README.md"), fmt.Sprintf(`# %s

%s. Version %s, for Kubernetes %s.

%s
## Values

%s`, name, c.Metadata.Description, c.Metadata.Version, c.Metadata.KubeVersion, readmeIntro(name), table))
		fmt.Fprintf(&all, "\n## %s\n\n%s", name, table)
	}
	golden(t, filepath.Join(harness.Root(), "docs", "values.md"), all.String())
}

func readmeIntro(name string) string {
	if name == crdChart {
		return `Install it before the chart devicequota:

` + "```sh\nhelm install devicequota-crds devicequota-crds --namespace devicequota-system --create-namespace\n```" + `

DeviceLedger and AppliedDeviceQuota are always installed, ClusterResourceQuota and AppliedClusterResourceQuota unless the cluster is OpenShift, which
has them. Uninstalling keeps all of them, and with them the quotas.
`
	}
	return `Webhooks and reconcilers that make the device limits in ClusterResourceQuotas true.

` + "```sh\nhelm install devicequota-crds devicequota-crds --namespace devicequota-system --create-namespace\nhelm install devicequota devicequota --namespace devicequota-system\nhelm test devicequota --namespace devicequota-system\n```" + `

How to install on [OpenShift](../../docs/install-openshift.md) and on [Kubernetes](../../docs/install-kubernetes.md), [upgrade](../../docs/upgrade.md),
[uninstall](../../docs/uninstall.md), [high availability](../../docs/high-availability.md), [hardening](../../docs/hardening.md) and
[troubleshooting](../../docs/troubleshooting.md). ` + "`ci/` has values for each supported combination." + `
`
}

// valuesTable returns the documented values as Markdown. A value with a comment "# --" is a
// row; one without is a section whose values are rows. A value without either is an error.
func valuesTable(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir(name), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| value | default | what it is |\n|---|---|---|\n")
	rows(t, &b, doc.Content[0], "")
	return b.String()
}

func rows(t *testing.T, b *strings.Builder, m *yaml.Node, prefix string) {
	t.Helper()
	for i := 0; i < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		path := prefix + k.Value
		text, preset := comment(k.HeadComment)
		if text == "" {
			if v.Kind != yaml.MappingNode {
				t.Errorf("%s has no comment", path)
			}
			rows(t, b, v, path+".")
			continue
		}
		if preset == "" {
			var value any
			if err := v.Decode(&value); err != nil {
				t.Fatal(err)
			}
			out, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			preset = "`" + string(out) + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", path, strings.ReplaceAll(preset, "|", `\|`), strings.ReplaceAll(text, "|", `\|`))
	}
}

// comment returns the text after "# --" and the default that "@default --" names.
func comment(head string) (text, preset string) {
	for _, line := range strings.Split(head, "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(line, "#"))
		if rest, ok := strings.CutPrefix(line, "-- "); ok {
			text = rest
		} else if rest, ok := strings.CutPrefix(line, "@default -- "); ok {
			preset = rest
		} else if text != "" {
			text += " " + line
		}
	}
	return text, preset
}
