package webhooks

import (
	"context"
	"fmt"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
)

const quotaKind = "ClusterResourceQuota"

// validateQuota answers ClusterResourceQuota CREATE and UPDATE: it refuses device limits
// that can mean nothing and warns about those that mean less than they seem to.
type validateQuota struct{ *suite }

// Handle implements admission.Handler.
func (h validateQuota) Handle(ctx context.Context, req admission.Request) admission.Response {
	update := req.Operation == admissionv1.Update
	if req.Resource.Resource != "clusterresourcequotas" || req.SubResource != "" || !update && req.Operation != admissionv1.Create {
		return pass()
	}
	if err := expect(&req, quotav1.GroupName, quotaKind); err != nil {
		return malformed(err)
	}
	crq, err := decodeQuota(req.Object.Raw)
	if err != nil {
		return malformed(err)
	}
	if crq.DeletionTimestamp != nil {
		return pass()
	}
	q, errs := h.parse(crq)
	var old *quotav1.ClusterResourceQuota
	if update {
		// An old object that cannot be read excuses nothing.
		if old, err = decodeQuota(req.OldObject.Raw); err == nil {
			_, before := h.parse(old)
			errs = newErrors(errs, before)
		}
	}
	if len(errs) > 0 {
		return invalid(quotaKind, crq.Name, errs, notes{})
	}
	n := notes{quotas: []string{crq.Name}}
	if old == nil || !sameMeaning(old, crq) {
		h.warnQuota(ctx, q, crq, &n)
	}
	return allow(n)
}

func (s *suite) parse(crq *quotav1.ClusterResourceQuota) (*quota.Quota, field.ErrorList) {
	return quota.Parse(crq, quota.ParseOptions{PlatformKeys: s.PlatformKeys, Compile: s.compiler.newExpression})
}

func decodeQuota(raw []byte) (*quotav1.ClusterResourceQuota, error) {
	var o typed[quotav1.ClusterResourceQuotaSpec]
	if err := unmarshal(raw, &o); err != nil {
		return nil, err
	}
	if o.Kind != "" && o.Kind != quotaKind {
		return nil, fmt.Errorf("the object's kind is %q, want %q", o.Kind, quotaKind)
	}
	return &quotav1.ClusterResourceQuota{ObjectMeta: o.Metadata.objectMeta(""), Spec: o.Spec}, nil
}

// newErrors returns the errors that the object did not have before: what was stored before
// we looked must not block unrelated changes.
func newErrors(errs, before field.ErrorList) field.ErrorList {
	had := map[string]bool{}
	for _, e := range before {
		had[e.Error()] = true
	}
	var out field.ErrorList
	for _, e := range errs {
		if !had[e.Error()] {
			out = append(out, e)
		}
	}
	return out
}

func sameMeaning(a, b *quotav1.ClusterResourceQuota) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}

// warnQuota warns about limits that mean less than they seem to. The usage reconciler says
// the same later as conditions of the DeviceLedger.
func (s *suite) warnQuota(ctx context.Context, q *quota.Quota, crq *quotav1.ClusterResourceQuota, n *notes) {
	scoped := len(crq.Spec.Quota.Scopes) > 0 || crq.Spec.Quota.ScopeSelector != nil
	for _, name := range q.NotEnforced {
		_, ours, _ := quota.ParseKey(name)
		switch {
		case scoped && ours:
			n.warn(ReasonUnenforcedKey, fmt.Sprintf("%s: a quota with scopes never matches claims", name))
		case !ours && !s.PlatformQuota:
			n.warn(ReasonUnenforcedKey, fmt.Sprintf("%s: nothing in this cluster enforces it for a ClusterResourceQuota", name))
		case ours:
			n.warn(ReasonUnenforcedKey, fmt.Sprintf("%s: it cannot be enforced as it is", name))
		}
	}
	inventory := s.Devices.Charger().Inventory()
	for i := range q.Keys {
		warnKey(q, &q.Keys[i], inventory, n)
	}
	s.warnUsage(ctx, q, n)
}

func warnKey(q *quota.Quota, key *quota.Key, inventory quota.Inventory, n *notes) {
	switch key.Subject {
	case quota.SubjectClass:
		if inventory.DeviceClass(key.Class) == nil {
			n.warn(ReasonUnknownClass, fmt.Sprintf("%s: there is no DeviceClass %q", key.Name, key.Class))
			return
		}
		if other := reachedBy(q, key.Class, inventory); other != "" {
			n.warn(ReasonAliasedKey, fmt.Sprintf("%s: the same devices can be had through DeviceClass %q, which this quota does not limit",
				key.Name, other))
		}
	case quota.SubjectExtendedResource:
		if inventory.ExtendedResourceClass(key.ExtendedResource) == nil {
			n.warn(ReasonUnknownClass, fmt.Sprintf("%s: no DeviceClass serves the extended resource %q", key.Name, key.ExtendedResource))
		}
	}
	if key.Measure == quota.MeasureCapacity && defaultsToZero(key, inventory) {
		n.warn(ReasonZeroDefault, fmt.Sprintf(
			"%s: claims that do not request the capacity consume 0 of it by the devices' request policy, so they are not limited by this key", key.Name))
	}
}

// warnUsage warns about limits below what is used; nothing is evicted.
func (s *suite) warnUsage(ctx context.Context, q *quota.Quota, n *notes) {
	if s.Usage == nil {
		return
	}
	used, known := s.Usage.Used(ctx, q.Name)
	if !known {
		return
	}
	for i := range q.Keys {
		name := q.Keys[i].Name
		u, limit := used[name], q.Hard[name]
		if u.Cmp(limit) > 0 {
			n.warn(ReasonBelowUsage, fmt.Sprintf("%s: limit %s, but %s is used; nothing is evicted, new claims are refused", name, limit.String(), u.String()))
		}
	}
}
