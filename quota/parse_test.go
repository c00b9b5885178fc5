package quota_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
)

const (
	gpuDevices = "gpu.nvidia.com.deviceclass.devicequota.io/devices"
	gpuMemory  = "gpu.nvidia.com.deviceclass.devicequota.io/capacity.memory"
	h100       = "h100.selector.devicequota.io/devices"
)

func TestParseReadsEverythingOnce(t *testing.T) {
	t.Parallel()
	crq := builders.Quota("team", builders.List(
		gpuDevices, "8", h100, "2", "h100.selector.devicequota.io/capacity.memory", "160Gi", "pods", "10",
		"count/resourceclaims.resource.k8s.io", "5", "requests.nvidia.com/gpu", "8"))
	annotate(crq, quota.EnforcementAnnotation, "Warn", quota.UnknownFootprintAnnotation, "Allow", quota.TrueDownAnnotation, "Never",
		"selector.devicequota.io/h100", "productName=H100", "selector.devicequota.io/unused", "")
	crq.ResourceVersion = "42"
	crq.CreationTimestamp = metav1.NewTime(time.Unix(100, 0))
	before := crq.DeepCopy()
	q, errs := quota.Parse(crq, quota.ParseOptions{})
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if diff := cmp.Diff(before, crq); diff != "" {
		t.Errorf("the quota was changed: %s", diff)
	}
	var keys []string
	for _, k := range q.Keys {
		keys = append(keys, string(k.Name))
	}
	want := []string{"count/resourceclaims.resource.k8s.io", gpuDevices, "h100.selector.devicequota.io/capacity.memory", h100, "requests.nvidia.com/gpu"}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.ResourceName{"pods"}, q.NotEnforced); diff != "" {
		t.Errorf("not enforced (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"h100": "productName=H100"}, q.Selectors); diff != "" {
		t.Errorf("selectors (-want +got):\n%s", diff)
	}
	if q.Name != "team" || q.UID != crq.UID || q.ResourceVersion != 42 || !q.Created.Equal(time.Unix(100, 0)) || q.Deleting ||
		q.Enforcement != quota.Warn || q.UnknownFootprint != quota.AllowUnknown || q.TrueDown != quota.TrueDownNever {
		t.Errorf("read as %+v", q)
	}
	if !q.Limits(h100) || q.Limits("pods") {
		t.Error("Limits disagrees with Keys")
	}
}

func TestDefaultsAreStrict(t *testing.T) {
	t.Parallel()
	q := parse(t, builders.List(gpuDevices, "8"))
	if q.Enforcement != quota.Enforce || q.UnknownFootprint != quota.DenyUnknown || q.TrueDown != quota.TrueDownOwned {
		t.Errorf("defaults are %s, %s, %s", q.Enforcement, q.UnknownFootprint, q.TrueDown)
	}
}

func TestKubernetesOwnKeysMayBeLeftToThePlatform(t *testing.T) {
	t.Parallel()
	crq := builders.Quota("team", builders.List(gpuDevices, "8", "gpu.nvidia.com.deviceclass.resource.k8s.io/devices", "8",
		"count/resourceclaims.resource.k8s.io", "5", "requests.nvidia.com/gpu", "8", "requests.deviceclass.resource.kubernetes.io/gpu", "1", "pods", "1"))
	q, errs := quota.Parse(crq, quota.ParseOptions{PlatformKeys: true})
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if len(q.Keys) != 1 || q.Keys[0].Name != gpuDevices {
		t.Errorf("enforced: %v", q.Keys)
	}
	if len(q.PlatformKeys) != 4 || len(q.NotEnforced) != 1 {
		t.Errorf("platform: %v, not enforced: %v", q.PlatformKeys, q.NotEnforced)
	}
}

func TestQuotasWithScopesEnforceNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*quotav1.ClusterResourceQuota){
		"scopes": func(c *quotav1.ClusterResourceQuota) {
			c.Spec.Quota.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		},
		"scopeSelector": func(c *quotav1.ClusterResourceQuota) { c.Spec.Quota.ScopeSelector = &corev1.ScopeSelector{} },
	} {
		crq := builders.Quota("team", builders.List(gpuDevices, "8"))
		change(crq)
		q, errs := quota.Parse(crq, quota.ParseOptions{})
		if len(errs) > 0 || len(q.Keys) != 0 || len(q.NotEnforced) != 1 || !q.Scoped {
			t.Errorf("%s: %v, keys %v, not enforced %v", name, errs, q.Keys, q.NotEnforced)
		}
	}
}

func TestBadQuotasAreErrorsThatNameTheField(t *testing.T) {
	t.Parallel()
	hard := func(kv ...string) func(*quotav1.ClusterResourceQuota) {
		return func(c *quotav1.ClusterResourceQuota) { c.Spec.Quota.Hard = builders.List(kv...) }
	}
	for name, test := range map[string]struct {
		change func(*quotav1.ClusterResourceQuota)
		want   []string
	}{
		"valid":               {func(*quotav1.ClusterResourceQuota) {}, nil},
		"negative limit":      {hard(gpuDevices, "-1"), []string{"spec.quota.hard[" + gpuDevices + "]"}},
		"fractional devices":  {hard(gpuDevices, "1500m"), []string{"spec.quota.hard[" + gpuDevices + "]"}},
		"fractional objects":  {hard("count/resourceclaims.resource.k8s.io", "500m"), []string{"spec.quota.hard[count/resourceclaims.resource.k8s.io]"}},
		"negative fraction":   {hard(gpuDevices, "-1500m"), []string{"spec.quota.hard[" + gpuDevices + "]", "spec.quota.hard[" + gpuDevices + "]"}},
		"fractional capacity": {hard("nic.deviceclass.devicequota.io/capacity.bandwidth", "1500m"), nil},
		"negative capacity":   {hard(gpuMemory, "-1Gi"), []string{"spec.quota.hard[" + gpuMemory + "]"}},
		"other key negative":  {hard("pods", "-1"), nil},
		"malformed key":       {hard("gpu.deviceclass.devicequota.io/memory", "1"), []string{"spec.quota.hard[gpu.deviceclass.devicequota.io/memory]"}},
		"no expression":       {hard(h100, "1"), []string{"spec.quota.hard[" + h100 + "]"}},
		"empty expression": {func(c *quotav1.ClusterResourceQuota) {
			hard(h100, "1")(c)
			annotate(c, "selector.devicequota.io/h100", " ")
		}, []string{"metadata.annotations[selector.devicequota.io/h100]"}},
		"expression does not compile": {func(c *quotav1.ClusterResourceQuota) {
			hard(h100, "1")(c)
			annotate(c, "selector.devicequota.io/h100", "broken")
		}, []string{"metadata.annotations[selector.devicequota.io/h100]"}},
		"enforcement":       {func(c *quotav1.ClusterResourceQuota) { annotate(c, quota.EnforcementAnnotation, "enforce") }, []string{"metadata.annotations[devicequota.io/enforcement]"}},
		"unknown footprint": {func(c *quotav1.ClusterResourceQuota) { annotate(c, quota.UnknownFootprintAnnotation, "") }, []string{"metadata.annotations[devicequota.io/unknown-footprint]"}},
		"true-down":         {func(c *quotav1.ClusterResourceQuota) { annotate(c, quota.TrueDownAnnotation, "yes") }, []string{"metadata.annotations[devicequota.io/true-down]"}},
		"no selector":       {func(c *quotav1.ClusterResourceQuota) { c.Spec.Selector = quotav1.ClusterResourceQuotaSelector{} }, []string{"spec.selector"}},
		"empty labels": {func(c *quotav1.ClusterResourceQuota) {
			c.Spec.Selector = quotav1.ClusterResourceQuotaSelector{LabelSelector: &metav1.LabelSelector{}}
		}, []string{"spec.selector.labels"}},
		"malformed labels": {func(c *quotav1.ClusterResourceQuota) {
			c.Spec.Selector.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
		}, []string{"spec.selector.labels.matchExpressions[0].operator"}},
		"malformed annotation": {func(c *quotav1.ClusterResourceQuota) {
			c.Spec.Selector.AnnotationSelector = map[string]string{"a b": "c"}
		}, []string{"spec.selector.annotations[a b]"}},
		"everything": {func(c *quotav1.ClusterResourceQuota) {
			hard(gpuDevices, "-1", "x.devicequota.io/y", "1")(c)
			c.Spec.Selector = quotav1.ClusterResourceQuotaSelector{}
			annotate(c, quota.TrueDownAnnotation, "yes")
		}, []string{"metadata.annotations[devicequota.io/true-down]", "spec.quota.hard[" + gpuDevices + "]", "spec.quota.hard[x.devicequota.io/y]", "spec.selector"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crq := builders.Quota("team", builders.List(gpuDevices, "8"))
			test.change(crq)
			q, errs := quota.Parse(crq, quota.ParseOptions{Compile: compile})
			if diff := cmp.Diff(test.want, fields(errs)); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
			if q == nil || len(q.Keys)+len(q.NotEnforced) != len(crq.Spec.Quota.Hard) {
				t.Errorf("no usable quota: %+v", q)
			}
		})
	}
}

func TestASelectorThatDoesNotCompileStaysEnforced(t *testing.T) {
	t.Parallel()
	crq := builders.Quota("team", builders.List(h100, "1"))
	annotate(crq, "selector.devicequota.io/h100", "broken")
	if q, errs := quota.Parse(crq, quota.ParseOptions{Compile: compile}); len(errs) != 1 || !q.Limits(h100) || q.Selectors["h100"] != "broken" {
		t.Errorf("%v, keys %v", errs, q.Keys)
	}
}

func compile(expression string) error {
	if expression == "broken" {
		return errors.New("syntax error")
	}
	return nil
}

func TestMalformedSelectorSelectsNothing(t *testing.T) {
	t.Parallel()
	s, err := quota.SelectorOf(v1alpha1.LedgerSelector{Labels: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}})
	if err == nil || s.Matches(map[string]string{"a": "b"}, nil) || s.Matches(nil, nil) {
		t.Errorf("error %v, matches", err)
	}
}

func TestProjectsAreSelectedByLabelsAndAnnotations(t *testing.T) {
	t.Parallel()
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	for name, test := range map[string]struct {
		selector            v1alpha1.LedgerSelector
		labels, annotations map[string]string
		want                bool
	}{
		"labels":                   {v1alpha1.LedgerSelector{Labels: labels}, map[string]string{"team": "a", "x": "y"}, nil, true},
		"other label":              {v1alpha1.LedgerSelector{Labels: labels}, map[string]string{"team": "b"}, nil, false},
		"annotation":               {v1alpha1.LedgerSelector{Annotations: map[string]string{"o": "me"}}, nil, map[string]string{"o": "me"}, true},
		"other annotation":         {v1alpha1.LedgerSelector{Annotations: map[string]string{"o": "me"}}, nil, map[string]string{"o": "you"}, false},
		"no annotation":            {v1alpha1.LedgerSelector{Annotations: map[string]string{"o": ""}}, nil, nil, false},
		"both":                     {v1alpha1.LedgerSelector{Labels: labels, Annotations: map[string]string{"o": "me"}}, map[string]string{"team": "a"}, map[string]string{"o": "me"}, true},
		"labels but no annotation": {v1alpha1.LedgerSelector{Labels: labels, Annotations: map[string]string{"o": "me"}}, map[string]string{"team": "a"}, nil, false},
		"empty selects everything": {v1alpha1.LedgerSelector{Labels: &metav1.LabelSelector{}}, nil, nil, true},
	} {
		s, err := quota.SelectorOf(test.selector)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Matches(test.labels, test.annotations); got != test.want {
			t.Errorf("%s: matches is %v", name, got)
		}
		if diff := cmp.Diff(test.selector, s.Ledger()); diff != "" {
			t.Errorf("%s: ledger (-want +got):\n%s", name, diff)
		}
	}
	if s, _ := quota.SelectorOf(v1alpha1.LedgerSelector{Labels: labels}); s.Empty() {
		t.Error("a selector with labels is empty")
	}
	if s, _ := quota.SelectorOf(v1alpha1.LedgerSelector{Labels: &metav1.LabelSelector{}}); !s.Empty() {
		t.Error("a selector without labels is not empty")
	}
}

func TestEmptyListsOfUnmatchedKeysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	q, _ := quota.Parse(builders.Quota("team", builders.List("b", "1", "a", "1", "c", "1")), quota.ParseOptions{})
	if !slices.IsSorted(q.NotEnforced) || len(q.NotEnforced) != 3 {
		t.Errorf("not enforced: %v", q.NotEnforced)
	}
}

func TestTheDefaultEnforcementIsForQuotasWithoutTheAnnotation(t *testing.T) {
	crq := builders.Quota("q", builders.List("gpu.deviceclass.devicequota.io/devices", "1"))
	if q, _ := quota.Parse(crq, quota.ParseOptions{Enforcement: quota.Audit}); q.Enforcement != quota.Audit {
		t.Errorf("without annotation: %s", q.Enforcement)
	}
	crq.Annotations = map[string]string{quota.EnforcementAnnotation: "Enforce"}
	if q, _ := quota.Parse(crq, quota.ParseOptions{Enforcement: quota.Audit}); q.Enforcement != quota.Enforce {
		t.Errorf("with annotation: %s", q.Enforcement)
	}
}
