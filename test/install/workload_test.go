package install

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/harness"
	"github.com/devicequota/devicequota/webhooks"
)

func deployment(t *testing.T, objs []*unstructured.Unstructured) *appsv1.Deployment {
	t.Helper()
	return as[appsv1.Deployment](t, one(t, objs, "Deployment"))
}

// options returns what the manager makes of the rendered configuration file.
func options(t *testing.T, objs []*unstructured.Unstructured) app.Options {
	t.Helper()
	o := app.DefaultOptions()
	fs := pflag.NewFlagSet("devicequota", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := app.ApplyConfig(fs, []byte(configFile(t, objs))); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestTheManagerTakesEveryRenderedConfiguration(t *testing.T) {
	t.Parallel()
	for ci, v := range ciValues(t, mainChart) {
		t.Run(ci, func(t *testing.T) {
			t.Parallel()
			objs := mustRender(t, mainChart, v)
			o := options(t, objs)
			d := deployment(t, objs)
			pod := d.Spec.Template.Spec
			grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
			if used := time.Duration(pod.Containers[0].Lifecycle.PreStop.Sleep.Seconds)*time.Second + o.ShutdownDelay + o.ShutdownTimeout; used >= grace {
				t.Errorf("preStop and shutdown take %v of %v", used, grace)
			}
			for name, w := range webhooksOf(t, objs) {
				if limit := time.Duration(*w.TimeoutSeconds) * time.Second; o.WebhookTimeout >= limit && *w.FailurePolicy == "Fail" {
					t.Errorf("%s: the manager takes %v, the API server waits %v", name, o.WebhookTimeout, limit)
				}
			}
			for _, p := range pod.Containers[0].Ports {
				for port, address := range map[string]string{"webhooks": o.WebhookAddress, "health": o.HealthAddress, "metrics": o.MetricsAddress} {
					if p.Name == port && !strings.HasSuffix(address, ":"+strconv.Itoa(int(p.ContainerPort))) {
						t.Errorf("port %s is %d, the manager binds %s", port, p.ContainerPort, address)
					}
				}
			}
		})
	}
}

// TestEveryFlagIsAValue fails when the manager has a flag that no value sets.
func TestEveryFlagIsAValue(t *testing.T) {
	t.Parallel()
	rendered := map[string]bool{}
	for _, v := range ciValues(t, mainChart) {
		for _, line := range strings.Split(configFile(t, mustRender(t, mainChart, v)), "\n") {
			k, _, _ := strings.Cut(line, ":")
			rendered[k] = true
		}
	}
	o := app.DefaultOptions()
	fs := pflag.NewFlagSet("devicequota", pflag.ContinueOnError)
	o.AddFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		words := strings.Split(f.Name, "-")
		for i := 1; i < len(words); i++ {
			words[i] = strings.ToUpper(words[i][:1]) + words[i][1:]
		}
		if name := strings.Join(words, ""); !rendered[name] {
			t.Errorf("--%s: no ci values file renders %s", f.Name, name)
		}
	})
}

// TestValuesReachTheManager sets everything to something else than the manager's default.
func TestValuesReachTheManager(t *testing.T) {
	t.Parallel()
	got := options(t, mustRender(t, mainChart, parseValues(t, `
fullnameOverride: dq
platform: openshift
exemptNamespaces: [other]
resourceAPIVersion: v1beta2
enforcement: Audit
allocation: all
adminAccess: Deny
schedulers: [scheduler]
claimControllers: [controller]
maxInFlight: 7
webhookTimeout: 3s
webhookPort: 9001
healthPort: 9002
metrics: {port: 9003, secure: false, projectSeries: 8}
tracing: {endpoint: "http://collector:4317", samplingRatePerMillion: 9}
pprofBindAddress: 127.0.0.1:9004
tls: {minVersion: "1.3", secretName: certificate}
replicas: 1
leaderElection: {enabled: false, leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 2500ms}
shutdown: {delay: 5s, timeout: 6s}
log: {format: text, level: 3}
`)))
	want := app.Options{
		Namespace:        harness.Namespace,
		ExemptNamespaces: []string{harness.Namespace, "openshift", "openshift-infra", "openshift-node", "other"},
		WebhookAddress:   ":9001", TLSMode: app.TLSSelfSigned, TLSSecret: "certificate", TLSService: "dq", TLSMinVersion: "1.3",
		CertDir: app.DefaultOptions().CertDir, ValidatingConfiguration: "dq", MutatingConfiguration: "dq",
		HealthAddress: ":9002", MetricsAddress: ":9003", MetricsProjectSeries: 8, PprofAddress: "127.0.0.1:9004",
		TracingEndpoint: "http://collector:4317", TracingSamplingRatePerMillion: 9,
		LeaseName: "dq", LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 2500 * time.Millisecond,
		ShutdownDelay: 5 * time.Second, ShutdownTimeout: 6 * time.Second,
		Allocation: app.AllocationAll, Platform: app.PlatformOpenShift, ResourceAPIVersion: "v1beta2", Enforcement: quota.Audit,
		AdminAccess: webhooks.AdminAccessDeny, Schedulers: []string{"scheduler"}, ClaimControllers: []string{"controller"},
		MaxInFlight: 7, WebhookTimeout: 3 * time.Second, LogFormat: "text", LogLevel: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	defaults, set := reflect.ValueOf(app.DefaultOptions()), reflect.ValueOf(got)
	for i := range set.NumField() {
		name := set.Type().Field(i).Name
		// What the release is, what the chart mounts, what the build and the tests set.
		if slices.Contains([]string{"Namespace", "CertDir", "Version", "Started", "SettleInterval"}, name) {
			continue
		}
		if reflect.DeepEqual(defaults.Field(i).Interface(), set.Field(i).Interface()) {
			t.Errorf("%s is still the default", name)
		}
	}
	for text, want := range map[string]string{"{metrics: {enabled: false}}": app.AddressOff, "{}": ":8443"} {
		if got := options(t, mustRender(t, mainChart, parseValues(t, text))).MetricsAddress; got != want {
			t.Errorf("%s: metrics at %q, want %q", text, got, want)
		}
	}
	if o := options(t, mustRender(t, mainChart, parseValues(t, "{platform: openshift, tls: {mode: serviceCA}}"))); o.TLSMode != app.TLSFiles || o.TLSSecret != "" {
		t.Errorf("serviceCA: mode %q, Secret %q", o.TLSMode, o.TLSSecret)
	}
}

// TestDefaultValuesAreTheManagersDefaults holds the two against each other, so that the
// documentation of one is true for the other.
func TestDefaultValuesAreTheManagersDefaults(t *testing.T) {
	t.Parallel()
	want, got := app.DefaultOptions(), options(t, mustRender(t, mainChart, values{}))
	same := map[string][2]any{
		"enforcement": {want.Enforcement, got.Enforcement}, "allocation": {want.Allocation, got.Allocation},
		"adminAccess": {want.AdminAccess, got.AdminAccess}, "platform": {want.Platform, got.Platform},
		"maxInFlight": {want.MaxInFlight, got.MaxInFlight}, "webhookTimeout": {want.WebhookTimeout, got.WebhookTimeout},
		"resourceAPIVersion": {want.ResourceAPIVersion, got.ResourceAPIVersion},
		"shutdown.delay":     {want.ShutdownDelay, got.ShutdownDelay}, "shutdown.timeout": {want.ShutdownTimeout, got.ShutdownTimeout},
		"leaseDuration": {want.LeaseDuration, got.LeaseDuration}, "renewDeadline": {want.RenewDeadline, got.RenewDeadline}, "retryPeriod": {want.RetryPeriod, got.RetryPeriod},
		"log.format": {want.LogFormat, got.LogFormat}, "log.level": {want.LogLevel, got.LogLevel}, "tls.minVersion": {want.TLSMinVersion, got.TLSMinVersion},
		"webhookPort": {want.WebhookAddress, got.WebhookAddress}, "healthPort": {want.HealthAddress, got.HealthAddress}, "metrics.port": {want.MetricsAddress, got.MetricsAddress},
		"metrics.secure": {want.MetricsSecure, got.MetricsSecure}, "leaseName": {want.LeaseName, got.LeaseName},
	}
	for _, name := range sorted(same) {
		if same[name][0] != same[name][1] {
			t.Errorf("%s: the manager's default is %v, the chart's %v", name, same[name][0], same[name][1])
		}
	}
}

func TestOpenShiftLeaderElectionPreset(t *testing.T) {
	t.Parallel()
	o := options(t, mustRender(t, mainChart, parseValues(t, "leaderElection: {preset: openshift, retryPeriod: 20s}")))
	if o.LeaseDuration != 137*time.Second || o.RenewDeadline != 107*time.Second || o.RetryPeriod != 20*time.Second {
		t.Errorf("got %v, %v, %v", o.LeaseDuration, o.RenewDeadline, o.RetryPeriod)
	}
}

// TestPodsPassRestrictedPolicies checks every render against the restricted pod security
// standard and OpenShift's restricted-v2, which wants no fixed user.
func TestPodsPassRestrictedPolicies(t *testing.T) {
	t.Parallel()
	for ci, v := range ciValues(t, mainChart) {
		objs := mustRender(t, mainChart, v)
		pods := map[string]corev1.PodSpec{"manager": deployment(t, objs).Spec.Template.Spec}
		for _, o := range objs {
			if o.GetKind() == "Pod" {
				pods["test"] = as[corev1.Pod](t, o).Spec
			}
		}
		for name, pod := range pods {
			s := pod.SecurityContext
			if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.RunAsUser != nil || s.FSGroup != nil {
				t.Errorf("%s: %s: pod security context %v", ci, name, s)
			}
			for _, c := range pod.Containers {
				s := c.SecurityContext
				if s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || s.RunAsUser != nil {
					t.Errorf("%s: %s: security context %v", ci, name, s)
				}
				if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited || c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
					t.Errorf("%s: %s: resources %v", ci, name, c.Resources)
				}
			}
			if token := pod.AutomountServiceAccountToken; token == nil || *token != (name == "manager") {
				t.Errorf("%s: %s: mounts a token: %v", ci, name, token)
			}
		}
	}
}

func TestHighAvailability(t *testing.T) {
	t.Parallel()
	objs := mustRender(t, mainChart, values{})
	d := deployment(t, objs)
	if *d.Spec.Replicas != 2 || d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("%d replicas, strategy %v", *d.Spec.Replicas, d.Spec.Strategy)
	}
	pod := d.Spec.Template.Spec
	if pod.PriorityClassName != "system-cluster-critical" || len(pod.TopologySpreadConstraints) != 2 || pod.Affinity.PodAntiAffinity == nil {
		t.Errorf("priority class %q, %d spread constraints, affinity %v", pod.PriorityClassName, len(pod.TopologySpreadConstraints), pod.Affinity)
	}
	for _, c := range pod.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			t.Errorf("spread over %s is hard", c.TopologyKey)
		}
	}
	c := pod.Containers[0]
	if c.StartupProbe == nil || c.LivenessProbe == nil || c.ReadinessProbe == nil || c.Lifecycle.PreStop.Sleep == nil {
		t.Error("a probe or the preStop sleep is missing")
	}
	pdb := as[policyv1.PodDisruptionBudget](t, one(t, objs, "PodDisruptionBudget"))
	if *pdb.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
		t.Error("pods that are not ready block node drains")
	}
	for name := range names(mustRender(t, mainChart, values{"replicas": 1})) {
		if strings.HasPrefix(name, "PodDisruptionBudget") {
			t.Error("a budget over one replica blocks node drains")
		}
	}
	changed := deployment(t, mustRender(t, mainChart, parseValues(t, "log: {level: 2}")))
	const sum = "devicequota.io/config-checksum"
	if changed.Spec.Template.Annotations[sum] == d.Spec.Template.Annotations[sum] {
		t.Error("a changed configuration starts no new pods")
	}
}
