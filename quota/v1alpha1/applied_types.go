package v1alpha1

import (
	quotav1 "github.com/openshift/api/quota/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AppliedDeviceQuota shows a ClusterResourceQuota to the members of one project: its
// limits, its total use, and the use of this project. It is what
// AppliedClusterResourceQuota is on plain Kubernetes, for OpenShift, where the platform
// computes that resource itself.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=adq,categories=devicequota
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AppliedDeviceQuota struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the quota's spec.
	Spec quotav1.ClusterResourceQuotaSpec `json:"spec"`

	// status holds the quota's total and only this project's entry in namespaces.
	// +optional
	Status quotav1.ClusterResourceQuotaStatus `json:"status,omitempty"`
}

// AppliedDeviceQuotaList is a list of applied quotas.
//
// +kubebuilder:object:root=true
type AppliedDeviceQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AppliedDeviceQuota `json:"items"`
}
