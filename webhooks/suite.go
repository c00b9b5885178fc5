package webhooks

import (
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Paths of the webhooks, as config/webhook/manifests.yaml names them.
const (
	PathValidateClaim       = "/validate-resourceclaim"
	PathValidateTemplate    = "/validate-resourceclaimtemplate"
	PathValidatePodExtended = "/validate-pod-extendedresources"
	PathValidatePodClaims   = "/validate-pod-resourceclaims"
	PathValidateQuota       = "/validate-clusterresourcequota"
	PathMutateClaim         = "/mutate-resourceclaim"
	PathMutateTemplate      = "/mutate-resourceclaimtemplate"
)

// paths returns all of them.
func paths() []string {
	return []string{PathValidateClaim, PathValidateTemplate, PathValidatePodExtended, PathValidatePodClaims, PathValidateQuota,
		PathMutateClaim, PathMutateTemplate}
}

// suite is what all handlers share.
type suite struct {
	Deps
	Options
	compiler *compiler
}

// Handlers returns the handler for each path. They may be called without a server: the CLI
// runs them over in-memory implementations of Deps.
func Handlers(d Deps, o Options) map[string]admission.Handler {
	s := &suite{Deps: d, Options: o.withDefaults(), compiler: newCompiler()}
	if s.Recorder == nil {
		s.Recorder = noRecorder{}
	}
	if s.Ready == nil {
		s.Ready = func() error { return nil }
	}
	slots := make(chan struct{}, s.MaxInFlight)
	handlers := map[string]admission.Handler{
		PathValidateClaim:       validateClaim{s},
		PathValidateTemplate:    validateTemplate{s},
		PathValidatePodExtended: validatePod{s, s.judgePodExtended},
		PathValidatePodClaims:   validatePod{s, s.judgePodClaims},
		PathValidateQuota:       validateQuota{s},
		PathMutateClaim:         mutateClaim{s},
		PathMutateTemplate:      mutateTemplate{s},
	}
	for path, h := range handlers {
		handlers[path] = &guard{webhook: path[1:], handler: h, slots: slots, timeout: s.Timeout, ready: s.Ready, recorder: s.Recorder}
	}
	return handlers
}

// Webhooks returns the handlers ready to be registered with a webhook server, through Serve.
// path -> webhook
func Webhooks(d Deps, o Options) map[string]*admission.Webhook {
	out := map[string]*admission.Webhook{}
	for path, h := range Handlers(d, o) {
		out[path] = &admission.Webhook{Handler: h, WithContextFunc: withServerTimeout, LogConstructor: plainLogger}
	}
	return out
}

func (s *suite) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// validate returns everything that is wrong with the claim's spec.
func (s *suite) validate(spec *resourceapi.ResourceClaimSpec, root string) field.ErrorList {
	if errs := validateSpec(spec, root); len(errs) > 0 {
		return errs
	}
	return s.compiler.validate(spec, root)
}
