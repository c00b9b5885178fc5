package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

func TestMemoryStoreComparesAndSwaps(t *testing.T) {
	ctx := t.Context()
	now := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	s := NewMemoryStore(clocktesting.NewFakePassiveClock(now))
	if _, err := s.Get(ctx, "q"); !errors.Is(err, ErrNotFound) {
		t.Errorf("want not found, got %v", err)
	}
	a, err := s.Create(ctx, &v1alpha1.DeviceLedger{ObjectMeta: metav1.ObjectMeta{Name: "q"}})
	if err != nil {
		t.Fatal(err)
	}
	if a.UID == "" || a.ResourceVersion == "" || !a.CreationTimestamp.Time.Equal(now.Truncate(time.Second)) {
		t.Errorf("want UID, version and creation timestamp, got %+v", a.ObjectMeta)
	}
	if _, err := s.Create(ctx, a); !errors.Is(err, ErrConflict) {
		t.Errorf("want a conflict with what exists, got %v", err)
	}
	changed := a.DeepCopy()
	changed.Status.Rebuilding = true
	b, err := s.Update(ctx, changed)
	if err != nil {
		t.Fatal(err)
	}
	changed.Status.CRQUID = "the caller's own"
	got, err := s.GetLive(ctx, "q")
	if diff := cmp.Diff(b, got); err != nil || diff != "" {
		t.Errorf("stored (-want +got), error %v:\n%s", err, diff)
	}
	if _, err := s.Update(ctx, a); !errors.Is(err, ErrConflict) {
		t.Errorf("want a conflict at an old version, got %v", err)
	}
	if err := s.Delete(ctx, a); !errors.Is(err, ErrConflict) {
		t.Errorf("want a conflict at an old version, got %v", err)
	}
	other := b.DeepCopy()
	other.UID = "other"
	if _, err := s.Update(ctx, other); !errors.Is(err, ErrConflict) {
		t.Errorf("want a conflict with another UID, got %v", err)
	}
	if err := s.Delete(ctx, b); err != nil {
		t.Error(err)
	}
	if _, err := s.Update(ctx, b); !errors.Is(err, ErrNotFound) {
		t.Errorf("want not found, got %v", err)
	}
	if err := s.Delete(ctx, b); !errors.Is(err, ErrNotFound) {
		t.Errorf("want not found, got %v", err)
	}
}
