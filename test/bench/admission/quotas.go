package main

import (
	"context"
	"fmt"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nativeQuotas limits each namespace by a ResourceQuota. Its controller does not run here, so
// the status that admission needs is written by hand.
func (b *bench) nativeQuotas(ctx context.Context, namespaces []string) error {
	hard := corev1.ResourceList{key: limit}
	for _, ns := range namespaces {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "bench"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
		if err := b.cp.Client.Create(ctx, q); err != nil {
			return err
		}
		q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{key: resource.MustParse("0")}}
		if err := b.cp.Client.Status().Update(ctx, q); err != nil {
			return err
		}
	}
	return b.denies(ctx, namespaces)
}

// denies waits until a claim beyond the limit is denied in every namespace: the quota is in force.
func (b *bench) denies(ctx context.Context, namespaces []string) error {
	for _, ns := range namespaces {
		c := claim(ns, "beyond")
		c.Spec.Devices.Requests[0].Exactly.Count = 1 << 40
		if err := waitFor(ctx, func(ctx context.Context) error {
			if err := b.cp.Client.Create(ctx, c.DeepCopy(), client.DryRunAll); !apierrors.IsForbidden(err) {
				return fmt.Errorf("want a denial, got: %w", err)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// ourQuota limits all namespaces of the run by one ClusterResourceQuota.
func (b *bench) ourQuota(ctx context.Context, namespaces []string) error {
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: namespaces[0]}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"run": namespaces[0]}}
	q.Spec.Quota.Hard = corev1.ResourceList{key: limit}
	if err := b.cp.Client.Create(ctx, q); err != nil {
		return err
	}
	if err := b.cp.InstallWebhooks(ctx); err != nil {
		return err
	}
	return b.denies(ctx, namespaces)
}

// ourQuotaAlone is ourQuota with the webhooks switched off that shape claims, as the chart's
// webhooks.mutateResourceClaims.enabled=false does.
func (b *bench) ourQuotaAlone(ctx context.Context, namespaces []string) error {
	if err := b.ourQuota(ctx, namespaces); err != nil {
		return err
	}
	return b.cp.Client.DeleteAllOf(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{})
}
