package ledger

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Errors of a Store.
var (
	// ErrConflict: the ledger changed, or exists already, since it was read.
	ErrConflict = errors.New("ledger changed since it was read")
	// ErrNotFound: there is no such ledger.
	ErrNotFound = errors.New("ledger not found")
	// ErrThrottled: the API server asked to come back later (429) and did nothing.
	ErrThrottled = errors.New("api server is busy")
)

// Store keeps ledgers. Returned ledgers are the caller's own. Safe for concurrent use.
type Store interface {
	// Get returns the newest ledger this replica knows of, which may be older than the
	// stored one. ErrNotFound when it knows none.
	Get(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error)
	// GetLive returns the stored ledger. ErrNotFound when there is none.
	GetLive(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error)
	// Create stores a new ledger and returns it as stored. ErrConflict when one exists.
	Create(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error)
	// Update stores the ledger if it is still at l's UID and resourceVersion, else
	// ErrConflict or ErrNotFound. After any other error it may be stored or not.
	Update(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error)
	// Delete removes the ledger, and its finalizer, if it is still at l's UID and
	// resourceVersion, else ErrConflict or ErrNotFound.
	Delete(ctx context.Context, l *v1alpha1.DeviceLedger) error
}

// Observation is objects read at known versions. Safe for concurrent use.
type Observation interface {
	// Observe recounts one quota. last is the quota to count by where the observation has
	// none of that name (it is gone); nil then counts nothing. Present is answered for uids.
	// Versions and content belong together: versions are read before the content.
	Observe(name string, last *quota.Quota, uids []types.UID) quota.Observed
	// Covering returns the quotas whose selector matches the namespace, sorted by name, and
	// the namespace's version. known is false when the observation has no such namespace.
	Covering(namespace string) (quotas []*quota.Quota, version uint64, known bool)
}

// View is what one replica knows of the cluster, and how it looks again.
type View interface {
	// Cached observes this replica's caches as they are when it is asked.
	Cached() Observation
	// Live reads quotas and namespaces, then claims and pods, from the API server. All of it
	// is read after the call.
	Live(ctx context.Context) (Observation, error)
	// Namespace reads one namespace live and returns what Covering would with it.
	Namespace(ctx context.Context, name string) (quotas []*quota.Quota, version uint64, known bool, err error)
	// Quota reads one quota live; nil when it is gone.
	Quota(ctx context.Context, name string) (*quota.Quota, error)
}

// Request is one admission request that may cost something.
type Request struct {
	// UID of the object that the request creates.
	UID       types.UID
	Kind      v1alpha1.HoldKind
	Namespace string
	Name      string
	// Arrived is when the request reached this replica, by its monotonic clock.
	Arrived time.Time
	// Created is the API server's timestamp on the object.
	Created time.Time
	// Charge returns what the object costs the quota. It is asked once per quota and decision.
	Charge func(q *quota.Quota) (quota.Charge, error)
	// PodUID is set for the scheduler's claim of a pod that was charged itself.
	PodUID types.UID
	// OwnerPod is the pod that a claim was made for from a template: the claim's charge is
	// taken off that pod's advisory hold. Tenants may write it: it lowers advisory holds only.
	OwnerPod types.UID
	// Advisory holds count only against other advisory requests.
	Advisory bool
	// DryRun requests are decided and never written.
	DryRun bool
}
