package webhooks

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// validateTemplate answers ResourceClaimTemplate CREATE: claims made from the template that
// can never fit are refused here already, what does not fit now is a warning. It never charges.
type validateTemplate struct{ *suite }

// Handle implements admission.Handler.
func (h validateTemplate) Handle(ctx context.Context, req admission.Request) admission.Response {
	arrived := h.now()
	if !creates(&req, "resourceclaimtemplates") || h.exempt(&req) {
		return pass()
	}
	template, err := decodeTemplate(&req)
	if err != nil {
		return malformed(err)
	}
	spec := &template.Spec.Spec
	if errs := h.validate(spec, templateRoot); len(errs) > 0 {
		return invalid(templateKind, template.Name, errs, notes{})
	}
	var n notes
	problems, err := h.policies(ctx, &req, spec, false, &n)
	if err != nil {
		return outage(err, n)
	}
	charger := h.Devices.Charger()
	d, err := h.Admitter.Check(ctx, ledger.Request{
		UID: template.UID, Kind: v1alpha1.HoldClaim, Namespace: req.Namespace, Name: template.Name,
		Arrived: arrived, Created: template.CreationTimestamp.Time, DryRun: true,
		Charge: func(q *quota.Quota) (quota.Charge, error) { return requested(charger, spec, q) },
	})
	if err != nil {
		return h.failed(err, templateKind, template.Name, n)
	}
	n.take(d)
	h.warnClasses(charger.Inventory(), spec, &n)
	for _, denial := range d.NotNow {
		n.warn(ReasonQuotaExceeded, "claims made from this template do not fit now: "+denial.Error())
	}
	devices := h.explain(ctx, &resourceapi.ResourceClaim{ObjectMeta: template.ObjectMeta, Spec: *spec})
	if devices != "" {
		n.warn(ReasonNoMatchingDevice, devices)
	}
	for _, denial := range d.Denials {
		problems = append(problems, exceeded(denial, devices))
	}
	if len(problems) > 0 {
		return deny(templateKind, template.Name, problems, n)
	}
	return allow(n)
}
