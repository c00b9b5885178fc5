// Package v1alpha1 holds the API types of devicequota.io/v1alpha1: DeviceLedger, the
// exact account of one ClusterResourceQuota, and AppliedDeviceQuota, the view of a
// quota inside one project on clusters where AppliedClusterResourceQuota belongs to
// the platform.
//
// # Changing them
//
// During an upgrade two versions write the same ledger in turn, each write all of it: an
// older replica drops the fields that it does not know. So a new field is optional, and its
// absence makes a ledger count more or be recounted, never less; what a field means never
// changes. A field that must not vanish needs a release that keeps it before the one that
// relies on it. testdata has a ledger of each release with all its fields.
//
// +kubebuilder:object:generate=true
// +groupName=devicequota.io
package v1alpha1
