package cluster

import (
	"fmt"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// TestTwoLeadersForAMomentAgree: one that lost its lease writes on until it notices. Both come
// to the same, and then neither writes.
func TestTwoLeadersForAMomentAgree(t *testing.T) {
	s := newScene(t, "two-leaders", 3, 4)
	a := newReplica(t, "", cluster.Kubernetes).lead()
	b := newReplica(t, "", cluster.Kubernetes).lead()
	s.quota(list(s.devicesKey(), 100))
	want := map[string]corev1.ResourceList{s.project(0): list(), s.project(1): list(), s.project(2): list()}
	for i := range 12 {
		s.claim(i%3, fmt.Sprintf("c-%d", i), 1)
	}
	for p := range want {
		want[p] = list(s.devicesKey(), 4)
	}
	s.wantShown(a, s.name, want)
	l := &v1alpha1.DeviceLedger{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: s.name}, l); err != nil {
		t.Fatal(err)
	}
	if used := l.Status.Used[s.devicesKey()]; used.Value() != 12 || len(l.Status.Holds) != 0 {
		t.Errorf("want use of 12 and no hold, got %s and %v", used.String(), l.Status.Holds)
	}
	written := func() int {
		n := 0
		for _, r := range []*replica{a, b} {
			for _, o := range []client.Object{&quotav1.ClusterResourceQuota{}, &quotav1.AppliedClusterResourceQuota{}, &v1alpha1.DeviceLedger{}} {
				n += r.calls.of("write", o)
			}
		}
		return n
	}
	// each may be at its last write; then there is none for longer than a settle's interval
	last, since := written(), time.Now()
	a.eventually("two leaders do not write on against each other", func() error {
		if now := written(); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet <= 2*cluster.DefaultInterval {
			return fmt.Errorf("%d writes, the last %v ago", last, quiet)
		}
		return nil
	})
	s.wantShown(b, s.name, want)
}
