package scenarios

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// system are the namespaces that stay.
var system = []string{barrier, harness.Namespace, metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// clean takes everything away that a scenario left, and waits until the manager has seen it.
func clean(ctx context.Context) error {
	var namespaces corev1.NamespaceList
	if err := cp.Client.List(ctx, &namespaces); err != nil {
		return err
	}
	for i := range namespaces.Items {
		if n := namespaces.Items[i].Name; n != barrier {
			if err := emptyNamespace(ctx, n); err != nil {
				return fmt.Errorf("namespace %q: %w", n, err)
			}
		}
	}
	if err := deleteQuotas(ctx); err != nil {
		return err
	}
	for _, o := range []client.Object{&corev1.Node{}, &resourceapi.DeviceClass{}, &resourceapi.ResourceSlice{}, &resourceapi.DeviceTaintRule{}} {
		if err := cp.Client.DeleteAllOf(ctx, o); err != nil {
			return err
		}
	}
	if err := deletionsSeen(ctx); err != nil {
		return err
	}
	if err := accountsGone(ctx); err != nil {
		return err
	}
	for i := range namespaces.Items {
		if err := deleteNamespace(ctx, &namespaces.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// emptyNamespace deletes what scenarios make: there is no namespace controller.
func emptyNamespace(ctx context.Context, n string) error {
	in := client.InNamespace(n)
	var claims resourceapi.ResourceClaimList
	if err := cp.Client.DeleteAllOf(ctx, &corev1.Pod{}, in, client.GracePeriodSeconds(0)); err != nil {
		return err
	}
	if err := cp.Client.List(ctx, &claims, in); err != nil {
		return err
	}
	for i := range claims.Items {
		if err := remove(ctx, &claims.Items[i]); err != nil {
			return err
		}
	}
	for _, o := range []client.Object{&resourceapi.ResourceClaimTemplate{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{},
		&appsv1.DaemonSet{}, &batchv1.Job{}, &batchv1.CronJob{}} {
		if err := cp.Client.DeleteAllOf(ctx, o, in, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	return nil
}

func deleteQuotas(ctx context.Context) error {
	var quotas quotav1.ClusterResourceQuotaList
	if err := cp.Client.List(ctx, &quotas); err != nil {
		return err
	}
	for i := range quotas.Items {
		if q := &quotas.Items[i]; q.Name != barrier {
			if err := cp.Client.Delete(ctx, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// accountsGone waits until the manager has removed the ledgers and projections of the quotas.
func accountsGone(ctx context.Context) error {
	last := errors.New("not asked")
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, deadline, true, func(ctx context.Context) (bool, error) {
		for _, list := range []client.ObjectList{&v1alpha1.DeviceLedgerList{}, &quotav1.AppliedClusterResourceQuotaList{}, &v1alpha1.AppliedDeviceQuotaList{}} {
			partial := &metav1.PartialObjectMetadataList{}
			gvk, err := cp.Client.GroupVersionKindFor(list)
			if err != nil {
				return false, err
			}
			partial.SetGroupVersionKind(gvk)
			if err := cp.Client.List(ctx, partial); err != nil {
				return false, err
			}
			for i := range partial.Items {
				if m := &partial.Items[i]; m.Name != barrier {
					last = fmt.Errorf("%s %s/%s is still there", gvk.Kind, m.Namespace, m.Name)
					return false, nil
				}
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("accounts of deleted quotas: %w: %w", err, last)
	}
	return nil
}

// deleteNamespace deletes an empty namespace; those of the system get back what they were like.
func deleteNamespace(ctx context.Context, ns *corev1.Namespace) error {
	if slices.Contains(system, ns.Name) {
		if ns.Name == barrier || len(ns.Labels) == 1 && len(ns.Annotations) == 0 {
			return nil
		}
		ns.Labels, ns.Annotations = nil, nil
		return cp.Client.Update(ctx, ns)
	}
	if err := cp.Client.Delete(ctx, ns); err != nil {
		return err
	}
	set, err := kubernetes.NewForConfig(cp.Config)
	if err != nil {
		return err
	}
	ns.Spec.Finalizers, ns.ResourceVersion = nil, ""
	_, err = set.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	return client.IgnoreNotFound(err)
}
