package webhooks

import (
	"context"
	"fmt"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// mutateClaim shapes ResourceClaims as their namespace's annotations ask.
type mutateClaim struct{ *suite }

// Handle implements admission.Handler.
func (h mutateClaim) Handle(ctx context.Context, req admission.Request) admission.Response {
	if !concerns(&req, "resourceclaims") || h.exempt(&req) {
		return pass()
	}
	if err := expect(&req, resourceapi.GroupName, claimKind); err != nil {
		return malformed(err)
	}
	return h.mutate(ctx, &req, document{version: req.Kind.Version, spec: []string{"spec"}}, claimKind)
}

// mutateTemplate shapes the claims of ResourceClaimTemplates. Which alternatives fit is
// asked when a claim is made, not here.
type mutateTemplate struct{ *suite }

// Handle implements admission.Handler.
func (h mutateTemplate) Handle(ctx context.Context, req admission.Request) admission.Response {
	if !concerns(&req, "resourceclaimtemplates") || h.exempt(&req) {
		return pass()
	}
	if err := expect(&req, resourceapi.GroupName, templateKind); err != nil {
		return malformed(err)
	}
	return h.mutate(ctx, &req, document{version: req.Kind.Version, spec: []string{"spec", "spec"}}, templateKind)
}

func (s *suite) mutate(ctx context.Context, req *admission.Request, d document, kind string) admission.Response {
	if !d.known() {
		return malformed(fmt.Errorf("version %q of resource.k8s.io is not known", d.version))
	}
	switch req.Operation {
	case admissionv1.Create:
		return s.shape(ctx, req, &d, kind)
	case admissionv1.Update:
		return s.restore(req, &d)
	}
	return pass()
}

// shape changes a new object as its namespace asks.
func (s *suite) shape(ctx context.Context, req *admission.Request, d *document, kind string) admission.Response {
	annotations, err := s.Objects.NamespaceAnnotations(ctx, req.Namespace)
	if err != nil {
		return outage(fmt.Errorf("namespace %q: %w", req.Namespace, err), notes{})
	}
	wanted, errs := s.shapingOf(annotations)
	if len(errs) > 0 {
		return invalid("Namespace", req.Namespace, errs, notes{})
	}
	if wanted.empty() {
		return pass()
	}
	if err := d.read(req.Object.Raw); err != nil {
		return malformed(err)
	}
	done, err := d.apply(record{Class: wanted.class, Selector: wanted.selector})
	if err != nil {
		return malformed(err)
	}
	if wanted.fit && kind == claimKind {
		dropped, err := s.unfitting(ctx, req, d)
		if err != nil {
			return s.failed(err, kind, req.Name, notes{})
		}
		if err := d.drop(dropped, &done); err != nil {
			return malformed(err)
		}
	}
	if done.empty() {
		return pass()
	}
	if err := d.annotate(done); err != nil {
		return outage(err, notes{})
	}
	return patch(d.patches, done.notes("namespace "+req.Namespace))
}

// restore undoes the difference between what the user applies again and what we made of it
// when the object was created: specs are immutable, so applying the same manifest again
// would fail. It goes by the record on the stored object; a tenant who forges that gains
// nothing, since the stored spec is what restoring keeps.
func (s *suite) restore(req *admission.Request, d *document) admission.Response {
	old := document{version: d.version, spec: d.spec}
	if err := old.read(req.OldObject.Raw); err != nil {
		return malformed(err)
	}
	made, ok := old.record()
	if !ok {
		return pass()
	}
	if err := d.read(req.Object.Raw); err != nil {
		return malformed(err)
	}
	if d.deleting() {
		return pass()
	}
	same, err := old.sameSpec(d)
	if err != nil || same {
		// A spec that cannot be read is for the API server's own validation to refuse.
		return pass()
	}
	again := document{version: d.version, spec: d.spec}
	if err := again.read(req.Object.Raw); err != nil {
		return malformed(err)
	}
	if _, err := again.apply(made); err != nil {
		return pass()
	}
	if err := again.drop(made.Dropped, &record{}); err != nil {
		return pass()
	}
	if same, err = old.sameSpec(&again); err != nil || !same {
		return pass()
	}
	patches := []jsonpatch.JsonPatchOperation{jsonpatch.NewOperation("replace",
		pointer(append(d.spec[:len(d.spec):len(d.spec)], "devices", "requests")...), old.requests())}
	if _, kept := d.record(); !kept {
		d.patches = nil
		if err := d.annotate(made); err != nil {
			return outage(err, notes{})
		}
		patches = append(patches, d.patches...)
	}
	n := notes{mutations: []string{"restored the stored spec"}}
	n.warn(ReasonMutated, "the spec was changed when the object was created ("+made.text()+"); the stored spec is kept")
	return patch(patches, n)
}

// unfitting returns the alternatives of each prioritized list that do not fit now.
// request -> alternatives
func (s *suite) unfitting(ctx context.Context, req *admission.Request, d *document) (map[string][]string, error) {
	claim, err := d.claim(req.Namespace)
	if err != nil {
		return nil, &chargeError{err}
	}
	if errs := validateSpec(&claim.Spec, claimRoot); len(errs) > 0 {
		return nil, nil // refused later, by the API server or by our validation
	}
	charger := s.Devices.Charger()
	dropped := map[string][]string{}
	requests := claim.Spec.Devices.Requests
	// Invariant: requests before i have only alternatives that fit together with what is
	// kept before them; those after i are not counted yet.
	for i := range requests {
		r := &requests[i]
		if len(r.FirstAvailable) < 2 {
			continue
		}
		var kept []resourceapi.DeviceSubRequest
		for j, alternative := range r.FirstAvailable {
			if j == len(r.FirstAvailable)-1 && len(kept) == 0 {
				kept = append(kept, alternative) // one stays, fitting or not
				break
			}
			fits, err := s.fits(ctx, req, claim, charger, i, alternative)
			if err != nil {
				return nil, err
			}
			if fits {
				kept = append(kept, alternative)
			} else {
				dropped[r.Name] = append(dropped[r.Name], alternative.Name)
			}
		}
		r.FirstAvailable = kept
	}
	return dropped, nil
}

// fits tells whether the claim's requests up to i fit now, request i with that alternative alone.
func (s *suite) fits(ctx context.Context, req *admission.Request, claim *resourceapi.ResourceClaim, charger *quota.Charger,
	i int, alternative resourceapi.DeviceSubRequest,
) (bool, error) {
	spec := &resourceapi.ResourceClaimSpec{}
	spec.Devices.Requests = append(spec.Devices.Requests, claim.Spec.Devices.Requests[:i+1]...)
	spec.Devices.Requests[i].FirstAvailable = []resourceapi.DeviceSubRequest{alternative}
	d, err := s.Admitter.Check(ctx, ledger.Request{
		UID: holdUID, Kind: v1alpha1.HoldClaim, Namespace: req.Namespace, Name: claim.Name, Arrived: s.now(), DryRun: true,
		Charge: func(q *quota.Quota) (quota.Charge, error) { return requested(charger, spec, q) },
	})
	return err == nil && d.Verdict == ledger.Allowed && len(d.NotNow) == 0, err
}
