package quota

import (
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Status returns the status of a quota: the total, and an entry for every project in
// o.ByNamespace, sorted, also those without use. Total and entries come from the one
// observation and add up. hard is the quota's; used has the enforced keys only, since nothing is
// known of the others. Namespaces is never nil: consoles iterate over it.
func Status(q *Quota, o Observed) quotav1.ClusterResourceQuotaStatus {
	names := make([]corev1.ResourceName, len(q.Keys))
	for i := range q.Keys {
		names[i] = q.Keys[i].Name
	}
	status := func(used corev1.ResourceList) corev1.ResourceQuotaStatus {
		return corev1.ResourceQuotaStatus{Hard: Copy(q.Hard), Used: Only(used, names)}
	}
	out := quotav1.ClusterResourceQuotaStatus{
		Total:      status(o.Used),
		Namespaces: make(quotav1.ResourceQuotasStatusByNamespace, 0, len(o.ByNamespace)),
	}
	for _, ns := range sortedStrings(o.ByNamespace) {
		out.Namespaces = append(out.Namespaces, quotav1.ResourceQuotaStatusByNamespace{Namespace: ns, Status: status(o.ByNamespace[ns])})
	}
	return out
}

// Applied returns what one project is shown of a quota on plain Kubernetes: its spec, its
// total, and only the project's own entry.
func Applied(crq *quotav1.ClusterResourceQuota, status quotav1.ClusterResourceQuotaStatus, namespace string) *quotav1.AppliedClusterResourceQuota {
	return &quotav1.AppliedClusterResourceQuota{
		TypeMeta:   metav1.TypeMeta{APIVersion: quotav1.GroupVersion.String(), Kind: "AppliedClusterResourceQuota"},
		ObjectMeta: appliedMeta(crq, namespace),
		Spec:       *crq.Spec.DeepCopy(),
		Status:     only(status, namespace),
	}
}

// AppliedDeviceQuota is Applied for OpenShift, where the platform computes AppliedClusterResourceQuota.
func AppliedDeviceQuota(crq *quotav1.ClusterResourceQuota, status quotav1.ClusterResourceQuotaStatus, namespace string) *v1alpha1.AppliedDeviceQuota {
	return &v1alpha1.AppliedDeviceQuota{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AppliedDeviceQuota"},
		ObjectMeta: appliedMeta(crq, namespace),
		Spec:       *crq.Spec.DeepCopy(),
		Status:     only(status, namespace),
	}
}

// appliedMeta: the quota's name, and the quota as owner, so that it goes with it.
func appliedMeta(crq *quotav1.ClusterResourceQuota, namespace string) metav1.ObjectMeta {
	controller := true
	return metav1.ObjectMeta{
		Name: crq.Name, Namespace: namespace,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: quotav1.GroupVersion.String(), Kind: "ClusterResourceQuota",
			Name: crq.Name, UID: crq.UID, Controller: &controller,
		}},
	}
}

// only returns the total and the entry of one project.
func only(status quotav1.ClusterResourceQuotaStatus, namespace string) quotav1.ClusterResourceQuotaStatus {
	out := quotav1.ClusterResourceQuotaStatus{Total: *status.Total.DeepCopy(), Namespaces: quotav1.ResourceQuotasStatusByNamespace{}}
	for i := range status.Namespaces {
		if status.Namespaces[i].Namespace == namespace {
			out.Namespaces = append(out.Namespaces, *status.Namespaces[i].DeepCopy())
		}
	}
	return out
}
