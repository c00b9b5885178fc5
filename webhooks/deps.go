package webhooks

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
)

// Admitter decides and holds charges. *ledger.Ledger is one.
type Admitter interface {
	// Admit decides, and holds the charge when it allows; the error is an outage.
	Admit(ctx context.Context, r ledger.Request) (ledger.Decision, error)
	// Check decides and writes nothing.
	Check(ctx context.Context, r ledger.Request) (ledger.Decision, error)
}

// Coverage tells which quotas cover a project, sorted by name; the error is an outage.
type Coverage interface {
	Covering(ctx context.Context, namespace string) ([]*quota.Quota, error)
}

// Devices gives the charger over the newest inventory; nil before there is one.
type Devices interface {
	Charger() *quota.Charger
}

// Objects reads what a request refers to. A result of nil without error means: there is none.
type Objects interface {
	// NamespaceAnnotations may be as old as the caches are, but an unknown namespace is read live.
	NamespaceAnnotations(ctx context.Context, name string) (map[string]string, error)
	// Template, Claim and Pod are read live: they may have been created a moment ago.
	Template(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaimTemplate, error)
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Usage gives what is charged to a quota now, used and held; false when that is not known.
type Usage interface {
	Used(ctx context.Context, quota string) (corev1.ResourceList, bool)
}

// Explainer tells why a claim cannot be satisfied.
type Explainer interface {
	// Explain returns a text per request that fails even when every published device were
	// free. It returns "" when the claim could be satisfied, when the inventory is not
	// synced or has incomplete pools, and when the question costs more than its budget.
	Explain(ctx context.Context, claim *resourceapi.ResourceClaim) string
}

// Access tells whether a user may ask for adminAccess in a project; the error is an outage.
type Access interface {
	MayUseAdminAccess(ctx context.Context, user authenticationv1.UserInfo, namespace string) (bool, error)
}

// Recorder counts what the handlers did. All methods are safe for concurrent use.
type Recorder interface {
	// Admission is called once per answer. Reasons are those of the refusal and the warnings, each once.
	Admission(webhook, decision string, reasons []Reason, elapsed time.Duration)
	// InFlight is called with +1 and -1.
	InFlight(webhook string, delta int)
	// Panic counts a recovered panic.
	Panic(webhook string)
}

// Deps are what the handlers ask. All of it is safe for concurrent use.
type Deps struct {
	Admitter Admitter
	Coverage Coverage
	Devices  Devices
	Objects  Objects
	// Usage gives BelowUsage warnings; nil: none.
	Usage Usage
	// Explainer gives NoMatchingDevice warnings; nil: none.
	Explainer Explainer
	// Access decides on adminAccess; nil: everybody may.
	Access Access
	// Recorder may be nil.
	Recorder Recorder
	// Ready returns why nothing can be decided yet; nil, or a nil func, when everything can.
	Ready func() error
	// Now is the monotonic clock of the ledger; nil: time.Now.
	Now func() time.Time
}

// AdminAccessPolicy is what happens to requesters who ask for adminAccess without the right to.
type AdminAccessPolicy string

// The policies.
const (
	// AdminAccessAllow does not ask.
	AdminAccessAllow AdminAccessPolicy = "Allow"
	// AdminAccessWarn admits with a warning.
	AdminAccessWarn AdminAccessPolicy = "Warn"
	// AdminAccessDeny refuses.
	AdminAccessDeny AdminAccessPolicy = "Deny"
)

// Options of the handlers. The zero value means the defaults.
type Options struct {
	// AdminAccess defaults to AdminAccessWarn.
	AdminAccess AdminAccessPolicy
	// Schedulers are the users whose claims for charged pods are charged by their excess
	// only. Defaults to system:kube-scheduler.
	Schedulers []string
	// ClaimControllers are the users who make claims from templates.
	// Defaults to the identities of kube-controller-manager.
	ClaimControllers []string
	// ExemptNamespaces are covered by nothing.
	ExemptNamespaces []string
	// PlatformKeys leaves Kubernetes' own keys to the platform (OpenShift 4.21 and later).
	PlatformKeys bool
	// PlatformQuota tells that the platform enforces ClusterResourceQuota keys that are not about devices (OpenShift).
	PlatformQuota bool
	// Enforcement of quotas without the annotation; empty means Enforce.
	Enforcement quota.Enforcement
	// MaxInFlight bounds the requests that are decided at the same time. Defaults to 2000.
	MaxInFlight int
	// Timeout bounds one request; it has to be below the webhooks' timeoutSeconds. The API
	// server's own timeout parameter lowers it. Defaults to 4.5 s.
	Timeout time.Duration
}

// Defaults of Options.
const (
	DefaultScheduler   = "system:kube-scheduler"
	DefaultMaxInFlight = 2000
	DefaultTimeout     = 4500 * time.Millisecond
)

// DefaultClaimControllers returns the users that kube-controller-manager makes claims from templates as.
func DefaultClaimControllers() []string {
	return []string{"system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager"}
}

func (o Options) withDefaults() Options {
	if o.AdminAccess == "" {
		o.AdminAccess = AdminAccessWarn
	}
	if len(o.Schedulers) == 0 {
		o.Schedulers = []string{DefaultScheduler}
	}
	if len(o.ClaimControllers) == 0 {
		o.ClaimControllers = DefaultClaimControllers()
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return o
}

// holdUID is a UID that no object has: the UID of requests for objects that will never exist.
const holdUID = types.UID("")
