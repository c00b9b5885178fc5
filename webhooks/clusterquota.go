package webhooks

import (
	"context"
	"fmt"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
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
		h.warnQuota(ctx, q, &n)
	}
	return allow(n)
}

func (s *suite) parse(crq *quotav1.ClusterResourceQuota) (*quota.Quota, field.ErrorList) {
	return quota.Parse(crq, quota.ParseOptions{PlatformKeys: s.PlatformKeys, Enforcement: s.Enforcement, Compile: s.compiler.newExpression})
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
// the same later, as conditions of the DeviceLedger.
func (s *suite) warnQuota(ctx context.Context, q *quota.Quota, n *notes) {
	charger := s.Devices.Charger()
	unknown := map[string]bool{} // keys whose class does not exist
	for i := range q.Keys {
		key := &q.Keys[i]
		if key.Subject == quota.SubjectClass && charger.Inventory().DeviceClass(key.Class) == nil {
			unknown[string(key.Name)] = true
			n.warn(ReasonUnknownClass, fmt.Sprintf("%s: there is no DeviceClass %q", key.Name, key.Class))
		}
	}
	var observed quota.Observed
	if s.Usage != nil {
		observed.Used, _ = s.Usage.Used(ctx, q.Name)
	}
	for _, c := range charger.Conditions(q, observed, nil) {
		text := c.Key + ": " + c.Message
		switch c.Type {
		case v1alpha1.ConditionNotEnforced:
			s.warnUnenforced(c, text, n)
		case v1alpha1.ConditionFootprintUnknown:
			if !unknown[c.Key] {
				n.warn(ReasonFootprintUnknown, text)
			}
		case v1alpha1.ConditionZeroDefault:
			n.warn(ReasonZeroDefault, text)
		case v1alpha1.ConditionAliasedKey:
			n.warn(ReasonAliasedKey, text)
		case v1alpha1.ConditionOverLimit:
			n.warn(ReasonBelowUsage, text+"; nothing is evicted, new claims are refused")
		}
	}
}

// warnUnenforced warns about a key that nothing enforces: OpenShift enforces those that are
// not about devices itself.
func (s *suite) warnUnenforced(c v1alpha1.LedgerCondition, text string, n *notes) {
	_, ours, _ := quota.ParseKey(corev1.ResourceName(c.Key))
	switch {
	case c.Reason == quota.ReasonNoDeviceClass:
		n.warn(ReasonUnknownClass, text)
	case ours || !s.PlatformQuota:
		n.warn(ReasonUnenforcedKey, text)
	}
}
