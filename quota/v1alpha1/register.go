package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "devicequota.io", Version: "v1alpha1"}

// Resource returns the qualified form of a resource of this group.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme adds the types of this package to the scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&DeviceLedger{}, &DeviceLedgerList{},
		&AppliedDeviceQuota{}, &AppliedDeviceQuotaList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
