package webhooks

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
)

// This file alone knows how a decision looks as an AdmissionResponse. Every answer is an
// AdmissionResponse, never an HTTP error, which with failurePolicy Ignore would admit.

// Audit annotation keys. The API server prefixes them with the webhook's name.
const (
	// AuditDecision is one of the Decision constants.
	AuditDecision = "decision"
	// AuditQuota names the quotas that decided, separated by commas.
	AuditQuota = "quota"
	// AuditCharge is what the object costs each covering quota.
	AuditCharge = "charge"
	// AuditWouldDeny is what quotas in mode Warn or Audit would have said.
	AuditWouldDeny = "would-deny"
	// AuditError is why nothing was decided.
	AuditError = "error"
	// AuditMutation is what was changed.
	AuditMutation = "mutation"
)

// Values of the audit annotation "decision"; also the outcome label of the metrics.
const (
	DecisionAllowed   = "allowed"
	DecisionWarned    = "warned"
	DecisionAudited   = "audited"
	DecisionMutated   = "mutated"
	DecisionUnchecked = "unchecked"
	DecisionDenied    = "denied"
	DecisionInvalid   = "invalid"
	DecisionBusy      = "busy"
	DecisionError     = "error"
)

// decisions returns all of them.
func decisions() []string {
	return []string{DecisionAllowed, DecisionWarned, DecisionAudited, DecisionMutated, DecisionUnchecked, DecisionDenied,
		DecisionInvalid, DecisionBusy, DecisionError}
}

// problem is one reason to refuse a request.
type problem struct {
	reason Reason
	// message is a sentence for the status message.
	message string
	// causes are the details; when empty, the message is the only cause.
	causes []metav1.StatusCause
}

// notes are what an answer says besides yes or no.
type notes struct {
	decision string
	quotas   []string
	// quota -> charge
	charges   map[string]quota.Charge
	wouldDeny []quota.Denial
	mutations []string
	warnings  []string
}

func (n *notes) warn(reason Reason, text string) {
	n.warnings = append(n.warnings, warn(reason, text)...)
}

// annotations returns the audit annotations.
func (n *notes) annotations() map[string]string {
	out := map[string]string{AuditDecision: n.decision}
	if len(n.quotas) > 0 {
		out[AuditQuota] = strings.Join(n.quotas, ",")
	}
	if text := chargesText(n.charges); text != "" {
		out[AuditCharge] = text
	}
	if len(n.wouldDeny) > 0 {
		texts := make([]string, len(n.wouldDeny))
		for i, d := range n.wouldDeny {
			texts[i] = d.Error()
		}
		out[AuditWouldDeny] = strings.Join(texts, "; ")
	}
	if len(n.mutations) > 0 {
		out[AuditMutation] = strings.Join(n.mutations, "; ")
	}
	return out
}

// chargesText returns "quota: key=amount,key=amount; quota: ...", sorted; quotas that cost nothing are left out.
func chargesText(charges map[string]quota.Charge) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(charges)) {
		if len(charges[name].Amounts) == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(name)
		b.WriteString(": ")
		b.WriteString(quota.Format(charges[name].Amounts))
	}
	return b.String()
}

func response(isAllowed bool, status *metav1.Status, n notes) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed:          isAllowed,
		Result:           status,
		Warnings:         n.warnings,
		AuditAnnotations: n.annotations(),
	}}
}

// allow admits.
func allow(n notes) admission.Response {
	if n.decision == "" {
		n.decision = DecisionAllowed
	}
	return response(true, &metav1.Status{Code: http.StatusOK}, n)
}

// pass admits what is none of our business, without a word.
func pass() admission.Response { return allow(notes{}) }

// patch admits with changes; without changes it is allow.
func patch(patches []jsonpatch.JsonPatchOperation, n notes) admission.Response {
	if len(patches) == 0 {
		return allow(n)
	}
	n.decision = DecisionMutated
	r := allow(n)
	r.Patches = patches
	return r
}

// deny refuses with 403 Forbidden. The message starts as upstream's does, since tools match it.
func deny(kind, name string, problems []problem, n notes) admission.Response {
	n.decision = DecisionDenied
	details := &metav1.StatusDetails{Name: name, Kind: kind}
	messages := make([]string, 0, len(problems))
	for _, p := range problems {
		messages = append(messages, p.message)
		if len(p.causes) == 0 {
			p.causes = []metav1.StatusCause{{Type: metav1.CauseType(p.reason), Message: p.message}}
		}
		details.Causes = append(details.Causes, p.causes...)
	}
	return response(false, &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusForbidden,
		Reason:  metav1.StatusReasonForbidden,
		Message: strings.Join(messages, "; "),
		Details: details,
	}, n)
}

// invalid refuses with 422; every error names its field.
func invalid(kind, name string, errs field.ErrorList, n notes) admission.Response {
	n.decision = DecisionInvalid
	details := &metav1.StatusDetails{Name: name, Kind: kind}
	messages := make([]string, 0, len(errs))
	for _, e := range errs {
		messages = append(messages, e.Error())
		details.Causes = append(details.Causes, metav1.StatusCause{
			Type: metav1.CauseType(ReasonInvalid), Message: e.ErrorBody(), Field: e.Field})
	}
	return response(false, &metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnprocessableEntity,
		Reason:  metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s %q is invalid: %s", kind, name, strings.Join(messages, "; ")),
		Details: details,
	}, n)
}

// malformed refuses with 400 what cannot be read at all.
func malformed(err error) admission.Response {
	status := apierrors.NewBadRequest(err.Error()).ErrStatus
	status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{
		{Type: metav1.CauseType(ReasonInvalid), Message: err.Error()}}}
	return response(false, &status, notes{decision: DecisionInvalid})
}

// busy asks to come again: nothing is wrong with the request. Clients retry by themselves.
func busy(after time.Duration, why string, n notes) admission.Response {
	n.decision = DecisionBusy
	seconds := max(1, int((after+time.Second-1)/time.Second))
	status := apierrors.NewTooManyRequests("devicequota is busy: "+why, seconds).ErrStatus
	return response(false, &status, n)
}

// outage refuses with 500: the request could not be decided.
func outage(err error, n notes) admission.Response {
	n.decision = DecisionError
	status := apierrors.NewInternalError(fmt.Errorf("devicequota cannot decide: %w", err)).ErrStatus
	return response(false, &status, n)
}

// exceeded returns the problem that a denial is. devices is the allocator's explanation of
// why no device tells the footprint; empty when there is none.
func exceeded(d quota.Denial, devices string) problem {
	p := problem{reason: ReasonQuotaExceeded, message: d.Error()}
	for _, key := range sortedKeys(d.Limited) {
		p.causes = append(p.causes, metav1.StatusCause{Type: metav1.CauseType(ReasonQuotaExceeded),
			Message: fmt.Sprintf("quota %q, key %q: requested %s, used %s, limited %s", d.Quota, key,
				amount(d.Requested, key), amount(d.Used, key), amount(d.Limited, key))})
	}
	for _, u := range d.Unknown {
		p.reason = ReasonFootprintUnknown
		p.causes = append(p.causes, metav1.StatusCause{Type: metav1.CauseType(ReasonFootprintUnknown),
			Message: fmt.Sprintf("quota %q, key %q, request %q: %s", d.Quota, u.Key, u.Request, u.Why)})
	}
	if len(d.Unknown) > 0 && devices != "" {
		p.message += "; devices: " + devices
	}
	return p
}

func sortedKeys(l corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(l)) }

func amount(l corev1.ResourceList, key corev1.ResourceName) string {
	q := l[key]
	return q.String()
}
