package cluster

import (
	"context"
	"fmt"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
)

// Charger returns what charges by the inventory of the caches; nil before Synced.
func (v *View) Charger() *quota.Charger {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	return v.index.charger
}

// Inventory returns the newest inventory of the caches.
func (v *View) Inventory() *allocator.Inventory { return v.o.Source.Snapshot().Inventory }

// Claim returns a claim of the cache, read-only; nil when there is none.
func (v *View) Claim(namespace, name string) *resourceapi.ResourceClaim {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	o := v.index.names[objectName{quota.Claims, namespace, name}]
	if o == nil {
		return nil
	}
	return o.claim
}

// Claims returns all claims of the cache, read-only, in no order.
func (v *View) Claims() []*resourceapi.ResourceClaim {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	out := make([]*resourceapi.ResourceClaim, 0, len(v.index.objects))
	for _, o := range v.index.objects {
		if o.claim != nil {
			out = append(out, o.claim)
		}
	}
	return out
}

// Pod returns what the cache keeps of a pod that uses devices, read-only; nil when there is none.
func (v *View) Pod(namespace, name string) *corev1.Pod {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	o := v.index.names[objectName{quota.Pods, namespace, name}]
	if o == nil {
		return nil
	}
	return o.pod
}

// ProjectLabels returns the labels and annotations of a namespace of the cache, read-only.
func (v *View) ProjectLabels(namespace string) (labels, annotations map[string]string, known bool) {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	p := v.index.projects[namespace]
	if p == nil || !p.known {
		return nil, nil, false
	}
	return p.labels, p.annotations, true
}

// Cached observes the caches. Source: ledger.View.
func (v *View) Cached() ledger.Observation { return cached{v} }

// Namespace reads one namespace live. Source: ledger.View.
func (v *View) Namespace(ctx context.Context, name string) ([]*quota.Quota, uint64, bool, error) {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := v.o.Client.Get(ctx, client.ObjectKey{Name: name}, m)
	if apierrors.IsNotFound(err) {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, fmt.Errorf("read of namespace %q: %w", name, err)
	}
	version, err := quota.ParseVersion(m.ResourceVersion)
	if err != nil {
		return nil, 0, false, fmt.Errorf("namespace %q: %w", name, err)
	}
	p := &project{name: name, known: true, version: version, labels: m.Labels, annotations: m.Annotations}
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	var quotas []*quota.Quota
	for _, a := range sortedAccounts(v.index.accounts) {
		if v.index.covers(a.quota, p) {
			quotas = append(quotas, a.quota)
		}
	}
	return quotas, version, true, nil
}

// Quota reads one quota live; nil when it is gone. Source: ledger.View.
func (v *View) Quota(ctx context.Context, name string) (*quota.Quota, error) {
	crq := &quotav1.ClusterResourceQuota{}
	err := v.o.Client.Get(ctx, client.ObjectKey{Name: name}, crq)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read of quota %q: %w", name, err)
	}
	q, _ := quota.Parse(crq, v.o.Parse)
	return q, nil
}

// ClusterResourceQuota returns a quota of the cache, read-only; nil when there is none.
func (v *View) ClusterResourceQuota(name string) *quotav1.ClusterResourceQuota {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	a := v.index.accounts[name]
	if a == nil {
		return nil
	}
	return a.crq
}

// QuotaNames returns the names of all quotas of the cache, sorted.
func (v *View) QuotaNames() []string {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	var names []string
	for _, a := range sortedAccounts(v.index.accounts) {
		names = append(names, a.quota.Name)
	}
	return names
}
