package main

import (
	"context"
	"fmt"
	"sync"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// counted is an object that counts claims, as it was last written.
type counted struct {
	mu     sync.Mutex
	object client.Object
	used   []corev1.ResourceList
}

// write counts one more claim.
func (o *counted) write(ctx context.Context, cl client.Client) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, used := range o.used {
		n := used[claimsKey]
		n.Add(*resource.NewQuantity(1, resource.DecimalSI))
		used[claimsKey] = n
	}
	next := o.object.DeepCopyObject().(client.Object)
	next.SetManagedFields([]metav1.ManagedFieldsEntry{{}}) // as the manager writes it
	if err := cl.Update(ctx, next); err != nil {
		return err
	}
	o.object.SetResourceVersion(next.GetResourceVersion())
	return nil
}

// alone creates claims when there is neither a webhook nor a manager, while a plain client
// makes the writes of a claim that shares none with others: one of the ledger of each quota of
// its project, and one of what its project is shown of each. No create waits for them.
func (s *session) alone(ctx context.Context) error {
	if err := s.end(); err != nil {
		return err
	}
	s.m = nil
	if err := s.cp.UninstallWebhooks(ctx); err != nil {
		return err
	}
	objects, err := s.countedObjects(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var first error
	s.r.Alone, err = s.steady(ctx, "alone", s.o.load/2, func(project int) {
		var wg sync.WaitGroup
		for _, quota := range s.c.quotas(project) {
			for _, namespace := range []string{"", s.c.project(project)} {
				wg.Go(func() {
					if err := objects[types.NamespacedName{Namespace: namespace, Name: quota}].write(ctx, s.cp.Client); err != nil {
						mu.Lock()
						defer mu.Unlock()
						first = fmt.Errorf("%s/%s: %w", namespace, quota, err)
					}
				})
			}
		}
		wg.Wait()
	})
	if err == nil {
		err = first
	}
	return err
}

// countedObjects returns all ledgers (without namespace) and projections.
func (s *session) countedObjects(ctx context.Context) (map[types.NamespacedName]*counted, error) {
	out := map[types.NamespacedName]*counted{}
	var ledgers v1alpha1.DeviceLedgerList
	if err := s.cp.Client.List(ctx, &ledgers); err != nil {
		return nil, err
	}
	for i := range ledgers.Items {
		l := &ledgers.Items[i]
		out[client.ObjectKeyFromObject(l)] = &counted{object: l, used: []corev1.ResourceList{l.Status.Used}}
	}
	var applied quotav1.AppliedClusterResourceQuotaList
	if err := s.cp.Client.List(ctx, &applied); err != nil {
		return nil, err
	}
	for i := range applied.Items {
		a := &applied.Items[i]
		o := &counted{object: a, used: []corev1.ResourceList{a.Status.Total.Used}}
		for j := range a.Status.Namespaces {
			o.used = append(o.used, a.Status.Namespaces[j].Status.Used)
		}
		out[client.ObjectKeyFromObject(a)] = o
	}
	return out, nil
}
