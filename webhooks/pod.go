package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

const podKind = "Pod"

// validatePod answers CREATE of pods: judge says what of a pod it is about.
type validatePod struct {
	*suite
	// judge answers for the pod. r has all but Charge and Advisory.
	judge func(ctx context.Context, pod *corev1.Pod, r ledger.Request) admission.Response
}

// Handle implements admission.Handler.
func (h validatePod) Handle(ctx context.Context, req admission.Request) admission.Response {
	arrived := h.now()
	if !creates(&req, "pods") || h.exempt(&req) {
		return pass()
	}
	pod, err := decodePod(&req)
	if err != nil {
		return malformed(err)
	}
	return h.judge(ctx, pod, ledger.Request{
		UID: pod.UID, Kind: v1alpha1.HoldPod, Namespace: req.Namespace, Name: pod.Name,
		Arrived: arrived, Created: pod.CreationTimestamp.Time, DryRun: isDryRun(&req),
	})
}

// judgePodExtended is for pods with extended resources. Those that a DeviceClass serves are
// charged to the pod, as claims are.
func (s *suite) judgePodExtended(ctx context.Context, pod *corev1.Pod, r ledger.Request) admission.Response {
	var n notes
	charger := s.Devices.Charger()
	var problems []problem
	var err error
	if spec := charger.PodClaim(pod); spec != nil {
		if problems, err = s.requireQuota(ctx, r.Namespace, spec); err != nil {
			return outage(err, n)
		}
	}
	early, err := s.podClaims(ctx, r.Namespace, pod, &n)
	if err != nil {
		return outage(err, n)
	}
	if len(early) > 0 {
		// Together with its claims the pod has to fit too, but only its own devices are held
		// under its UID: the claims will be held under theirs.
		both := r
		both.Advisory = true
		both.Charge = func(q *quota.Quota) (quota.Charge, error) { return podAndClaims(charger, pod, early, q) }
		d, err := s.Admitter.Check(ctx, both)
		if err != nil {
			return s.failed(err, podKind, pod.Name, n)
		}
		for _, denial := range sorted(append(d.Denials, d.NotNow...)) {
			problems = append(problems, exceeded(denial, ""))
		}
	}
	r.Charge = func(q *quota.Quota) (quota.Charge, error) { return chargedPod(charger, pod, q) }
	d, err := s.decide(ctx, r, len(problems) > 0)
	if err != nil {
		return s.failed(err, podKind, pod.Name, n)
	}
	return answerPod(d, pod, problems, n)
}

// judgePodClaims is for pods that have resourceClaims and no extended resources: the claims made
// for the pod must fit now, else it would stay pending. The hold is advisory, it counts against
// other pods' checks only: what is charged is the claims.
func (s *suite) judgePodClaims(ctx context.Context, pod *corev1.Pod, r ledger.Request) admission.Response {
	var n notes
	early, err := s.podClaims(ctx, r.Namespace, pod, &n)
	if err != nil {
		return unchecked(err, n)
	}
	if len(early) == 0 {
		return allow(n)
	}
	charger := s.Devices.Charger()
	r.Advisory = true
	r.Charge = func(q *quota.Quota) (quota.Charge, error) { return sumOf(charger, early, q) }
	d, err := s.Admitter.Admit(ctx, r)
	var wrong *chargeError
	if errors.As(err, &wrong) {
		return s.failed(err, podKind, pod.Name, n)
	}
	if err != nil {
		return unchecked(err, n)
	}
	return answerPod(d, pod, nil, n)
}

// unchecked admits a pod although it could not be checked early: its claims will be.
func unchecked(err error, n notes) admission.Response {
	n.decision = DecisionUnchecked
	n.wouldDeny = nil
	r := allow(n)
	r.AuditAnnotations[AuditError] = err.Error()
	return r
}

func answerPod(d ledger.Decision, pod *corev1.Pod, problems []problem, n notes) admission.Response {
	n.take(d)
	if d.Verdict == ledger.Busy && len(problems) == 0 {
		return busy(d.RetryAfter, d.Busy, n)
	}
	for _, denial := range d.Denials {
		problems = append(problems, exceeded(denial, ""))
	}
	if len(problems) > 0 {
		return deny(podKind, pod.Name, problems, n)
	}
	return allow(n)
}

// chargedPod charges the pod's extended resources; its error is a chargeError.
func chargedPod(charger *quota.Charger, pod *corev1.Pod, q *quota.Quota) (quota.Charge, error) {
	c, err := charger.Pod(pod, q)
	if err != nil {
		return quota.Charge{}, &chargeError{err}
	}
	return c, nil
}

// podClaim is a claim that will be made for a pod.
type podClaim struct {
	// entry is the name in pod.spec.resourceClaims.
	entry string
	spec  *resourceapi.ResourceClaimSpec
}

// podClaims returns the claims that will be made for the pod, and warns about what the pod
// refers to and nobody knows. Claims that exist are charged already and not counted again,
// whoever shares them. Claims of a PodGroup are made once per group: pods in a group are not
// checked early. The error is an outage.
func (s *suite) podClaims(ctx context.Context, namespace string, pod *corev1.Pod, n *notes) ([]podClaim, error) {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return nil, nil
	}
	var out []podClaim
	for i, c := range pod.Spec.ResourceClaims {
		path := field.NewPath("spec", "resourceClaims").Index(i)
		switch {
		case c.ResourceClaimTemplateName != nil:
			t, err := s.Objects.Template(ctx, namespace, *c.ResourceClaimTemplateName)
			if err != nil {
				return nil, fmt.Errorf("template %q: %w", *c.ResourceClaimTemplateName, err)
			}
			if t == nil {
				n.warn(ReasonInvalid, fmt.Sprintf("%s: there is no ResourceClaimTemplate %q yet, so its devices were not checked", path, *c.ResourceClaimTemplateName))
				continue
			}
			out = append(out, podClaim{c.Name, &t.Spec.Spec})
		case c.ResourceClaimName != nil:
			claim, err := s.Objects.Claim(ctx, namespace, *c.ResourceClaimName)
			if err != nil {
				return nil, fmt.Errorf("claim %q: %w", *c.ResourceClaimName, err)
			}
			if claim == nil {
				n.warn(ReasonInvalid, fmt.Sprintf("%s: there is no ResourceClaim %q yet, so its devices were not checked", path, *c.ResourceClaimName))
			}
		}
	}
	return out, nil
}

// sumOf charges claims together.
func sumOf(charger *quota.Charger, claims []podClaim, q *quota.Quota) (quota.Charge, error) {
	sum := quota.Charge{Amounts: corev1.ResourceList{}}
	for _, c := range claims {
		one, err := requested(charger, c.spec, q)
		if err != nil {
			return quota.Charge{}, err
		}
		sum = plus(sum, one, c.entry)
	}
	return sum, nil
}

// podAndClaims charges a pod together with the claims that will be made for it.
func podAndClaims(charger *quota.Charger, pod *corev1.Pod, claims []podClaim, q *quota.Quota) (quota.Charge, error) {
	sum, err := sumOf(charger, claims, q)
	if err != nil {
		return quota.Charge{}, err
	}
	own, err := chargedPod(charger, pod, q)
	if err != nil {
		return quota.Charge{}, err
	}
	return plus(sum, own, ""), nil
}

// plus returns the sum; the requests of c are told apart by the pod's name for the claim.
func plus(sum, c quota.Charge, entry string) quota.Charge {
	label := func(request string) string {
		if entry == "" || request == "" {
			return entry + request
		}
		return entry + "/" + request
	}
	out := quota.Charge{Amounts: quota.Add(sum.Amounts, c.Amounts), Unknown: sum.Unknown, Rules: sum.Rules,
		UnknownClasses: append(slices.Clone(sum.UnknownClasses), c.UnknownClasses...)}
	for _, u := range c.Unknown {
		u.Request = label(u.Request)
		out.Unknown = append(out.Unknown, u)
	}
	for _, r := range c.Rules {
		r.Request = label(r.Request)
		out.Rules = append(out.Rules, r)
	}
	slices.Sort(out.UnknownClasses)
	out.UnknownClasses = slices.Compact(out.UnknownClasses)
	return out
}
