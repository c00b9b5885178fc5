package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/webhooks"
)

// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaimtemplates;resourceclaims,verbs=get
// +kubebuilder:rbac:groups="",resources=pods;namespaces,verbs=get

// objects answers what webhooks ask about the cluster, from the caches where that is safe
// and live where something may have been created a moment ago. Safe for concurrent use.
type objects struct {
	client client.Client
	api    *devices.API
	view   *cluster.View
	store  *cluster.Store
}

var (
	_ webhooks.Objects  = objects{}
	_ webhooks.Coverage = objects{}
	_ webhooks.Usage    = objects{}
)

// Covering implements webhooks.Coverage.
func (o objects) Covering(ctx context.Context, namespace string) ([]*quota.Quota, error) {
	if quotas, _, known := o.view.Cached().Covering(namespace); known {
		return quotas, nil
	}
	quotas, _, _, err := o.view.Namespace(ctx, namespace)
	return quotas, err
}

// Used implements webhooks.Usage.
func (o objects) Used(ctx context.Context, name string) (corev1.ResourceList, bool) {
	l, err := o.store.Get(ctx, name)
	if err != nil {
		return nil, false // nothing is known of it, which is an answer
	}
	return quota.Add(l.Status.Used, quota.HoldSum(l.Status.Holds, "", nil, false)), true
}

// NamespaceAnnotations implements webhooks.Objects.
func (o objects) NamespaceAnnotations(ctx context.Context, name string) (map[string]string, error) {
	if _, annotations, known := o.view.ProjectLabels(name); known {
		return annotations, nil
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	found, err := o.get(ctx, "", name, m)
	if !found {
		return nil, err
	}
	return m.Annotations, nil
}

// Pod implements webhooks.Objects.
func (o objects) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	found, err := o.get(ctx, namespace, name, pod)
	if !found {
		return nil, err
	}
	return pod, nil
}

// Claim implements webhooks.Objects.
func (o objects) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	if claim := o.view.Claim(namespace, name); claim != nil {
		return claim, nil
	}
	return served(ctx, o, namespace, name, "ResourceClaim", o.api.Claim)
}

// Template implements webhooks.Objects.
func (o objects) Template(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaimTemplate, error) {
	return served(ctx, o, namespace, name, "ResourceClaimTemplate", o.api.Template)
}

// served reads an object in the version that the API server has.
func served[T any](ctx context.Context, o objects, namespace, name, kind string, convert func(runtime.Object) (*T, error)) (*T, error) {
	obj, err := o.api.New(kind)
	if err != nil {
		return nil, err
	}
	found, err := o.get(ctx, namespace, name, obj)
	if !found {
		return nil, err
	}
	return convert(obj)
}

// get reads live; found is false when there is none or an error.
func (o objects) get(ctx context.Context, namespace, name string, into client.Object) (found bool, err error) {
	err = o.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read of %q: %w", name, err)
	}
	return true, nil
}
