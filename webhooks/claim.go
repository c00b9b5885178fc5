package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

const (
	claimKind    = "ResourceClaim"
	templateKind = "ResourceClaimTemplate"
)

// validateClaim answers ResourceClaim CREATE: it charges the claim to every quota that
// covers the project, and holds the charge when all of them have room.
type validateClaim struct{ *suite }

// Handle implements admission.Handler.
func (h validateClaim) Handle(ctx context.Context, req admission.Request) admission.Response {
	arrived := h.now()
	if !creates(&req, "resourceclaims") {
		return pass()
	}
	claim, err := decodeClaim(&req)
	if err != nil {
		return malformed(err)
	}
	if h.exempt(&req) {
		return pass()
	}
	if errs := h.validate(&claim.Spec, claimRoot); len(errs) > 0 {
		return invalid(claimKind, claim.Name, errs, notes{})
	}
	var n notes
	problems, err := h.policies(ctx, &req, &claim.Spec, madeForPod(&req, claim, h.ClaimControllers), &n)
	if err != nil {
		return outage(err, n)
	}
	charger := h.Devices.Charger()
	r := ledger.Request{
		UID: claim.UID, Kind: v1alpha1.HoldClaim, Namespace: req.Namespace, Name: claim.Name,
		Arrived: arrived, Created: claim.CreationTimestamp.Time, DryRun: isDryRun(&req),
		Charge: func(q *quota.Quota) (quota.Charge, error) { return requested(charger, &claim.Spec, q) },
	}
	if r.PodUID, err = h.chargedPod(ctx, &req, claim); err != nil {
		return outage(err, n)
	}
	if r.PodUID == "" {
		r.OwnerPod = ownerPod(&req, claim, h.ClaimControllers)
	}
	d, err := h.decide(ctx, r, len(problems) > 0)
	if err != nil {
		return h.failed(err, claimKind, claim.Name, n)
	}
	h.warnClasses(charger.Inventory(), &claim.Spec, &n)
	return h.answer(ctx, d, claim, problems, n)
}

// decide asks the ledger. A request that is refused anyway is only checked: it must leave no
// hold, but its refusal says everything that is wrong.
func (s *suite) decide(ctx context.Context, r ledger.Request, refused bool) (ledger.Decision, error) {
	if !refused {
		return s.Admitter.Admit(ctx, r)
	}
	d, err := s.Admitter.Check(ctx, r)
	d.Denials = sorted(append(d.Denials, d.NotNow...))
	return d, err
}

// sorted returns the denials sorted by quota.
func sorted(denials []quota.Denial) []quota.Denial {
	slices.SortStableFunc(denials, func(a, b quota.Denial) int { return strings.Compare(a.Quota, b.Quota) })
	return denials
}

// answer turns the ledger's decision on a claim into a response.
func (s *suite) answer(ctx context.Context, d ledger.Decision, claim *resourceapi.ResourceClaim, problems []problem, n notes) admission.Response {
	n.take(d)
	if d.Verdict == ledger.Busy && len(problems) == 0 {
		return busy(d.RetryAfter, d.Busy, n)
	}
	devices := s.explain(ctx, claim)
	if devices != "" {
		n.warn(ReasonNoMatchingDevice, devices)
	}
	for _, denial := range d.Denials {
		problems = append(problems, exceeded(denial, devices))
	}
	if len(problems) > 0 {
		return deny(claimKind, claim.Name, problems, n)
	}
	return allow(n)
}

// take notes what the decision says besides yes or no.
func (n *notes) take(d ledger.Decision) {
	n.charges = d.Charges
	n.quotas = nil
	for name := range d.Charges {
		n.quotas = append(n.quotas, name)
	}
	if d.Verdict == ledger.Denied {
		n.quotas = nil
		for _, denial := range d.Denials {
			n.quotas = append(n.quotas, denial.Quota)
		}
	}
	slices.Sort(n.quotas)
	for _, denial := range d.Audited {
		n.decision = DecisionAudited
		n.wouldDeny = append(n.wouldDeny, denial)
	}
	for _, denial := range d.Warned {
		n.decision = DecisionWarned
		n.wouldDeny = append(n.wouldDeny, denial)
		reason := ReasonQuotaExceeded
		if len(denial.Unknown) > 0 {
			reason = ReasonFootprintUnknown
		}
		n.warn(reason, "(not enforced) "+denial.Error())
	}
}

// chargeError is why an object cannot be charged: the object's fault, not an outage.
type chargeError struct{ err error }

func (e *chargeError) Error() string { return e.err.Error() }
func (e *chargeError) Unwrap() error { return e.err }

// requested charges a claim; its error is a chargeError.
func requested(charger *quota.Charger, spec *resourceapi.ResourceClaimSpec, q *quota.Quota) (quota.Charge, error) {
	c, err := charger.Requested(spec, q)
	if err != nil {
		return quota.Charge{}, &chargeError{err}
	}
	return c, nil
}

// failed answers when the ledger gave no decision.
func (s *suite) failed(err error, kind, name string, n notes) admission.Response {
	var wrong *chargeError
	if errors.As(err, &wrong) {
		errs := fieldErrors(wrong.err)
		if kind == templateKind {
			for _, e := range errs {
				e.Field = "spec." + e.Field
			}
		}
		return invalid(kind, name, errs, n)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return busy(overloadRetry, "no decision in time", n)
	}
	return outage(err, n)
}

// fieldErrors returns the error as field errors; one that names no field is about the spec.
func fieldErrors(err error) field.ErrorList {
	var invalid *quota.InvalidClaimError
	if errors.As(err, &invalid) {
		return invalid.List
	}
	return field.ErrorList{{Type: field.ErrorTypeInvalid, Field: "spec", BadValue: field.OmitValueType{}, Detail: err.Error()}}
}

// warnClasses warns about classes that do not exist.
func (s *suite) warnClasses(inventory quota.Inventory, spec *resourceapi.ResourceClaimSpec, n *notes) {
	for _, class := range classesOf(spec) {
		if inventory.DeviceClass(class) == nil {
			n.warn(ReasonUnknownClass, fmt.Sprintf("there is no DeviceClass %q; the claim stays pending until there is one", class))
		}
	}
}

// explain returns why no published device can satisfy the claim, "" when one might.
func (s *suite) explain(ctx context.Context, claim *resourceapi.ResourceClaim) string {
	if s.Explainer == nil {
		return ""
	}
	return s.Explainer.Explain(ctx, claim)
}

// chargedPod returns the UID of the pod that was charged for the extended resources that
// the claim stands for, "" when the claim is charged in full: only the first claim that a
// scheduler makes for a pod was paid for by the pod. Annotation and owner reference can be
// written by tenants, so the requester decides.
// Source: kubernetes pkg/quota/v1/evaluator/core/resource_claims.go and issue 135404 (v1.37).
func (s *suite) chargedPod(ctx context.Context, req *admission.Request, claim *resourceapi.ResourceClaim) (types.UID, error) {
	owner, ok := quota.ExtendedResourceOwner(claim)
	if !ok || !slices.Contains(s.Schedulers, req.UserInfo.Username) {
		return "", nil
	}
	pod, err := s.Objects.Pod(ctx, req.Namespace, owner.Name)
	if err != nil {
		return "", fmt.Errorf("pod %q: %w", req.Namespace+"/"+owner.Name, err)
	}
	if pod == nil || pod.UID != owner.UID {
		return "", nil
	}
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil && made.ResourceClaimName != claim.Name {
		return "", nil
	}
	return pod.UID, nil
}

// ownerPod returns the pod that a claim controller made the claim for from a template, ""
// for any other claim.
func ownerPod(req *admission.Request, claim *resourceapi.ResourceClaim, controllers []string) types.UID {
	if !slices.Contains(controllers, req.UserInfo.Username) {
		return ""
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return ""
	}
	return owner.UID
}

func isDryRun(req *admission.Request) bool { return req.DryRun != nil && *req.DryRun }

// creates tells whether the request creates an object of the resource. Everything else is
// passed: a version skewed configuration must never make us block deletions, status or
// finalizer updates.
func creates(req *admission.Request, resource string) bool {
	return req.Operation == admissionv1.Create && concerns(req, resource)
}

func concerns(req *admission.Request, resource string) bool {
	return req.Resource.Resource == resource && req.SubResource == ""
}

// exempt tells whether the request's project is covered by nothing. The webhook
// configuration should leave such projects out; this is for those that it does not.
func (s *suite) exempt(req *admission.Request) bool {
	return slices.Contains(s.ExemptNamespaces, req.Namespace)
}
