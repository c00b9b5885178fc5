package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

func newReader(t testing.TB) *input.Reader {
	t.Helper()
	r, err := input.NewReader()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// examples is where users find scenarios.
var examples = filepath.Join("..", "..", "..", "examples", "scenarios")

func TestExampleScenariosHold(t *testing.T) {
	t.Parallel()
	scenarios, err := Read(newReader(t), []string{examples}, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(scenarios) < 20 {
		t.Errorf("want at least 20 scenarios, got %d", len(scenarios))
	}
	names := map[string]bool{}
	for _, s := range scenarios {
		if names[s.Metadata.Name] {
			t.Errorf("two scenarios are called %q", s.Metadata.Name)
		}
		names[s.Metadata.Name] = true
		t.Run(s.Metadata.Name, func(t *testing.T) {
			t.Parallel()
			o, err := Run(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if f := o.Failure; f != nil {
				t.Errorf("%s:%d: step %d, %s:\n%s", s.File, f.Line, f.Step, f.Verb, f)
			}
		})
	}
}

// A scenario that is played twice must come to the same, also its messages.
func TestScenariosAreDeterministic(t *testing.T) {
	t.Parallel()
	play := func() string {
		scenarios := read(t, strings.ReplaceAll(world+wrong, "STEP", "create: {apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: a}, spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, count: 3}}]}}}"))
		o, err := Run(t.Context(), scenarios[0])
		if err != nil || o.Failure == nil {
			t.Fatalf("want a failure, got %v, %v", o.Failure, err)
		}
		return o.Failure.String()
	}
	if diff := cmp.Diff(play(), play()); diff != "" {
		t.Errorf("two runs differ:\n%s", diff)
	}
}

// world is the beginning of a scenario with a project and a quota of 2 devices.
const world = `apiVersion: devicequota.io/v1alpha1
kind: Scenario
metadata: {name: s}
steps:
- apply:
  - {apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {t: a}}}
  - {apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu}}
  - apiVersion: quota.openshift.io/v1
    kind: ClusterResourceQuota
    metadata: {name: q}
    spec:
      selector: {labels: {matchLabels: {t: a}}, annotations: null}
      quota: {hard: {gpu.deviceclass.devicequota.io/devices: "2"}}
`

const wrong = "- STEP\n  expect: {allowed: true}\n"

// read returns the scenarios of the text.
func read(t testing.TB, text string) []*Scenario {
	t.Helper()
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	scenarios, err := Read(newReader(t), []string{file}, false)
	if err != nil {
		t.Fatal(err)
	}
	return scenarios
}

const claim2 = "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: a}, spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu, count: 2}}]}}}"

func TestWhatIsNotAsExpectedFails(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ steps, want string }{
		"denied without expectation": {"- create: " + strings.Replace(claim2, "2}", "3}", 1), "- allowed: true\n+ allowed: false"},
		"allowed against a reason":   {"- create: " + claim2 + "\n  expect: {reason: QuotaExceeded}", "- allowed: false\n+ allowed: true\n- reason: QuotaExceeded\n+ reason: UnknownX"},
		"another charge":             {"- create: " + claim2 + "\n  expect: {charge: {q: {gpu.deviceclass.devicequota.io/devices: 1}}}", "- charge.q.gpu.deviceclass.devicequota.io/devices: 1\n+ charge.q.gpu.deviceclass.devicequota.io/devices: 2"},
		"a missing warning":          {"- create: " + claim2 + "\n  expect: {warnings: [Mutated]}", "- warning with: Mutated"},
		"a warning too much":         {"- create: " + claim2 + "\n  expect: {noWarnings: true}", "- no warnings"},
		"a forbidden text":           {"- create: " + strings.Replace(claim2, "2}", "3}", 1) + "\n  expect: {allowed: false, notMessage: exceeded}", "+ which must not appear: exceeded"},
		"another use":                {"- usage: {quota: q, used: {gpu.deviceclass.devicequota.io/devices: 1}}", "- used.gpu.deviceclass.devicequota.io/devices: 1\n+ used.gpu.deviceclass.devicequota.io/devices: 0"},
		"another project's use":      {"- usage: {quota: q, namespaces: {a: {gpu.deviceclass.devicequota.io/devices: 1}}}", "- namespaces.a.gpu.deviceclass.devicequota.io/devices: 1"},
		"a missing condition":        {"- usage: {quota: q, conditions: [{type: OverLimit}]}", "- condition OverLimit"},
		"a forbidden condition":      {"- usage: {quota: q, noConditions: [{type: Enforced}]}", "+ condition Enforced gpu.deviceclass.devicequota.io/devices, which must not be"},
		"no projection":              {"- usage: {quota: q, projection: {b: {}}}", "+ the quota does not cover the project"},
		"another projection":         {"- usage: {quota: q, projection: {a: {namespaces: {b: {}}}}}", "- projection.a.namespaces: b\n+ projection.a.namespaces: a"},
		"no such quota":              {"- usage: {quota: x}", `error: clusterresourcequotas "x" not found`},
		"no such claim":              {"- allocate: {claim: a/x, release: true}", `error: resourceclaims "a/x" not found`},
		"no such object":             {"- delete: {kind: ResourceClaim, namespace: a, name: x}", `resourceclaims "x" not found`},
		"not allocated":              {"- create: " + claim2 + "\n- allocate: {}\n  expect: {allocated: [a/c]}", "- allocated: a/c\n+ allocated: "},
		"no such namespace":          {"- create: {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: b}, spec: {containers: []}}", `namespaces "b" not found`},
		"exists":                     {strings.Repeat("- create: "+strings.Replace(claim2, "count: 2", "count: 1", 1)+"\n", 2), `resourceclaims "c" already exists`},
		"pending after a release":    {"- create: " + claim2 + "\n- allocate: {claim: a/c, devices: [{request: r, driver: d, pool: p, device: x}]}\n  expect: {allocated: [a/c], pending: []}\n- allocate: {claim: a/c, release: true}\n  expect: {pending: []}", "- pending: \n+ pending: a/c"},
		"devices of another claim":   {"- create: " + claim2 + "\n- allocate: {claim: a/c, devices: [{request: r, driver: d, pool: p, device: x}]}\n  expect: {allocated: [a/d]}", "- allocated: a/d\n+ allocated: a/c"},
		"nothing to reserve":         {"- create: " + claim2 + "\n- create: {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: a}, spec: {containers: []}}\n- allocate: {claim: a/c, reservedFor: [p]}", "has no devices to reserve"},
		"a condition that is False":  {"- usage: {quota: q, conditions: [{type: OverLimit, key: gpu.deviceclass.devicequota.io/devices}]}", "- condition OverLimit gpu.deviceclass.devicequota.io/devices True"},
		"pods of a list":             {"- create: [" + strings.Replace(claim2, "2}", "1}", 1) + ", {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: a}, spec: {containers: []}}]\n  expect: {pods: {admitted: 2, denied: 0}}", "pod a/p:\n- pods: 2 admitted, 0 denied\n+ pods: 1 admitted, 0 denied"},
		"a name that cannot be":      {"- create: {apiVersion: v1, kind: Pod, metadata: {name: P, namespace: a}, spec: {containers: []}}", "metadata.name"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := Run(t.Context(), read(t, world+c.steps+"\n")[0])
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Replace(c.want, "\n+ reason: UnknownX", "", 1)
			if o.Failure == nil || !strings.Contains(o.Failure.String(), want) {
				t.Errorf("want a failure with\n%s\ngot\n%v", want, o.Failure)
			}
		})
	}
}

func TestBadScenariosAreNamedByFileAndLine(t *testing.T) {
	t.Parallel()
	head := "apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nsteps:\n"
	cases := map[string]struct{ text, want string }{
		"two verbs":            {head + "- usage: {quota: q}\n  delete: {kind: Pod, name: p}\n", ":5: step 1 has 2 verbs (delete, usage)"},
		"no verb":              {head + "- as: alice\n", ":5: step 1 has 0 verbs"},
		"unknown field":        {head + "- usage: {quota: q}\n- usage:\n    qouta: q\n", `:7: unknown field "steps[1].usage.qouta"`},
		"unknown object field": {head + "- create:\n    apiVersion: v1\n    kind: Pod\n    spec: {bodies: []}\n", `:8: Pod: unknown field "spec.bodies"`},
		"no steps":             {"apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nmetadata: {name: s}\n", "steps: at least one is required"},
		"no name":              {"apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nsteps: [{usage: {quota: q}}]\n", "metadata.name is required"},
		"another version":      {"apiVersion: devicequota.io/v9\nkind: Scenario\n", `:1: apiVersion "devicequota.io/v9": want devicequota.io/v1alpha1`},
		"a missing file":       {head + "- apply: [nowhere.yaml]\n", `:5: file "nowhere.yaml": no such file`},
		"a foreign kind":       {head + "- create: {apiVersion: v1, kind: Secret, metadata: {name: s}}\n", `kind "Secret" has nothing to do with devices`},
		"broken YAML":          {head + "- usage: {quota: q\n", "YAML"},
		"no claim":             {head + "- allocate: {release: true}\n", "claim is required"},
		"an odd claim":         {head + "- allocate: {claim: c}\n", `allocate.claim "c": want namespace/name`},
		"a claim and nothing":  {head + "- allocate: {claim: a/c}\n", "allocate: devices, reservedFor or release is required beside claim"},
		"release and devices":  {head + "- allocate: {claim: a/c, release: true, reservedFor: [p]}\n", "allocate: release stands alone"},
		"allocated by create":  {head + "- create: {apiVersion: v1, kind: Node}\n  expect: {allocated: []}\n", "expect of create: allocated and pending are for allocate"},
		"a refused allocation": {head + "- allocate: {}\n  expect: {allowed: false}\n", "expect of allocate: want allocated or pending"},
		"delete without name":  {head + "- delete: {kind: Pod}\n", "kind and name are required"},
		"usage without quota":  {head + "- usage: {used: {}}\n", "usage.quota is required"},
		"expect of a usage":    {head + "- usage: {quota: q}\n  expect: {allowed: true}\n", "usage has no expect"},
		"an odd policy":        {"apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nmetadata: {name: s}\noptions: {adminAccess: Perhaps}\nsteps: [{usage: {quota: q}}]\n", `:4: options.adminAccess "Perhaps"`},
		"an odd platform":      {"apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nmetadata: {name: s}\noptions: {platform: mesos}\nsteps: [{usage: {quota: q}}]\n", `:4: options.platform "mesos"`},
		"a string for a list":  {"apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nsteps: none\n", ":4: steps: a string is not what belongs there"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "s.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Read(newReader(t), []string{file}, false)
			if err == nil || !strings.HasPrefix(err.Error(), file+":") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %s%s, got %v", file, c.want, err)
			}
		})
	}
	if _, err := Read(newReader(t), []string{"nowhere"}, false); err == nil {
		t.Error("want an error for a path that does not exist")
	}
}

func TestJUnitHasASuitePerFile(t *testing.T) {
	t.Parallel()
	s := &Scenario{Metadata: Metadata{Name: "one"}, File: "a.yaml", Line: 1}
	other := &Scenario{Metadata: Metadata{Name: "two & <three>"}, File: "b.yaml", Line: 7}
	var b bytes.Buffer
	err := JUnit(&b, []Outcome{{Scenario: s}, {Scenario: other, Failure: &Failure{Step: 2, Verb: "create", Line: 9, Lines: []string{"- allowed: true", "+ allowed: false"}}}})
	want := `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="2" failures="1" time="0.000">
  <testsuite name="a.yaml" tests="1" failures="0" time="0.000">
    <testcase name="one" classname="a.yaml" file="a.yaml" line="1" time="0.000"></testcase>
  </testsuite>
  <testsuite name="b.yaml" tests="1" failures="1" time="0.000">
    <testcase name="two &amp; &lt;three&gt;" classname="b.yaml" file="b.yaml" line="7" time="0.000">
      <failure message="step 2, create" type="expectation">b.yaml:9&#xA;- allowed: true&#xA;+ allowed: false</failure>
    </testcase>
  </testsuite>
</testsuites>
`
	if diff := cmp.Diff(want, b.String()); err != nil || diff != "" {
		t.Errorf("JUnit (-want +got), error %v:\n%s", err, diff)
	}
}

// Whatever is in a file, scenarios are read and played to an end without a panic, and two runs of
// one come to the same.
func FuzzScenario(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range input.Split(raw) {
			// Files are for the other tests.
			f.Add(bytes.ReplaceAll(part.Text, []byte("../"), nil))
		}
	}
	f.Add([]byte(world + wrong))
	f.Add([]byte(world + "- create: " + claim2 + "\n- allocate: {claim: a/c, devices: [{request: r, driver: d, pool: p, device: x, consumedCapacity: {m: 1}}]}\n" +
		"- delete: {kind: ResourceClaim, namespace: a, name: c}\n- usage: {quota: q, used: {x: 1}, projection: {a: {used: {x: 0}}}}\n"))
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		f.Add([]byte(world + "- create: {apiVersion: apps/v1, kind: " + kind + ", metadata: {name: w, namespace: a}, spec: {selector: {}, template: {spec: {containers: [], resourceClaims: [{name: x, resourceClaimTemplateName: t}]}}}}\n" +
			"- create: {apiVersion: resource.k8s.io/v1beta1, kind: ResourceClaimTemplate, metadata: {name: t, namespace: a}, spec: {spec: {devices: {requests: [{name: r, deviceClassName: gpu}]}}}}\n- allocate: {}\n"))
	}
	reader := newReader(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1<<14 || bytes.Contains(raw, []byte("/dev")) || bytes.Contains(raw, []byte("/proc")) {
			return
		}
		scenarios, err := decode(reader, raw, "fuzz.yaml")
		if err != nil {
			var e *input.Error
			if !errors.As(err, &e) || e.Line < 0 || e.File == "" {
				t.Errorf("no place: %#v", err)
			}
			return
		}
		for _, s := range scenarios {
			if s.Metadata.Name == "" {
				t.Error("a scenario without a name was read")
			}
			var said []string
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				o, err := Run(ctx, s)
				if err != nil {
					return // thousands of pods take their time
				}
				if o.Failure != nil {
					said = append(said, o.Failure.String())
				} else {
					said = append(said, "")
				}
			}
			if diff := cmp.Diff(said[0], said[1]); diff != "" {
				t.Errorf("two runs differ:\n%s", diff)
			}
		}
	})
}

// Whoever plays a scenario elsewhere asks for the same: also what controllers asked for, in order,
// as it was before any admission.
func TestRequestsAreTold(t *testing.T) {
	t.Parallel()
	s := read(t, world+`
- create:
  - {apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: t, namespace: a}, spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}}}
- create:
    apiVersion: apps/v1
    kind: StatefulSet
    metadata: {name: s, namespace: a}
    spec:
      replicas: 3
      template: {spec: {containers: [{name: c}], resourceClaims: [{name: d, resourceClaimTemplateName: t}]}}
  as: alice
  expect: {allowed: false}
- delete: {kind: Pod, namespace: a, name: s-0}
- usage: {quota: q, used: {gpu.deviceclass.devicequota.io/devices: 1}}
`)[0]
	var got []string
	o, err := RunBeside(t.Context(), s, func(_ context.Context, _ *sim.Cluster, step *Step, requests []sim.Request) ([]string, error) {
		for _, r := range requests {
			got = append(got, fmt.Sprintf("%s: %s %s by %s: %t", step.Verb(), r.Operation, r.Result.Object, r.User.Username, r.Result.Allowed))
			if m, err := meta.Accessor(r.Object); r.Object != nil && (err != nil || m.GetUID() != "") {
				t.Errorf("%s has a UID, or the error %v", r.Result.Object, err)
			}
		}
		return nil, nil
	})
	if err != nil || o.Failure != nil {
		t.Fatalf("error %v, failure %v", err, o.Failure)
	}
	const controllers = "system:serviceaccount:kube-system:"
	want := []string{
		"create: CREATE resourceclaimtemplate a/t by kubernetes-admin: true",
		"create: CREATE statefulset a/s by alice: true",
		"create: CREATE pod a/s-0 by " + controllers + "statefulset-controller: true",
		"create: CREATE resourceclaim a/s-0-d by " + controllers + "resource-claim-controller: true",
		"create: CREATE pod a/s-1 by " + controllers + "statefulset-controller: true",
		"create: CREATE resourceclaim a/s-1-d by " + controllers + "resource-claim-controller: true",
		"create: CREATE pod a/s-2 by " + controllers + "statefulset-controller: false",
		"delete: DELETE pod a/s-0 by kubernetes-admin: true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	o, err = RunBeside(t.Context(), s, func(context.Context, *sim.Cluster, *Step, []sim.Request) ([]string, error) {
		return []string{"+ elsewhere"}, nil
	})
	if err != nil || o.Failure == nil || o.Failure.Step != 1 || o.Failure.String() != "+ elsewhere" {
		t.Errorf("what differs elsewhere is no failure: %+v, error %v", o.Failure, err)
	}
}
