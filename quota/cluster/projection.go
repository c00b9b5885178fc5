package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator/cluster/feed"
	"github.com/devicequota/devicequota/quota"
)

// ProjectionOptions configure a Projection.
type ProjectionOptions struct {
	// Client reads and writes the API server directly, without a cache.
	Client   client.WithWatch
	View     *View
	Platform Platform
	// Budget is how many projections are written per second of those that only see another
	// total, so long as that is enough to write each of them within a minute. Zero means
	// DefaultBudget. Projects in which something changed have ten times as much, of their own, of
	// which the statuses of all quotas take no more than an eighth of the budget, up to 87 quotas.
	Budget float64
	// Workers is how many are written at the same time. After each write a worker rests, the
	// longer the write took: an API server that is busy has admission to serve first. Zero means 2.
	Workers int
	// Interval is the least time between two writes of one quota's status. Zero means DefaultInterval.
	Interval time.Duration
	// Clock is the real one when nil.
	Clock clock.WithTicker
	Log   logr.Logger
}

// DefaultBudget is in writes per second.
const DefaultBudget = 20.0

// What only sees another total lets what is urgent go first for its patience, as long as there is
// any: most of it is written meanwhile as something in it changed. The budget grows so that the rest
// is written within that time.
const (
	patience = 20 * time.Second
	within   = 35 * time.Second
)

// Projection shows each quota to the projects that it covers. On plain Kubernetes it writes
// the quota's status and an AppliedClusterResourceQuota in each project; on OpenShift an
// AppliedDeviceQuota in each project, and never a ClusterResourceQuota. One replica, the
// leader, runs it.
type Projection struct {
	o    ProjectionOptions
	feed *feed.Feed

	mu      sync.Mutex // protects the following
	quotas  map[string]*projected
	applied map[types.NamespacedName]appliedObject // namespace/quota -> as the API server has it
	queue   projectionQueue
	writes  uint64
}

// projected is what a quota's projections shall say.
type projected struct {
	// crq whose spec and metadata are shown.
	crq      *quotav1.ClusterResourceQuota
	status   quotav1.ClusterResourceQuotaStatus
	observed quota.Observed
	// written is when the quota's own status was last written.
	written time.Time
}

// appliedObject is a projection as stored, known by a hash of its content.
type appliedObject struct {
	uid     types.UID
	version uint64
	rv      string
	content uint64
}

// +kubebuilder:rbac:groups=quota.openshift.io,resources=clusterresourcequotas/status,verbs=update,roleName=devicequota-projection-kubernetes
// +kubebuilder:rbac:groups=quota.openshift.io,resources=appliedclusterresourcequotas,verbs=get;list;watch;create;update;delete,roleName=devicequota-projection-kubernetes
// +kubebuilder:rbac:groups=devicequota.io,resources=applieddevicequotas,verbs=get;list;watch;create;update;delete,roleName=devicequota-projection-openshift

// NewProjection returns a projection that does nothing until it is started.
func NewProjection(o ProjectionOptions) *Projection {
	if o.Budget == 0 {
		o.Budget = DefaultBudget
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	p := &Projection{o: o, quotas: map[string]*projected{}, applied: map[types.NamespacedName]appliedObject{}}
	p.queue.init(o.Clock)
	p.feed = feed.New(feed.Config{
		Name: p.kind().resource, Client: o.Client, NewList: p.kind().newList, Clock: o.Clock, Log: o.Log,
		Target: appliedTarget{p},
	})
	return p
}

// NeedLeaderElection is true: one replica projects.
func (p *Projection) NeedLeaderElection() bool { return true }

// Start projects until ctx ends. It returns when all its goroutines ended.
func (p *Projection) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { p.feed.Run(ctx) })
	ready := func() bool { return p.feed.Health().Synced && p.o.View.Ready(nil) == nil }
	if err := waitFor(ctx, p.o.Clock, ready); err != nil {
		return nil // stopped before there was anything to do
	}
	p.sweep()
	p.work(ctx)
	return nil
}

// Offer takes a recount of a quota, to be shown from then on.
func (p *Projection) Offer(name string, o quota.Observed) {
	crq := p.o.View.ClusterResourceQuota(name)
	if crq == nil || o.Quota == nil || crq.UID != o.Quota.UID {
		return // gone or recreated since; its event brings the next one
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.quotas[name]
	now := &projected{crq: crq, status: quota.Status(o.Quota, o), observed: o}
	if old != nil {
		now.written = old.written
	}
	p.quotas[name] = now
	if p.o.Platform != OpenShift && !equality.Semantic.DeepEqual(crq.Status, now.status) {
		p.queue.add(projectionKey{quota: name}, true)
	}
	p.enqueueLocked(name, old, now)
}

// enqueueLocked queues what the new recount changes: the projects in which something changed
// first, then those that only see another total.
func (p *Projection) enqueueLocked(name string, old, now *projected) {
	all := old == nil || !sameForAll(old, now)
	for namespace, used := range now.observed.ByNamespace {
		var before corev1.ResourceList
		covered := false
		if old != nil {
			before, covered = old.observed.ByNamespace[namespace]
		}
		switch {
		case old != nil && (!covered || !quota.Equal(before, used)):
			p.queue.add(projectionKey{name, namespace}, true)
		case all:
			p.queue.add(projectionKey{name, namespace}, false)
		}
	}
	if old == nil {
		return
	}
	for namespace := range old.observed.ByNamespace {
		if _, still := now.observed.ByNamespace[namespace]; !still {
			p.queue.add(projectionKey{name, namespace}, true)
		}
	}
}

// sameForAll tells whether what all projects see is the same.
func sameForAll(a, b *projected) bool {
	return a.crq.UID == b.crq.UID && equality.Semantic.DeepEqual(a.crq.Spec, b.crq.Spec) &&
		equality.Semantic.DeepEqual(a.status.Total, b.status.Total)
}

// Remove ends the projections of a quota that is gone.
func (p *Projection) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.quotas, name)
	for key := range p.applied {
		if key.Name == name {
			p.queue.add(projectionKey{name, key.Namespace}, false)
		}
	}
}

// sweep queues what is stored and may have to go: from the time before this replica led.
func (p *Projection) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.applied {
		p.queue.add(projectionKey{key.Name, key.Namespace}, false)
	}
}

// Backlog returns how many projections wait to be written, and how many writes were made.
func (p *Projection) Backlog() (waiting int, writes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.len(), p.writes
}

// work writes what is queued until ctx ends, several at a time and none twice at once.
func (p *Projection) work(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, p.o.Workers)
	pace := newPacer(p.o.Clock.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case free <- struct{}{}:
		}
		key, paid, wait := p.next(pace)
		if paid == nil {
			<-free
			if !p.queue.wait(ctx, p.o.Clock, wait) {
				return
			}
			continue
		}
		wg.Go(func() {
			defer func() { <-free }()
			begun := p.o.Clock.Now()
			wrote, err := p.project(ctx, key)
			p.finish(key, err)
			if !wrote {
				p.giveBack(paid)
				return
			}
			if err == nil && paid == &pace.urgent {
				p.busy(pace)
			}
			p.rest(ctx, p.o.Clock.Since(begun))
		})
	}
}

// finish lets the key be projected again, later if it did not succeed.
func (p *Projection) finish(key projectionKey, err error) {
	if err != nil && !apierrors.IsConflict(err) && !errors.Is(err, context.Canceled) {
		p.o.Log.Error(err, "projection not written", "quota", key.quota, "namespace", key.namespace)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue.done(key)
	if err != nil {
		p.queue.later(key, p.o.Clock.Now().Add(retryAfter))
	}
}

// retryAfter is how long a write that did not succeed waits.
const retryAfter = time.Second

// project makes the API server show what the quota's latest recount says.
func (p *Projection) project(ctx context.Context, key projectionKey) (wrote bool, err error) {
	if key.namespace == "" {
		return p.projectStatus(ctx, key.quota)
	}
	p.mu.Lock()
	now := p.quotas[key.quota]
	stored, exists := p.applied[types.NamespacedName{Namespace: key.namespace, Name: key.quota}]
	p.mu.Unlock()
	if now == nil && p.o.View.ClusterResourceQuota(key.quota) != nil {
		return false, nil // not recounted yet; what is stored stays until then
	}
	covered := false
	if now != nil {
		_, covered = now.observed.ByNamespace[key.namespace]
	}
	switch {
	case !covered && exists:
		return true, p.unapply(ctx, key, stored)
	case covered:
		return p.apply(ctx, key, now, stored, exists)
	}
	return false, nil
}

// projectStatus writes the quota's status: total and projects at once, from one recount.
func (p *Projection) projectStatus(ctx context.Context, name string) (bool, error) {
	if p.o.Platform == OpenShift {
		return false, nil // the platform's own controller writes it
	}
	p.mu.Lock()
	now := p.quotas[name]
	p.mu.Unlock()
	crq := p.o.View.ClusterResourceQuota(name)
	if now == nil || crq == nil || crq.UID != now.crq.UID || equality.Semantic.DeepEqual(crq.Status, now.status) {
		return false, nil
	}
	if wait := p.statusInterval(now) - p.o.Clock.Since(now.written); wait > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.queue.later(projectionKey{quota: name}, p.o.Clock.Now().Add(wait))
		return false, nil
	}
	crq = crq.DeepCopy()
	crq.Status = *now.status.DeepCopy()
	before := p.wroteStatus(name, p.o.Clock.Now())
	if err := p.o.Client.Status().Update(ctx, crq); err != nil && !apierrors.IsNotFound(err) {
		if apierrors.IsConflict(err) {
			p.wroteStatus(name, before) // the next try need not wait
		}
		return true, fmt.Errorf("status of quota %q: %w", name, err)
	}
	p.wrote()
	return true, nil
}

// wroteStatus notes when the quota's status was written, in the latest recount, which may have come
// meanwhile, and returns when it was written before.
func (p *Projection) wroteStatus(name string, at time.Time) (before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	latest := p.quotas[name]
	if latest == nil {
		return time.Time{}
	}
	before, latest.written = latest.written, at
	return before
}
