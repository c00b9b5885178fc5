package cluster

import (
	"context"
	"sync"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// seedQueue carries what ledgers remember from the store to the index, whose locks must not
// be taken in that order.
type seedQueue struct {
	wake chan struct{}

	mu      sync.Mutex // protects the following
	pending map[string][]v1alpha1.RememberedCharge
	filled  map[string]bool // quotas of which the index has something
}

// offer takes the charges of a newly known ledger. Those of a lost one stay good.
func (s *seedQueue) offer(name string, l *v1alpha1.DeviceLedger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l == nil || len(l.Status.Remembered) == 0 && !s.filled[name] {
		return
	}
	if s.pending == nil {
		s.pending, s.filled = map[string][]v1alpha1.RememberedCharge{}, map[string]bool{}
	}
	s.pending[name] = l.Status.Remembered
	if len(l.Status.Remembered) == 0 {
		delete(s.filled, name)
	} else {
		s.filled[name] = true
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run feeds the index until ctx ends.
func (s *seedQueue) run(ctx context.Context, x *index) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.drain(x)
	}
}

func (s *seedQueue) drain(x *index) {
	s.mu.Lock()
	pending := s.pending
	s.pending = nil
	if s.filled != nil {
		s.pending = map[string][]v1alpha1.RememberedCharge{}
	}
	s.mu.Unlock()
	for name, remembered := range pending {
		x.seed(name, remembered)
	}
}
