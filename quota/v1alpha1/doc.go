// Package v1alpha1 holds the API types of devicequota.io/v1alpha1: DeviceLedger, the
// exact account of one ClusterResourceQuota, and AppliedDeviceQuota, the view of a
// quota inside one project on clusters where AppliedClusterResourceQuota belongs to
// the platform.
//
// +kubebuilder:object:generate=true
// +groupName=devicequota.io
package v1alpha1
