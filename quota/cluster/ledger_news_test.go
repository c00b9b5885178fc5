package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

func TestWhatOthersDoToALedgerIsNoticed(t *testing.T) {
	t.Parallel()
	state := func(change func(*v1alpha1.DeviceLedger)) *v1alpha1.DeviceLedger {
		l := &v1alpha1.DeviceLedger{}
		l.Name, l.UID = "q", "1"
		l.Status = v1alpha1.DeviceLedgerStatus{CRQUID: "q", CRQResourceVersion: "5", Hard: corev1.ResourceList{devicesKey: resource.MustParse("3")},
			Observed: v1alpha1.ObservedVersions{Claims: "10", Namespaces: "4"}}
		if change != nil {
			change(l)
		}
		return l
	}
	for name, c := range map[string]struct {
		states []*v1alpha1.DeviceLedger
		want   []newsOf
	}{
		"a settle": {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) { l.Status.Observed.Claims = "11" })}, nil},
		"a raised limit": {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) {
			l.Status.CRQResourceVersion, l.Status.Hard = "6", corev1.ResourceList{devicesKey: resource.MustParse("4")}
		})}, nil},
		"a quota recreated": {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) { l.Status.CRQResourceVersion, l.Status.CRQUID = "6", "r" })}, nil},
		"limits without a newer quota": {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) {
			l.Status.Hard = corev1.ResourceList{devicesKey: resource.MustParse("4")}
		})}, []newsOf{ledgerEdited}},
		"versions that are none": {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) { l.Status.Observed.Claims = "x" })}, []newsOf{ledgerEdited}},
		"versions ahead, undone": {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) { l.Status.Observed.Claims = "9999" }), state(nil)}, []newsOf{ledgerEdited}},
		"everything cleared":     {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) { l.Status = v1alpha1.DeviceLedgerStatus{} }), state(nil)}, []newsOf{ledgerEdited}},
		"deleted":                {[]*v1alpha1.DeviceLedger{state(nil), nil}, []newsOf{ledgerLost}},
		"deleted and created":    {[]*v1alpha1.DeviceLedger{state(nil), nil, state(func(l *v1alpha1.DeviceLedger) { l.UID = "2" })}, []newsOf{ledgerLost}},
		"replaced":               {[]*v1alpha1.DeviceLedger{state(nil), state(func(l *v1alpha1.DeviceLedger) { l.UID = "2" })}, []newsOf{ledgerLost}},
		"the first":              {[]*v1alpha1.DeviceLedger{nil, state(nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLedgerNews()
			for _, l := range c.states {
				n.heard("q", l)
			}
			if got := n.take("q"); !slices.Equal(got, c.want) {
				t.Errorf("want news %v, got %v", c.want, got)
			}
			if got := n.take("q"); len(got) != 0 {
				t.Errorf("told twice: %v", got)
			}
		})
	}
}

// TestALedgerKnownBeforeIsMissedToo: a replica that begins to lead has followed the ledgers for
// long, and most of them are not written again soon.
func TestALedgerKnownBeforeIsMissedToo(t *testing.T) {
	t.Parallel()
	s := NewStore(StoreOptions{})
	s.learn(stored("5", "3"))
	n := newLedgerNews()
	defer s.Subscribe(n.heard)()
	s.forget(stored("5", "3"))
	if got := n.take("q"); !slices.Equal(got, []newsOf{ledgerLost}) {
		t.Errorf("want news %v, got %v", []newsOf{ledgerLost}, got)
	}
}

// telling is a Store that is told of deletions as Usage is.
type telling struct {
	ledger.Store
	gone func(name string)
}

func (s telling) Delete(ctx context.Context, l *v1alpha1.DeviceLedger) error {
	err := s.Store.Delete(ctx, l)
	if err == nil {
		s.gone(l.Name)
	}
	return err
}

// TestALedgerRemovedWithItsQuotaIsNotLost: nor is it for the next quota of that name.
func TestALedgerRemovedWithItsQuotaIsNotLost(t *testing.T) {
	t.Parallel()
	u, s, r := newUsage(t, 10)
	l := &v1alpha1.DeviceLedger{}
	l.Name, l.UID = "q", "1"
	u.news.heard("q", l)
	store := telling{ledger.NewMemoryStore(s.clock), func(name string) { u.news.heard(name, nil) }}
	u.o.Ledger = ledger.New(store, s.view, ledger.Options{Clock: s.clock})
	reconcile := func() {
		t.Helper()
		if _, err := u.reconcile(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
	}
	reconcile()
	drop(s, quota.Quotas, s.quotas, "/q")
	reconcile()
	s.clock.Step(time.Second) // between two live observations
	s.limit(10)
	reconcile()
	if len(r.events) != 0 {
		t.Errorf("want no Events, got %q", r.events)
	}
}

func TestNewsOfALedgerAreEventsOnItsQuota(t *testing.T) {
	t.Parallel()
	u, _, r := newUsage(t, 10)
	l := &v1alpha1.DeviceLedger{}
	l.Name, l.UID = "q", "1"
	u.news.heard("q", l)
	u.news.heard("q", nil)
	if _, err := u.reconcile(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"q Warning LedgerLost: " + ledgerLost.text()}; !slices.Equal(r.events, want) {
		t.Errorf("want Events %q, got %q", want, r.events)
	}
}
