package sim

import (
	"context"
	"maps"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/webhooks"
)

// What the ledger and the handlers ask is answered from the state as it is.
var (
	_ ledger.View        = (*state)(nil)
	_ ledger.Observation = (*state)(nil)
	_ webhooks.Coverage  = coverage{}
	_ webhooks.Devices   = (*state)(nil)
	_ webhooks.Objects   = (*state)(nil)
	_ webhooks.Access    = access{}
)

// Cached implements ledger.View.
func (s *state) Cached() ledger.Observation { return s }

// Live implements ledger.View.
func (s *state) Live(context.Context) (ledger.Observation, error) { return s, nil }

// Namespace implements ledger.View.
func (s *state) Namespace(_ context.Context, namespace string) ([]*quota.Quota, uint64, bool, error) {
	quotas, version, known := s.Covering(namespace)
	return quotas, version, known, nil
}

// Quota implements ledger.View.
func (s *state) Quota(_ context.Context, n string) (*quota.Quota, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.accounts[n]; a != nil {
		return a.quota, nil
	}
	return nil, nil
}

// Observe implements ledger.Observation.
func (s *state) Observe(n string, last *quota.Quota, uids []types.UID) quota.Observed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.observeLocked(n, last, uids)
}

// Covering implements ledger.Observation.
func (s *state) Covering(namespace string) ([]*quota.Quota, uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.projects[namespace]
	if p == nil || !p.known {
		return nil, 0, false
	}
	var quotas []*quota.Quota
	for _, n := range slices.Sorted(maps.Keys(s.accounts)) {
		if q := s.accounts[n].quota; s.coversLocked(q, p) {
			quotas = append(quotas, q)
		}
	}
	return quotas, p.version, true
}

// coverage is Covering as the handlers ask it.
type coverage struct{ s *state }

// Covering implements webhooks.Coverage.
func (c coverage) Covering(_ context.Context, namespace string) ([]*quota.Quota, error) {
	quotas, _, _ := c.s.Covering(namespace)
	return quotas, nil
}

// Charger implements webhooks.Devices.
func (s *state) Charger() *quota.Charger {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chargerLocked()
}

// NamespaceAnnotations implements webhooks.Objects.
func (s *state) NamespaceAnnotations(_ context.Context, n string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.projects[n]; p != nil {
		return p.meta.Annotations, nil
	}
	return nil, nil
}

// Template implements webhooks.Objects.
func (s *state) Template(_ context.Context, namespace, n string) (*resourceapi.ResourceClaimTemplate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.templates[types.NamespacedName{Namespace: namespace, Name: n}], nil
}

// Claim implements webhooks.Objects.
func (s *state) Claim(_ context.Context, namespace, n string) (*resourceapi.ResourceClaim, error) {
	if o := s.get(quota.Claims, namespace, n); o != nil {
		return o.claim, nil
	}
	return nil, nil
}

// Pod implements webhooks.Objects.
func (s *state) Pod(_ context.Context, namespace, n string) (*corev1.Pod, error) {
	if o := s.get(quota.Pods, namespace, n); o != nil {
		return o.pod, nil
	}
	return nil, nil
}

// access lets the named users, and whoever may do everything, ask for adminAccess.
type access struct{ users []string }

// MayUseAdminAccess implements webhooks.Access.
func (a access) MayUseAdminAccess(_ context.Context, user authenticationv1.UserInfo, _ string) (bool, error) {
	return slices.Contains(user.Groups, Masters) || slices.Contains(a.users, user.Username), nil
}

// usage gives what the ledgers say.
type usage struct{ store ledger.Store }

// Used implements webhooks.Usage.
func (u usage) Used(ctx context.Context, n string) (corev1.ResourceList, bool) {
	l, err := u.store.Get(ctx, n)
	if err != nil {
		return nil, false
	}
	return quota.Add(l.Status.Used, quota.HoldSum(l.Status.Holds, "", nil, false)), true
}

// recorder keeps what the ledger said of the last request that was charged.
type recorder struct {
	*ledger.Ledger
	// quota -> charge
	charges map[string]quota.Charge
}

var _ webhooks.Admitter = (*recorder)(nil)

// Admit implements webhooks.Admitter.
func (r *recorder) Admit(ctx context.Context, q ledger.Request) (ledger.Decision, error) {
	d, err := r.Ledger.Admit(ctx, q)
	if !q.Advisory {
		r.charges = d.Charges
	}
	return d, err
}

// Check implements webhooks.Admitter.
func (r *recorder) Check(ctx context.Context, q ledger.Request) (ledger.Decision, error) {
	d, err := r.Ledger.Check(ctx, q)
	if !q.Advisory {
		r.charges = d.Charges
	}
	return d, err
}
