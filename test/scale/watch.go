package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// watched follows what the manager writes.
type watched struct {
	// applied counts writes of projections, statuses those of quotas, ledgers those of ledgers.
	// Each version that a watch tells is one write.
	applied, statuses, ledgers atomic.Int64

	mu sync.Mutex // protects following
	// shown is what projections say: claims of the project, and of all projects together.
	shown map[types.NamespacedName]shown
	ended error
}

type shown struct{ own, total int64 }

// follow watches until ctx ends.
func follow(ctx context.Context, cp *harness.ControlPlane) (*watched, error) {
	cl, err := client.NewWithWatch(cp.Config, client.Options{Scheme: cp.Client.Scheme(), Mapper: cp.Client.RESTMapper()})
	if err != nil {
		return nil, err
	}
	w := &watched{shown: map[types.NamespacedName]shown{}}
	for _, f := range []struct {
		list client.ObjectList
		see  func(watch.Event)
	}{
		{&quotav1.AppliedClusterResourceQuotaList{}, w.seeApplied},
		{&quotav1.ClusterResourceQuotaList{}, func(watch.Event) { w.statuses.Add(1) }},
		{&v1alpha1.DeviceLedgerList{}, func(watch.Event) { w.ledgers.Add(1) }},
	} {
		events, err := cl.Watch(ctx, f.list)
		if err != nil {
			return nil, err
		}
		go func() {
			for e := range events.ResultChan() {
				f.see(e)
			}
			if ctx.Err() == nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.ended = fmt.Errorf("a watch of %T ended", f.list)
			}
		}()
	}
	return w, nil
}

func (w *watched) seeApplied(e watch.Event) {
	q, ok := e.Object.(*quotav1.AppliedClusterResourceQuota)
	if !ok {
		return
	}
	w.applied.Add(1)
	var s shown
	if len(q.Status.Namespaces) == 1 {
		own := q.Status.Namespaces[0].Status.Used[claimsKey]
		s.own = own.Value()
	}
	total := q.Status.Total.Used[claimsKey]
	s.total = total.Value()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown[client.ObjectKeyFromObject(q)] = s
}

func (w *watched) of(namespace, quota string) (shown, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown[types.NamespacedName{Namespace: namespace, Name: quota}], w.ended
}

// waitOwn waits until the project's projections of its quotas show at least what they did
// before plus one.
func (w *watched) waitOwn(ctx context.Context, namespace string, before map[string]int64) error {
	for quota, n := range before {
		err := waitFor(ctx, 3*time.Minute, func() error {
			s, err := w.of(namespace, quota)
			if err == nil && s.own <= n {
				err = fmt.Errorf("%s/%s shows %d claims, want %d", namespace, quota, s.own, n+1)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// waitEverywhere waits until every project shows the total of each of its quotas.
func (w *watched) waitEverywhere(ctx context.Context, c cluster, totals map[string]int64) error {
	return waitFor(ctx, 10*time.Minute, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended != nil {
			return w.ended
		}
		for i := range c.Projects {
			for _, quota := range c.quotas(i) {
				s, ok := w.shown[types.NamespacedName{Namespace: c.project(i), Name: quota}]
				if !ok || s.total != totals[quota] {
					return fmt.Errorf("%s/%s shows a total of %d claims, want %d", c.project(i), quota, s.total, totals[quota])
				}
			}
		}
		return nil
	})
}

// waitFor polls until f returns nil.
func waitFor(ctx context.Context, limit time.Duration, f func() error) error {
	last := errors.New("not asked")
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		last = f()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}
