package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/allocator/cluster/feed"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
)

// What charging asks is what the allocator publishes.
var _ quota.Inventory = (*allocator.Inventory)(nil)

// Options configure a View.
type Options struct {
	// Client reads the API server directly, without a cache.
	Client client.WithWatch
	API    *devices.API
	// Source of the inventory that charges are computed by. The View does not start it.
	Source *devices.Source
	// Store whose ledgers remember charges; nil: none do. The View does not start it.
	Store *Store
	// Exempt are the namespaces that nothing covers, by name.
	Exempt []string
	// Parse says how quotas are read.
	Parse quota.ParseOptions
	// InventoryPause is the least time between two recounts for changed inventory, so that a
	// burst of slices is one recount. Zero means DefaultInventoryPause.
	InventoryPause time.Duration
	// StaleAfter is how long nothing may be heard of a watched resource, not even a bookmark,
	// which the API server sends every minute. Zero means DefaultStaleAfter.
	StaleAfter time.Duration
	// Clock is the real one when nil.
	Clock clock.PassiveClock
	Log   logr.Logger
}

// Defaults of Options.
const (
	DefaultInventoryPause = 200 * time.Millisecond
	DefaultStaleAfter     = 3 * time.Minute
)

// View is what this replica knows of claims, pods, namespaces, quotas and devices. Safe for
// concurrent use.
type View struct {
	o     Options
	index *index
	feeds []*feed.Feed

	kick  chan struct{} // the inventory may have changed
	seeds seedQueue

	mu          sync.Mutex // protects the following
	subscribers map[int]func(Change)
	nextID      int
}

var _ ledger.View = (*View)(nil)

// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=quota.openshift.io,resources=clusterresourcequotas,verbs=get;list;watch

// NewView returns a view that knows nothing until it is started.
func NewView(o Options) (*View, error) {
	if o.Client == nil || o.API == nil || o.Source == nil {
		return nil, errors.New("view: Client, API and Source are required")
	}
	if o.InventoryPause == 0 {
		o.InventoryPause = DefaultInventoryPause
	}
	if o.StaleAfter == 0 {
		o.StaleAfter = DefaultStaleAfter
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if _, err := o.API.NewList("ResourceClaim"); err != nil {
		return nil, err
	}
	v := &View{o: o, kick: make(chan struct{}, 1), subscribers: map[int]func(Change){}}
	v.index = newIndex(o, v.changed)
	v.feeds = v.newFeeds()
	v.seeds.wake = make(chan struct{}, 1)
	o.Source.Subscribe(v.kickInventory)
	if o.Store != nil {
		o.Store.Subscribe(v.seeds.offer)
	}
	return v, nil
}

func (v *View) newFeeds() []*feed.Feed {
	config := func(c quota.Component, list func() client.ObjectList, convert func(runtime.Object) (client.Object, error)) *feed.Feed {
		return feed.New(feed.Config{
			Name: c.String(), Client: v.o.Client, NewList: list, Convert: convert, Clock: v.o.Clock, Log: v.o.Log,
			Target: indexTarget{x: v.index, component: c},
		})
	}
	return []*feed.Feed{
		config(quota.Quotas, func() client.ObjectList { return &quotav1.ClusterResourceQuotaList{} }, nil),
		config(quota.Namespaces, func() client.ObjectList { return devices.PartialList(corev1.SchemeGroupVersion, "Namespace") }, nil),
		config(quota.Claims, v.claimList, v.claimOf),
		config(quota.Pods, func() client.ObjectList { return &corev1.PodList{} }, podOf),
	}
}

func (v *View) claimList() client.ObjectList {
	l, err := v.o.API.NewList("ResourceClaim")
	if err != nil {
		return &resourceapi.ResourceClaimList{} // not reached: tried by NewView
	}
	return l
}

func (v *View) claimOf(obj runtime.Object) (client.Object, error) {
	claim, err := v.o.API.Claim(obj)
	if err != nil {
		return nil, err
	}
	claim.ManagedFields = nil
	return claim, nil
}

// Start watches until ctx ends. It returns when all its goroutines ended.
func (v *View) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range v.feeds {
		wg.Go(func() { f.Run(ctx) })
	}
	wg.Go(func() { v.followInventory(ctx) })
	wg.Go(func() { v.seeds.run(ctx, v.index) })
	wg.Wait()
	return nil
}

// NeedLeaderElection is false: every replica admits.
func (v *View) NeedLeaderElection() bool { return false }

// followInventory recounts when the inventory changed.
func (v *View) followInventory(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.kick:
		}
		var took time.Duration
		if v.Filled() {
			took = v.index.setInventory(v.inventoryAt())
		} else {
			v.kickInventory() // what is still missing does not tell when it came
		}
		pause.Reset(v.pauseAfter(took))
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// recountShare is how many times as long as a recount the pause after it is: while a driver is
// rolled out over thousands of nodes, every slice changes the inventory for minutes.
const (
	recountShare = 4
	mostPause    = 5 * time.Second
)

// pauseAfter returns how long to wait after a recount that took so long.
func (v *View) pauseAfter(took time.Duration) time.Duration {
	return max(v.o.InventoryPause, min(recountShare*took, mostPause))
}

// kickInventory makes followInventory look.
func (v *View) kickInventory() {
	select {
	case v.kick <- struct{}{}:
	default:
	}
}

func (v *View) inventoryAt() inventoryAt {
	s := v.o.Source.Snapshot()
	at := inventoryAt{inventory: s.Inventory}
	at.version[quota.Slices], at.version[quota.Classes], at.version[quota.Nodes] = s.Contained.Slices, s.Contained.Classes, s.Contained.Nodes
	at.recorded[quota.Slices], at.recorded[quota.Classes], at.recorded[quota.Nodes] = s.Newest.Slices, s.Newest.Classes, s.Newest.Nodes
	return at
}

// Filled tells whether every resource was received once, also the devices.
func (v *View) Filled() bool {
	for _, f := range v.allFeeds() {
		if !f.Health().Synced {
			return false
		}
	}
	return true
}

// Synced tells whether the View may be asked: everything was received and charged once.
func (v *View) Synced() bool {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	return v.index.charger != nil
}

// Ready is a health check: nil once the View and its Store may be asked.
func (v *View) Ready(*http.Request) error {
	for _, f := range v.allFeeds() {
		if h := f.Health(); !h.Synced {
			if h.Err != nil {
				return fmt.Errorf("%s: not received yet: %w", f.Name(), h.Err)
			}
			return fmt.Errorf("%s: not received yet", f.Name())
		}
	}
	if v.o.Store != nil && !v.o.Store.Synced() {
		return errors.New("deviceledgers: not received yet")
	}
	if !v.Synced() {
		return errors.New("charges are being computed")
	}
	return nil
}

// Stale returns the watched resources of which nothing was heard for too long, in a fixed
// order, with the reason where one is known.
func (v *View) Stale() []Staleness {
	var out []Staleness
	now := v.o.Clock.Now()
	for _, f := range v.allFeeds() {
		h := f.Health()
		if h.Synced && now.Sub(h.Contact) > v.o.StaleAfter {
			out = append(out, Staleness{Resource: f.Name(), For: now.Sub(h.Contact), Err: h.Err})
		}
	}
	return out
}

// Staleness tells of a resource of which nothing was heard.
type Staleness struct {
	Resource string
	For      time.Duration
	Err      error
}

// Lag returns per watched resource how long ago the API server was last heard of it.
func (v *View) Lag() map[string]time.Duration {
	out := map[string]time.Duration{}
	now := v.o.Clock.Now()
	for _, f := range v.allFeeds() {
		if h := f.Health(); h.Synced {
			out[f.Name()] = now.Sub(h.Contact)
		}
	}
	return out
}

func (v *View) allFeeds() []*feed.Feed {
	all := append([]*feed.Feed(nil), v.feeds...)
	all = append(all, v.o.Source.Feeds()...)
	if v.o.Store != nil {
		all = append(all, v.o.Store.feed)
	}
	return all
}

// Subscribe calls f for every change until stop is called, while the View is locked: f must
// return at once and must not call the View.
func (v *View) Subscribe(f func(Change)) (stop func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id := v.nextID
	v.nextID++
	v.subscribers[id] = f
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.subscribers, id)
	}
}

func (v *View) changed(c Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.subscribers {
		f(c)
	}
}
