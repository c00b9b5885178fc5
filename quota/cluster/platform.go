package cluster

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Platform is who owns ClusterResourceQuota.
type Platform string

const (
	// Kubernetes has no other owner: we write the status and AppliedClusterResourceQuotas.
	Kubernetes Platform = "Kubernetes"
	// OpenShift owns both; neither is ever written.
	OpenShift Platform = "OpenShift"
)

// ParsePlatform returns the platform of a flag's value; auto and empty give "", to be detected.
func ParsePlatform(value string) (Platform, error) {
	switch value {
	case "", "auto":
		return "", nil
	case "kubernetes", string(Kubernetes):
		return Kubernetes, nil
	case "openshift", string(OpenShift):
		return OpenShift, nil
	default:
		return "", fmt.Errorf("platform %q: want auto, kubernetes or openshift", value)
	}
}

// apiService is the one that OpenShift's own API server registers.
const apiService = "v1.quota.openshift.io"

// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,resourceNames=v1.quota.openshift.io,verbs=get,roleName=devicequota-detection

// DetectPlatform asks the API server. On OpenShift the group is served by a Service; where it
// comes from a CRD, or not at all, nothing else owns it. What cannot be read is an error,
// never Kubernetes: there we would write what the platform owns.
func DetectPlatform(ctx context.Context, c client.Reader) (Platform, error) {
	s := &unstructured.Unstructured{}
	s.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	err := c.Get(ctx, client.ObjectKey{Name: apiService}, s)
	if isMissing(err, apiService) {
		return Kubernetes, nil
	}
	if err != nil {
		return "", fmt.Errorf("platform: read of APIService %q: %w", apiService, err)
	}
	_, backed, err := unstructured.NestedMap(s.Object, "spec", "service")
	if err != nil {
		return "", fmt.Errorf("platform: APIService %q: %w", apiService, err)
	}
	if backed {
		return OpenShift, nil
	}
	return Kubernetes, nil
}

// isMissing tells whether the API server says that just this object does not exist. Something
// else that is not found, such as the group of APIServices, tells nothing about the object.
func isMissing(err error, name string) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name
}
