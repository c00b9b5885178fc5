package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/devicequota/devicequota/test/harness"
)

var update = flag.Bool("update", false, "write the golden renders")

const (
	mainChart = "devicequota"
	crdChart  = "devicequota-crds"
)

func chartDir(name string) string { return filepath.Join(harness.Root(), "charts", name) }

func loadChart(t *testing.T, name string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir(name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values is a chart's values as a user gives them.
type values = map[string]any

func parseValues(t *testing.T, text string) values {
	t.Helper()
	out := values{}
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// ciValues returns the chart's ci/NAME-values.yaml by name.
func ciValues(t *testing.T, name string) map[string]values {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir(name), "ci", "*-values.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no ci values: %v", err)
	}
	out := map[string]values{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(f), "-values.yaml")] = parseValues(t, string(data))
	}
	return out
}

// render renders a chart without a cluster, as `helm template` does.
func render(t *testing.T, name string, v values, apiVersions ...string) (*release.Release, error) {
	t.Helper()
	return renderAt(t, name, "v1.37.2", v, apiVersions...)
}

// renderAt renders for a version of Kubernetes.
func renderAt(t *testing.T, name, version string, v values, apiVersions ...string) (*release.Release, error) {
	t.Helper()
	in := action.NewInstall(action.NewConfiguration())
	in.DryRunStrategy = action.DryRunClient
	in.ReleaseName, in.Namespace = "devicequota", harness.Namespace
	if name == crdChart {
		in.ReleaseName = crdChart
	}
	in.APIVersions = append(common.VersionSet{"devicequota.io/v1alpha1"}, apiVersions...)
	kube, err := common.ParseKubeVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	in.KubeVersion = kube
	out, err := in.Run(loadChart(t, name), v)
	if err != nil {
		return nil, err
	}
	return out.(*release.Release), nil
}

func mustRender(t *testing.T, name string, v values, apiVersions ...string) []*unstructured.Unstructured {
	t.Helper()
	r, err := render(t, name, v, apiVersions...)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, everything(r))
}

// everything returns manifest and hooks of a release.
func everything(r *release.Release) string {
	text := r.Manifest
	for _, h := range r.Hooks {
		text += "---\n# Source: " + h.Path + "\n" + h.Manifest
	}
	return text
}

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	dec := k8syaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := dec.Decode(u); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}

// one returns the only object of the kind, with the name if one is given.
func one(t *testing.T, objs []*unstructured.Unstructured, kind string, name ...string) *unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, o := range objs {
		if o.GetKind() == kind && (len(name) == 0 || o.GetName() == name[0]) {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of kind %s %v", len(found), kind, name)
	}
	return found[0]
}

func as[T any](t *testing.T, u *unstructured.Unstructured) *T {
	t.Helper()
	data, err := json.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(out); err != nil {
		t.Fatalf("%s %q: %v", u.GetKind(), u.GetName(), err)
	}
	return out
}

// configFile returns the manager's configuration in a render.
func configFile(t *testing.T, objs []*unstructured.Unstructured) string {
	t.Helper()
	for _, o := range objs {
		if o.GetKind() != "ConfigMap" {
			continue
		}
		if text, ok, err := unstructured.NestedString(o.Object, "data", "config.yaml"); ok && err == nil {
			return text
		}
	}
	t.Fatal("no configuration file")
	return ""
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func key(u *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", u.GroupVersionKind(), u.GetNamespace(), u.GetName())
}
