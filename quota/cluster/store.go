package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator/cluster/feed"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// StoreOptions configure a Store.
type StoreOptions struct {
	// Client reads and writes the API server directly, without a cache.
	Client client.WithWatch
	// Clock is the real one when nil.
	Clock clock.PassiveClock
	Log   logr.Logger
}

// Store keeps ledgers as DeviceLedger objects. Get answers from a watch-fed cache overlaid
// by this replica's own writes and live reads: the newest resourceVersion wins.
// Safe for concurrent use.
type Store struct {
	o    StoreOptions
	feed *feed.Feed

	mu       sync.Mutex // protects the following
	ledgers  map[string]*known
	onChange map[int]func(string, *v1alpha1.DeviceLedger)
	nextID   int
}

// known is the newest that this replica knows of one ledger.
type known struct {
	version uint64
	// ledger is nil when version is that of the ledger's deletion.
	ledger *v1alpha1.DeviceLedger
	// pods tells whether it holds a pod's charge.
	pods bool
}

var _ ledger.Store = (*Store)(nil)

// +kubebuilder:rbac:groups=devicequota.io,resources=deviceledgers,verbs=get;list;watch;create;update;delete

// NewStore returns a store whose cache is empty until Start.
func NewStore(o StoreOptions) *Store {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	s := &Store{o: o, ledgers: map[string]*known{}, onChange: map[int]func(string, *v1alpha1.DeviceLedger){}}
	s.feed = feed.New(feed.Config{
		Name: "deviceledgers", Client: o.Client, Clock: o.Clock, Log: o.Log, Target: storeTarget{s},
		NewList: func() client.ObjectList { return &v1alpha1.DeviceLedgerList{} },
	})
	return s
}

// Start feeds the cache until ctx ends.
func (s *Store) Start(ctx context.Context) error {
	s.feed.Run(ctx)
	return nil
}

// NeedLeaderElection is false: every replica admits.
func (s *Store) NeedLeaderElection() bool { return false }

// Synced tells whether the cache was filled once.
func (s *Store) Synced() bool { return s.feed.Health().Synced }

// Subscribe calls f for every ledger that is known, then for every version of one that becomes
// known, own writes included, and with a nil ledger when it is gone, until stop is called. f must
// return at once, must not call the Store and must not change the ledger.
func (s *Store) Subscribe(f func(name string, l *v1alpha1.DeviceLedger)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.nextID
	s.nextID++
	s.onChange[id] = f
	for name, k := range s.ledgers {
		if k.ledger != nil {
			f(name, k.ledger)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.onChange, id)
	}
}

// Names returns the names of all known ledgers, in no order.
func (s *Store) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, k := range s.ledgers {
		if k.ledger != nil {
			names = append(names, name)
		}
	}
	return names
}

// Get returns the newest ledger this replica knows of. Source: ledger.Store.
func (s *Store) Get(_ context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.ledgers[name]
	if k == nil || k.ledger == nil {
		return nil, fmt.Errorf("%q: %w", name, ledger.ErrNotFound)
	}
	return k.ledger.DeepCopy(), nil
}

// GetLive returns the stored ledger, by a consistent read. Source: ledger.Store.
func (s *Store) GetLive(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	l := &v1alpha1.DeviceLedger{}
	err := s.o.Client.Get(ctx, client.ObjectKey{Name: name}, l)
	if err != nil {
		return nil, mapError(err, name, "read")
	}
	s.learn(l)
	return l, nil
}

// Create stores a new ledger. Source: ledger.Store.
func (s *Store) Create(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	l = l.DeepCopy()
	l.UID, l.ResourceVersion = "", ""
	err := s.o.Client.Create(ctx, l)
	if err != nil {
		return nil, mapError(err, l.Name, "creation")
	}
	s.learn(l)
	return l, nil
}

// Update stores the ledger if it is still at l's UID and resourceVersion. Source: ledger.Store.
func (s *Store) Update(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	l = l.DeepCopy()
	if l.UID == "" || l.ResourceVersion == "" {
		return nil, fmt.Errorf("ledger %q: an update needs the UID and resourceVersion that it replaces", l.Name)
	}
	l.ManagedFields = unmanaged()
	if err := s.o.Client.Update(ctx, l); err != nil {
		return nil, mapError(err, l.Name, "update")
	}
	s.learn(l)
	return l, nil
}

// unmanaged are the managed fields of an object that the API server shall not track the managers
// of: ledgers and projections have one, and tracking the holds of a ledger one by one costs more
// than all else of a write.
//
// Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields;
// what has none is not tracked (k8s.io/apimachinery/pkg/util/managedfields, skipNonAppliedManager).
func unmanaged() []metav1.ManagedFieldsEntry { return []metav1.ManagedFieldsEntry{{}} }

// Delete removes the ledger if it is still at l's UID and resourceVersion: its finalizer
// first, then the object. Source: ledger.Store.
func (s *Store) Delete(ctx context.Context, l *v1alpha1.DeviceLedger) error {
	l = l.DeepCopy()
	if len(l.Finalizers) > 0 {
		l.Finalizers = nil
		if err := s.o.Client.Update(ctx, l); err != nil {
			return mapError(err, l.Name, "removal of the finalizer")
		}
		if l.DeletionTimestamp != nil {
			// Without finalizer a ledger being deleted is gone at once.
			s.forget(l)
			return nil
		}
	}
	err := s.o.Client.Delete(ctx, l, client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
	if err != nil {
		return mapError(err, l.Name, "deletion")
	}
	s.forget(l)
	return nil
}

// mapError makes the errors of a compare-and-swap those of the Store.
func mapError(err error, name, what string) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%q: %w", name, ledger.ErrNotFound)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%q: %w", name, ledger.ErrConflict)
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("%s of ledger %q: %w: %w", what, name, ledger.ErrThrottled, err)
	default:
		return fmt.Errorf("%s of ledger %q: %w", what, name, err)
	}
}

// learn keeps the ledger if it is newer than what is known.
func (s *Store) learn(l *v1alpha1.DeviceLedger) {
	version, err := quota.ParseVersion(l.ResourceVersion)
	if err != nil {
		return // the API server's versions are numbers
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learnLocked(l.DeepCopy(), version)
}

func (s *Store) learnLocked(l *v1alpha1.DeviceLedger, version uint64) {
	k := s.ledgers[l.Name]
	if k == nil {
		k = &known{}
		s.ledgers[l.Name] = k
	}
	if version <= k.version {
		return
	}
	k.version, k.ledger = version, l
	k.pods = slices.ContainsFunc(l.Status.Holds, func(h v1alpha1.Hold) bool { return h.Kind == v1alpha1.HoldPod && !h.Advisory })
	s.tellLocked(l.Name, l)
}

func (s *Store) tellLocked(name string, l *v1alpha1.DeviceLedger) {
	for _, f := range s.onChange {
		f(name, l)
	}
}

// holdsPods tells whether a known ledger holds a pod that is charged.
func (s *Store) holdsPods() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.ledgers {
		if k.pods {
			return true
		}
	}
	return false
}

// forget notes that l was deleted by this replica. The deletion's own version is not told,
// but it is newer than l's.
func (s *Store) forget(l *v1alpha1.DeviceLedger) {
	version, err := quota.ParseVersion(l.ResourceVersion)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(l.Name, version+1)
}

func (s *Store) forgetLocked(name string, version uint64) {
	if k := s.ledgers[name]; k != nil && version > k.version {
		told := k.ledger == nil
		k.version, k.ledger, k.pods = version, nil, false
		if !told {
			s.tellLocked(name, nil)
		}
	}
}

// storeTarget feeds the store's cache.
type storeTarget struct{ s *Store }

func (t storeTarget) Set(obj client.Object, version uint64) {
	l, ok := obj.(*v1alpha1.DeviceLedger)
	if !ok {
		return
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.learnLocked(l, version)
}

func (t storeTarget) Delete(obj client.Object, version uint64) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.forgetLocked(obj.GetName(), version)
}

// Replace keeps what this replica has learned beyond the list's version.
func (t storeTarget) Replace(objs []client.Object, version uint64) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	listed := map[string]bool{}
	for _, obj := range objs {
		l, ok := obj.(*v1alpha1.DeviceLedger)
		if !ok {
			continue
		}
		listed[l.Name] = true
		if v, err := quota.ParseVersion(l.ResourceVersion); err == nil {
			t.s.learnLocked(l, v)
		}
	}
	for name := range t.s.ledgers {
		if !listed[name] {
			t.s.forgetLocked(name, version)
		}
	}
	t.s.sweepLocked(version)
}

func (t storeTarget) Bookmark(version uint64) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.sweepLocked(version)
}

// sweepLocked drops the memory of deletions that the watch has passed.
func (s *Store) sweepLocked(version uint64) {
	for name, k := range s.ledgers {
		if k.ledger == nil && k.version <= version {
			delete(s.ledgers, name)
		}
	}
}
