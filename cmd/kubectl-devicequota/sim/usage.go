package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Usage is the account of one quota.
type Usage struct {
	Quota *quota.Quota
	// Status is what the ClusterResourceQuota's status says.
	Status quotav1.ClusterResourceQuotaStatus
	// Used by everything that exists.
	Used corev1.ResourceList
	// ByNamespace has every covered namespace.
	ByNamespace map[string]corev1.ResourceList
	Conditions  []v1alpha1.LedgerCondition
	// CRQ is the quota itself; it must not be modified.
	CRQ *quotav1.ClusterResourceQuota
	// Applied are the projections as they were read somewhere; nil: what they are by the above.
	// namespace -> projection
	Applied map[string]*quotav1.AppliedClusterResourceQuota
}

// Quotas returns the names of all quotas, sorted.
func (c *Cluster) Quotas() []string {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return slices.Sorted(maps.Keys(c.state.accounts))
}

// Usage returns the quota's account. The error tells that there is no such quota.
func (c *Cluster) Usage(ctx context.Context, n string) (Usage, error) {
	c.state.mu.Lock()
	crq := c.state.crqs[n]
	c.state.mu.Unlock()
	if crq == nil {
		return Usage{}, fmt.Errorf("clusterresourcequotas %q not found", n)
	}
	settled, err := c.settle(ctx, n)
	if err != nil {
		return Usage{}, err
	}
	o := settled.Observed
	u := Usage{Quota: o.Quota, Status: quota.Status(o.Quota, o), Used: o.Used, ByNamespace: o.ByNamespace, CRQ: crq}
	if settled.Ledger != nil {
		u.Conditions = settled.Ledger.Status.Conditions
	}
	return u, nil
}

// Projected returns what the project is shown of the quota; false when it is shown nothing.
func (u *Usage) Projected(namespace string) (*quotav1.AppliedClusterResourceQuota, bool) {
	if u.Applied != nil {
		applied := u.Applied[namespace]
		return applied, applied != nil
	}
	if _, covered := u.ByNamespace[namespace]; !covered {
		return nil, false
	}
	return quota.Applied(u.CRQ, u.Status, namespace), true
}

// Covering returns the quotas that cover the namespace, sorted by name.
func (c *Cluster) Covering(namespace string) []*quota.Quota {
	quotas, _, _ := c.state.Covering(namespace)
	return quotas
}

// Charger charges by the present devices.
func (c *Cluster) Charger() *quota.Charger { return c.state.Charger() }

// Inventory is the present devices.
func (c *Cluster) Inventory() *allocator.Inventory { return c.state.inventory() }

// Slices returns all slices, sorted by name; they must not be modified.
func (c *Cluster) Slices() []*resourceapi.ResourceSlice {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	var out []*resourceapi.ResourceSlice
	for _, n := range slices.Sorted(maps.Keys(c.state.slices)) {
		out = append(out, c.state.slices[n])
	}
	return out
}

// Claims returns all claims in the order of their creation; they must not be modified.
func (c *Cluster) Claims() []*resourceapi.ResourceClaim { return c.state.claims() }

// Claim returns a stored claim, nil when there is none; it must not be modified.
func (c *Cluster) Claim(key types.NamespacedName) *resourceapi.ResourceClaim {
	if o := c.state.get(quota.Claims, key.Namespace, key.Name); o != nil {
		return o.claim
	}
	return nil
}

// ClaimOf returns a claim of any version, or the claim that a template makes, in v1 with
// defaults; nil for other objects. obj is not modified.
func (c *Cluster) ClaimOf(obj runtime.Object) (*resourceapi.ResourceClaim, error) {
	converted, err := inV1(c.api, obj.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	switch o := converted.(type) {
	case *resourceapi.ResourceClaim:
		return o, nil
	case *resourceapi.ResourceClaimTemplate:
		return &resourceapi.ResourceClaim{ObjectMeta: o.ObjectMeta, Spec: o.Spec.Spec}, nil
	}
	return nil, nil
}

// Placement is where a claim would be allocated.
type Placement struct {
	// Node is empty when there is none.
	Node    string
	Devices []resourceapi.DeviceRequestAllocationResult
	// Unfit tells why there is none; Why is for errors, such as a selector that fails.
	Unfit *allocator.Unfit
	Why   string
}

// Place returns where the embedded allocator would allocate the claim now.
func (c *Cluster) Place(ctx context.Context, claim *resourceapi.ResourceClaim) (Placement, error) {
	a, err := allocator.New(c.Inventory(), allocator.StateOf(c.Claims(), c.o.Allocator.Features), c.o.Allocator)
	if err != nil {
		return Placement{}, err
	}
	fit, err := a.Choose(ctx, []*resourceapi.ResourceClaim{claim}, allocator.FirstFit)
	switch {
	case ctx.Err() != nil:
		return Placement{}, ctx.Err()
	case err != nil:
		return Placement{Why: err.Error()}, nil
	case fit.Node != nil && len(fit.Result.Allocations) == 1:
		return Placement{Node: fit.Node.Name, Devices: fit.Result.Allocations[0].Devices.Results}, nil
	}
	return Placement{Unfit: fit.Result.Unfit}, nil
}
