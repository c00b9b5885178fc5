package ledger

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// MemoryStore is a Store in memory, for tests and the CLI. It follows the API server's rules
// for resourceVersions, UIDs and creation timestamps. Safe for concurrent use.
type MemoryStore struct {
	clock clock.PassiveClock

	mu      sync.Mutex // protects following
	version uint64
	// name -> ledger
	ledgers map[string]*v1alpha1.DeviceLedger
}

var _ Store = (*MemoryStore)(nil)

// NewMemoryStore returns an empty store whose creation timestamps come from c.
func NewMemoryStore(c clock.PassiveClock) *MemoryStore {
	return &MemoryStore{clock: c, ledgers: map[string]*v1alpha1.DeviceLedger{}}
}

// Get implements Store.
func (s *MemoryStore) Get(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	return s.GetLive(ctx, name)
}

// GetLive implements Store.
func (s *MemoryStore) GetLive(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.ledgers[name]
	if l == nil {
		return nil, fmt.Errorf("ledger %q: %w", name, ErrNotFound)
	}
	return l.DeepCopy(), nil
}

// Create implements Store.
func (s *MemoryStore) Create(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledgers[l.Name] != nil {
		return nil, fmt.Errorf("ledger %q exists: %w", l.Name, ErrConflict)
	}
	n := l.DeepCopy()
	n.CreationTimestamp = metav1.NewTime(s.clock.Now().Truncate(1e9))
	n.DeletionTimestamp = nil
	n.ResourceVersion = s.nextLocked()
	n.UID = types.UID("ledger-" + n.ResourceVersion)
	s.ledgers[l.Name] = n
	return n.DeepCopy(), nil
}

// Update implements Store.
func (s *MemoryStore) Update(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.matchLocked(l)
	if err != nil {
		return nil, err
	}
	n := l.DeepCopy()
	n.CreationTimestamp = old.CreationTimestamp
	n.ResourceVersion = s.nextLocked()
	s.ledgers[l.Name] = n
	return n.DeepCopy(), nil
}

// Delete implements Store.
func (s *MemoryStore) Delete(ctx context.Context, l *v1alpha1.DeviceLedger) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.matchLocked(l); err != nil {
		return err
	}
	delete(s.ledgers, l.Name)
	return nil
}

// matchLocked returns the stored ledger if it is at l's UID and resourceVersion.
func (s *MemoryStore) matchLocked(l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	old := s.ledgers[l.Name]
	if old == nil {
		return nil, fmt.Errorf("ledger %q: %w", l.Name, ErrNotFound)
	}
	if old.UID != l.UID || old.ResourceVersion != l.ResourceVersion {
		return nil, fmt.Errorf("ledger %q: %w", l.Name, ErrConflict)
	}
	return old, nil
}

func (s *MemoryStore) nextLocked() string {
	s.version++
	return strconv.FormatUint(s.version, 10)
}
