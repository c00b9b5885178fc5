package quota_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

func TestStatusHasTotalAndEveryProjectSorted(t *testing.T) {
	t.Parallel()
	q := parse(t, builders.List(gpuDevices, "8", gpuMemory, "640Gi", "pods", "5"))
	o := quota.Observed{
		Used: builders.List(gpuDevices, "3"),
		ByNamespace: map[string]corev1.ResourceList{
			"b": builders.List(gpuDevices, "3"), "a": nil, "c": {},
		},
	}
	got := quota.Status(q, o)
	used := func(n string) corev1.ResourceQuotaStatus {
		return corev1.ResourceQuotaStatus{Hard: builders.List(gpuDevices, "8", gpuMemory, "640Gi", "pods", "5"), Used: builders.List(gpuDevices, n, gpuMemory, "0")}
	}
	want := quotav1.ClusterResourceQuotaStatus{Total: used("3"), Namespaces: quotav1.ResourceQuotasStatusByNamespace{
		{Namespace: "a", Status: used("0")}, {Namespace: "b", Status: used("3")}, {Namespace: "c", Status: used("0")}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	sum := corev1.ResourceList{}
	for _, n := range got.Namespaces {
		quota.AddTo(sum, n.Status.Used)
	}
	same(t, "sum of the projects", got.Total.Used, sum)
	if empty := quota.Status(q, quota.Observed{}); empty.Namespaces == nil || empty.Total.Used == nil {
		t.Error("a quota without projects has no lists")
	}
}

func TestAppliedShowsOnlyTheProjectsOwnEntry(t *testing.T) {
	t.Parallel()
	crq := builders.Quota("team", builders.List(gpuDevices, "8"))
	q := parse(t, crq.Spec.Quota.Hard)
	status := quota.Status(q, quota.Observed{Used: builders.List(gpuDevices, "5"), ByNamespace: map[string]corev1.ResourceList{
		"a": builders.List(gpuDevices, "2"), "secret": builders.List(gpuDevices, "3")}})
	yes := true
	meta := metav1.ObjectMeta{Name: "team", Namespace: "a", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "quota.openshift.io/v1", Kind: "ClusterResourceQuota", Name: "team", UID: crq.UID, Controller: &yes}}}
	want := quotav1.ClusterResourceQuotaStatus{Total: status.Total, Namespaces: status.Namespaces[:1]}
	acrq := quota.Applied(crq, status, "a")
	for what, diff := range map[string]string{
		"meta": cmp.Diff(meta, acrq.ObjectMeta), "spec": cmp.Diff(crq.Spec, acrq.Spec), "status": cmp.Diff(want, acrq.Status),
		"type": cmp.Diff(metav1.TypeMeta{APIVersion: "quota.openshift.io/v1", Kind: "AppliedClusterResourceQuota"}, acrq.TypeMeta),
	} {
		if diff != "" {
			t.Errorf("applied %s (-want +got):\n%s", what, diff)
		}
	}
	adq := quota.AppliedDeviceQuota(crq, status, "a")
	for what, diff := range map[string]string{
		"meta": cmp.Diff(meta, adq.ObjectMeta), "spec": cmp.Diff(crq.Spec, adq.Spec), "status": cmp.Diff(want, adq.Status),
		"type": cmp.Diff(metav1.TypeMeta{APIVersion: "devicequota.io/v1alpha1", Kind: "AppliedDeviceQuota"}, adq.TypeMeta),
	} {
		if diff != "" {
			t.Errorf("applied device quota %s (-want +got):\n%s", what, diff)
		}
	}
	acrq.Spec.Quota.Hard[gpuDevices] = builders.List("x", "1")["x"]
	if hard := crq.Spec.Quota.Hard[gpuDevices]; hard.String() != "8" {
		t.Error("the projection shares the quota's spec")
	}
	if other := quota.Applied(crq, status, "uncovered"); len(other.Status.Namespaces) != 0 || other.Status.Namespaces == nil {
		t.Errorf("a project without an entry is shown %v", other.Status.Namespaces)
	}
}
