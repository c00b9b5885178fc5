package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
)

var update = flag.Bool("update", false, "write the golden files")

// examples are the manifests that users find.
const examples = "../../../examples/"

// run runs the command line and returns what it writes and its exit code.
func run(t testing.TB, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	streams, in, stdout, stderr := genericiooptions.NewTestIOStreams()
	in.WriteString(stdin)
	code = Run(t.Context(), args, "v1.2.3", streams)
	return stdout.String(), stderr.String(), code
}

// golden compares with the file, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update writes it:\n%s", file, diff)
	}
}

const denialText = `Error from server (Forbidden): error when creating "c.yaml": admission webhook "resourceclaims.validate.devicequota.io" denied the request: ` +
	`exceeded quota: all, requested: gpu.deviceclass.devicequota.io/capacity.memory=160Gi, used: gpu.deviceclass.devicequota.io/capacity.memory=0, limited: gpu.deviceclass.devicequota.io/capacity.memory=100Gi; ` +
	`exceeded quota: team-a, requested: count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.devicequota.io/devices=2, used: count/resourceclaims.resource.k8s.io=5,gpu.deviceclass.devicequota.io/devices=3, ` +
	`limited: count/resourceclaims.resource.k8s.io=5,gpu.deviceclass.devicequota.io/devices=4; charged: gpu.deviceclass.devicequota.io/devices: request "r": 2 devices; ` +
	`used by this project: count/resourceclaims.resource.k8s.io=0,gpu.deviceclass.devicequota.io/devices=1, by the others together: count/resourceclaims.resource.k8s.io=5,gpu.deviceclass.devicequota.io/devices=2; ` +
	`status unknown for quota: b, resources: nic.deviceclass.devicequota.io/capacity.bandwidth; FootprintUnknown: nic.deviceclass.devicequota.io/capacity.bandwidth: request "r": no device is published`

func TestOutputsAreGolden(t *testing.T) {
	t.Parallel()
	all := []string{"-f", examples + "cluster", "-f", examples + "quotas"}
	with := func(args ...string) []string { return append(args, all...) }
	cases := map[string]struct {
		args  []string
		stdin string
		code  int
	}{
		"check":              {args: with("check", "-f", examples+"claims")},
		"check-wide":         {args: with("check", "-f", examples+"claims", "-o", "wide")},
		"check-json":         {args: with("check", "-f", examples+"claims", "-o", "json")},
		"check-yaml":         {args: with("check", "-f", examples+"claims", "-o", "yaml")},
		"check-name":         {args: with("check", "-f", examples+"claims", "-f", "testdata/deployment.yaml", "-o", "name"), code: ExitNo},
		"check-denied":       {args: with("check", "-f", "testdata/deployment.yaml"), code: ExitNo},
		"check-denied-json":  {args: with("check", "-f", "testdata/deployment.yaml", "-o", "json"), code: ExitNo},
		"check-allocate":     {args: with("check", "-f", "testdata/unfit.yaml", "-f", examples+"claims/one-gpu.yaml", "--allocate", "--no-headers"), code: ExitNo},
		"check-odd-quotas":   {args: with("check", "-f", "testdata/odd-quotas.yaml", "-o", "wide"), code: ExitNo},
		"test":               {args: []string{"test", "testdata/scenario.yaml"}, code: ExitNo},
		"test-json":          {args: []string{"test", "testdata/scenario.yaml", "-o", "json"}, code: ExitNo},
		"test-one":           {args: []string{"test", "testdata/scenario.yaml", "--run", "holds"}},
		"explain":            {args: with("explain", "-f", examples+"claims/mig-partition.yaml", "-f", examples+"claims/first-available.yaml")},
		"explain-json":       {args: with("explain", "-f", examples+"claims", "-o", "json", "inference")},
		"explain-yaml":       {args: with("explain", "-f", examples+"claims", "-o", "yaml", "inference")},
		"explain-unfit":      {args: with("explain", "-f", "testdata/unfit.yaml")},
		"explain-unfit-json": {args: with("explain", "-f", "testdata/unfit.yaml", "-o", "json", "hopper")},
		"denial":             {args: []string{"explain", "denial"}, stdin: denialText},
		"denial-json":        {args: []string{"explain", "denial", "-o", "json"}, stdin: denialText},
		"denial-yaml":        {args: []string{"explain", "denial", "-o", "yaml"}, stdin: denialText},
		"usage":              {args: with("usage", "-f", examples+"claims", "-f", "testdata/unfit.yaml", "--allocate")},
		"usage-project":      {args: with("usage", "team-a", "-f", examples+"claims", "-n", "team-a-serve")},
		"usage-json":         {args: with("usage", "-f", examples+"claims", "-o", "json")},
		"usage-yaml":         {args: with("usage", "-f", examples+"claims", "-o", "yaml")},
		"doctor":             {args: with("doctor", "-f", "testdata/odd-quotas.yaml"), code: ExitNo},
		"doctor-aliases":     {args: []string{"doctor", "-f", "testdata/meaningless.yaml"}},
		"doctor-json":        {args: with("doctor", "-f", "testdata/odd-quotas.yaml", "-o", "json"), code: ExitNo},
		"doctor-yaml":        {args: with("doctor", "-o", "yaml")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := run(t, c.stdin, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d; errors:\n%s", code, c.code, errs)
			}
			golden(t, name, out)
		})
	}
}

func TestBadInputIsNamedByFileAndLine(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args  []string
		stdin string
		want  []string
	}{
		"everything wrong in a file": {args: []string{"check", "-f", "testdata/bad.yaml"}, want: []string{
			`error: testdata/bad.yaml:11: ResourceClaim: unknown field "spec.devices.requests[0].exactly.cuont"`,
			`error: testdata/bad.yaml:13: kind "ResourceClaim" is not in apiVersion "v1": want resource.k8s.io/v1 or resource.k8s.io/v1beta2 or resource.k8s.io/v1beta1`,
			`error: testdata/bad.yaml:24: ResourceClaim: spec.devices.requests.exactly.count: a JSON string is not what belongs there`,
			`error: testdata/bad.yaml:27: YAML: mapping values are not allowed in this context`,
			`error: testdata/bad.yaml:34: Pod: unknown field "metadata.nme"`}},
		"missing file":        {args: []string{"check", "-f", "nowhere.yaml"}, want: []string{"error: nowhere.yaml: no such file or directory"}},
		"standard input":      {args: []string{"check", "-f", "-"}, stdin: "apiVersion: v1\n", want: []string{"error: <stdin>:1: kind is missing"}},
		"huge replica counts": {args: []string{"check", "-f", "-"}, stdin: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 2000000000, selector: {}, template: {}}\n", want: []string{"error: <stdin>:1: deployment default/d has 2000000000 pods; at most 10000 are checked"}},
		"no input":            {args: []string{"check"}, want: []string{`required flag(s) "filename" not set`}},
		"unknown flag":        {args: []string{"check", "--fiel", "x"}, want: []string{"unknown flag: --fiel", "see 'kubectl devicequota check --help'"}},
		"unknown command":     {args: []string{"chekc"}, want: []string{`unknown command "chekc"`}},
		"odd output":          {args: []string{"check", "-f", "-", "-o", "xml"}, want: []string{`output "xml": want wide, json, yaml or name`}},
		"odd policy":          {args: []string{"check", "-f", "-", "--admin-access", "x"}, want: []string{`admin-access "x": want Allow, Warn or Deny`}},
		"odd platform":        {args: []string{"check", "-f", "-", "--platform", "x"}, want: []string{`platform "x": want kubernetes or openshift`}},
		"no scenario":         {args: []string{"test", examples + "claims"}, want: []string{"no scenario found"}},
		"odd test output":     {args: []string{"test", "-o", "tap", "x"}, want: []string{`output "tap": want junit or json`}},
		"no denial":           {args: []string{"explain", "denial", "hello"}, want: []string{"no quota denial in the text"}},
		"odd denial":          {args: []string{"explain", "denial", "exceeded quota: q, requested: a=x, used: a=0, limited: a=1"}, want: []string{`"a=x": the amount of "a" is none`}},
		"nothing to explain":  {args: []string{"explain"}, want: []string{"nothing to explain"}},
		"no claim":            {args: []string{"explain", "-f", examples + "quotas"}, want: []string{"no claim or template to explain"}},
		"no quota":            {args: []string{"usage", "x", "-f", examples + "quotas"}, want: []string{`no quota "x"`}},
		"watched files":       {args: []string{"usage", "-w", "-f", examples + "quotas"}, want: []string{"--watch is for clusters"}},
		"hasty watch":         {args: []string{"usage", "--interval", "1ms"}, want: []string{"--interval: at least 1s"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := run(t, c.stdin, c.args...)
			if code != ExitBad || out != "" {
				t.Errorf("exit code %d, want %d and nothing on standard output, got:\n%s", code, ExitBad, out)
			}
			for _, w := range c.want {
				if !strings.Contains(errs, w) {
					t.Errorf("want %q in:\n%s", w, errs)
				}
			}
		})
	}
}

func TestWhoAsksDecidesOnAdminAccess(t *testing.T) {
	t.Parallel()
	const claim = `
apiVersion: v1
kind: Namespace
metadata: {name: monitoring, labels: {resource.kubernetes.io/admin-access: "true"}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: spy, namespace: monitoring}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true}}]}}
`
	check := []string{"check", "-f", examples + "cluster", "-f", "-", "--admin-access", "Deny", "-o", "json"}
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"an administrator": {nil, ExitOK},
		"somebody":         {[]string{"--as", "alice"}, ExitNo},
		"somebody who may": {[]string{"--as", "alice", "--may-use-admin-access", "alice"}, ExitOK},
		"one of the group": {[]string{"--as", "alice", "--as-group", "system:masters"}, ExitOK},
	} {
		if out, errs, code := run(t, claim, append(check, c.args...)...); code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", name, code, c.code, out, errs)
		}
	}
}

// dump is what "kubectl get" prints of a project: pods with their claims, and what made them.
const dump = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: team-a-train, labels: {team: a}}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaimTemplate
  metadata: {name: gpu, namespace: team-a-train}
  spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: team-a-train, uid: d}
  spec: {replicas: 1, selector: {}, template: {spec: {containers: [], resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]}}}
- apiVersion: apps/v1
  kind: ReplicaSet
  metadata: {name: web-1, namespace: team-a-train, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: d, controller: true}]}
  spec: {replicas: 1, selector: {}, template: {spec: {containers: [], resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: web-1-x, namespace: team-a-train, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: r, controller: true}]}
  spec: {containers: [], resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]}
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: web-1-x-gpu-y, namespace: team-a-train, ownerReferences: [{apiVersion: v1, kind: Pod, name: web-1-x, uid: p, controller: true}]}
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
- apiVersion: v1
  kind: Pod
  metadata: {name: alone, namespace: team-a-train}
  spec: {containers: [], resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]}
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: alone-gpu-z, namespace: team-a-train, annotations: {resource.kubernetes.io/pod-claim-name: gpu}, ownerReferences: [{apiVersion: v1, kind: Pod, name: alone, uid: q, controller: true}]}
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
`

// Nothing counts twice when the input has objects and what controllers made of them.
func TestWhatControllersMadeCountsOnce(t *testing.T) {
	t.Parallel()
	out, errs, code := run(t, dump, "check", "-f", examples+"cluster/classes.yaml", "-f", examples+"cluster/nodes-gpu.yaml", "-f", examples+"quotas", "-f", "-", "-o", "json")
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != ExitOK {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, errs)
	}
	used := r.Usage[0].Used["gpu.nvidia.com.deviceclass.resource.k8s.io/devices"]
	if used.Value() != 2 || r.Summary.Skipped != 3 || !strings.Contains(errs, "left out, since their controllers are in the input and make them: 3 objects") {
		t.Errorf("used %s, %d skipped, want 2 and 3\n%s%s", used.String(), r.Summary.Skipped, out, errs)
	}
}

func TestOwnersInACircleAreAnError(t *testing.T) {
	t.Parallel()
	pod := func(n, owner string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + n + ", ownerReferences: [{apiVersion: v1, kind: Pod, name: " + owner + ", uid: x, controller: true}]}\nspec: {containers: []}\n---\n"
	}
	_, errs, code := run(t, pod("a", "b")+pod("b", "c")+pod("c", "b"), "check", "-f", "-")
	if want := "error: <stdin>:1: ownerReferences go round in a circle: pod default/a, pod default/b, pod default/c, pod default/b\n"; code != ExitBad || errs != want {
		t.Errorf("exit code %d, want %q, got %q", code, want, errs)
	}
}

// The JSON of a report is a contract: its fields are all there, whatever is in them.
func TestReportsHaveAllFields(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := report.New().Write(&b, "json", report.Style{}); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"apiVersion": "devicequota.io/v1alpha1", "kind": "CheckReport", "items": []any{}, "usage": []any{},
		"summary": map[string]any{"admitted": 0., "denied": 0., "warned": 0., "skipped": 0.}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// JUnit files have times in them.
func TestJUnitIsGolden(t *testing.T) {
	t.Parallel()
	out, errs, code := run(t, "", "test", "testdata/scenario.yaml", "-o", "junit")
	if code != ExitNo {
		t.Errorf("exit code %d; errors:\n%s", code, errs)
	}
	golden(t, "test-junit", regexp.MustCompile(`time="[0-9.]+"`).ReplaceAllString(out, `time="T"`))
}

// What somebody at a terminal sees.
func TestTerminalsAreGolden(t *testing.T) {
	t.Parallel()
	out, _, _ := run(t, "", "check", "-f", examples+"cluster", "-f", examples+"quotas", "-f", examples+"claims", "-f", "testdata/deployment.yaml", "-o", "json")
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.Write(&b, "", report.Style{Terminal: true, Colour: true}); err != nil {
		t.Fatal(err)
	}
	golden(t, "check-terminal", b.String())
}

// Colours need a terminal that wants them.
func TestNoColorIsRespected(t *testing.T) {
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tty.Close() }() // nothing was written
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }() // nothing was written
	for name, c := range map[string]struct {
		out           io.Writer
		noColor, term string
		want          report.Style
	}{
		"a terminal":           {tty, "", "xterm", report.Style{Terminal: true, Colour: true}},
		"NO_COLOR":             {tty, "1", "xterm", report.Style{Terminal: true}},
		"a simple terminal":    {tty, "", "dumb", report.Style{Terminal: true}},
		"a file":               {null, "", "xterm", report.Style{}},
		"not even a file":      {io.Discard, "", "xterm", report.Style{}},
		"a file, and NO_COLOR": {null, "1", "xterm", report.Style{}},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		o := &options{}
		o.Out = c.out
		if got := o.style(); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestBarsAndColoursAreForTerminals(t *testing.T) {
	t.Parallel()
	r := report.New()
	r.Items = []report.Item{{Message: "m"}}
	for style, want := range map[report.Style]string{
		{}:             "  denied: m\n",
		{Colour: true}: "  \x1b[31mdenied:\x1b[0m m\n",
	} {
		var b bytes.Buffer
		if err := r.Write(&b, "", style); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%+v: want %q in %q, error %v", style, want, b.String(), err)
		}
	}
}

func TestVersionAndCompletion(t *testing.T) {
	t.Parallel()
	if out, _, code := run(t, "", "version"); code != ExitOK || out != "devicequota v1.2.3\n" {
		t.Errorf("got %q, exit code %d", out, code)
	}
	if out, _, code := run(t, "", "version", "-o", "json"); code != ExitOK || !strings.Contains(out, `"version": "v1.2.3"`) {
		t.Errorf("got %q, exit code %d", out, code)
	}
	if out, _, code := run(t, "", "completion", "bash"); code != ExitOK || !strings.Contains(out, "kubectl-devicequota") {
		t.Errorf("no completion, exit code %d", code)
	}
	if out, _, code := run(t, "", "__complete", "check", "-o", ""); code != ExitOK || !strings.Contains(out, "wide") {
		t.Errorf("no completion of -o, exit code %d: %q", code, out)
	}
}
