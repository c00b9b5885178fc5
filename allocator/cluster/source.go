package cluster

import (
	"context"
	"maps"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/allocator/cluster/feed"
)

// SourceOptions configure a Source.
type SourceOptions struct {
	// Client reads the API server directly, without a cache.
	Client client.WithWatch
	API    *API
	// Builder bounds what asking the inventory may cost.
	Builder allocator.BuilderOptions
	// Clock is the real one when nil.
	Clock clock.PassiveClock
	Log   logr.Logger
}

// Versions are resourceVersions of the resources that an inventory is made of.
type Versions struct{ Slices, Classes, Nodes uint64 }

// Snapshot is an inventory with the versions it was made from.
type Snapshot struct {
	Inventory *allocator.Inventory
	// Contained: everything up to these versions is in the inventory.
	Contained Versions
	// Newest are the versions of the newest changes that the inventory contains, leaving out
	// those that do not matter to it, such as a node's heartbeats.
	Newest Versions
}

// Source keeps an allocator.Builder up to date with the cluster's slices, classes, nodes and
// device taint rules. Safe for concurrent use.
type Source struct {
	o     SourceOptions
	feeds []*feed.Feed

	mu                sync.Mutex // protects the following
	builder           *allocator.Builder
	contained, newest Versions
	nodes             map[string]map[string]string
	names             map[string]map[string]bool // kind -> names that the builder has
	onChange          []func()
}

// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceslices;deviceclasses;devicetaintrules,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// NewSource returns a source that is empty until it is started.
func NewSource(o SourceOptions) (*Source, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.Builder.CountersBesideDevices = o.Builder.CountersBesideDevices || o.API.CountersBesideDevices
	s := &Source{o: o, builder: allocator.NewBuilder(o.Builder), nodes: map[string]map[string]string{}, names: map[string]map[string]bool{}}
	slices, err := s.deviceFeed("slices", "ResourceSlice", o.API.Version, func(obj runtime.Object) (client.Object, error) { return asObject(o.API.Slice(obj)) }, target[*resourceapi.ResourceSlice]{
		s: s, kind: "slices", set: s.builder.SetSlice, remove: s.builder.DeleteSlice, at: func(v *Versions) *uint64 { return &v.Slices },
	})
	if err != nil {
		return nil, err
	}
	classes, err := s.deviceFeed("classes", "DeviceClass", o.API.Version, func(obj runtime.Object) (client.Object, error) { return asObject(o.API.Class(obj)) }, target[*resourceapi.DeviceClass]{
		s: s, kind: "classes", set: s.builder.SetClass, remove: s.builder.DeleteClass, at: func(v *Versions) *uint64 { return &v.Classes },
	})
	if err != nil {
		return nil, err
	}
	nodes := feed.New(feed.Config{
		Name: "nodes", Client: o.Client, Clock: o.Clock, Log: o.Log, Convert: nodeOf,
		// What devices a node reaches is decided by its name and labels: the rest, and most of
		// a node's weight, is not even received.
		NewList: func() client.ObjectList { return PartialList(corev1.SchemeGroupVersion, "Node") },
		Target:  target[*corev1.Node]{s: s, kind: "nodes", set: s.builder.SetNode, remove: s.builder.DeleteNode, at: func(v *Versions) *uint64 { return &v.Nodes }, same: s.sameNode},
	})
	s.feeds = []*feed.Feed{slices, classes, nodes}
	if o.API.TaintRules == "" {
		return s, nil
	}
	rules, err := s.deviceFeed("devicetaintrules", "DeviceTaintRule", o.API.TaintRules, func(obj runtime.Object) (client.Object, error) { return asObject(o.API.TaintRule(obj)) }, target[*resourceapi.DeviceTaintRule]{
		s: s, kind: "devicetaintrules", set: s.builder.SetTaintRule, remove: s.builder.DeleteTaintRule,
		// Taints decide what is allocated, never what is charged: no version of the ledger's.
		at: func(*Versions) *uint64 { return new(uint64) },
	})
	if err != nil {
		return nil, err
	}
	s.feeds = append(s.feeds, rules)
	return s, nil
}

func (s *Source) deviceFeed(name, kind, version string, convert func(runtime.Object) (client.Object, error), t feed.Target) (*feed.Feed, error) {
	gvk := resourceapi.SchemeGroupVersion.WithKind(kind + "List")
	gvk.Version = version
	if _, err := s.o.API.list(gvk); err != nil {
		return nil, err
	}
	return feed.New(feed.Config{
		Name: name, Client: s.o.Client, Clock: s.o.Clock, Log: s.o.Log, Convert: convert, Target: t,
		NewList: func() client.ObjectList {
			l, err := s.o.API.list(gvk)
			if err != nil {
				return nil // not reached: tried above
			}
			return l
		},
	}), nil
}

// Start feeds the inventory until ctx ends.
func (s *Source) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range s.feeds {
		wg.Go(func() { f.Run(ctx) })
	}
	wg.Wait()
	return nil
}

// NeedLeaderElection is false: every replica charges.
func (s *Source) NeedLeaderElection() bool { return false }

// Feeds returns the feeds, for their health.
func (s *Source) Feeds() []*feed.Feed { return s.feeds }

// Synced tells whether everything was received once.
func (s *Source) Synced() bool {
	for _, f := range s.feeds {
		if !f.Health().Synced {
			return false
		}
	}
	return true
}

// Subscribe calls f after every change, from then on. f must return at once.
func (s *Source) Subscribe(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = append(s.onChange, f)
}

// Snapshot returns the present inventory.
func (s *Source) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Snapshot{Inventory: s.builder.Snapshot(), Contained: s.contained, Newest: s.newest}
}

// notify tells the subscribers, without the lock.
func (s *Source) notify() {
	s.mu.Lock()
	subscribers := s.onChange
	s.mu.Unlock()
	for _, f := range subscribers {
		f()
	}
}

// sameNode tells whether nothing changed that the inventory reads, and remembers the labels.
func (s *Source) sameNode(node *corev1.Node) bool {
	labels, known := s.nodes[node.Name]
	s.nodes[node.Name] = node.Labels
	return known && maps.Equal(labels, node.Labels)
}

// target feeds one kind into the source's builder.
type target[T client.Object] struct {
	s      *Source
	kind   string
	set    func(T)
	remove func(string)
	at     func(*Versions) *uint64
	// same tells that the object changed in nothing that matters; nil: every change matters.
	same func(T) bool
}

func (t target[T]) Set(obj client.Object, version uint64) {
	t.s.mu.Lock()
	t.setLocked(obj, version)
	t.containLocked(version)
	t.s.mu.Unlock()
	t.s.notify()
}

func (t target[T]) setLocked(obj client.Object, version uint64) {
	typed, ok := obj.(T)
	if !ok {
		return
	}
	if t.same != nil && t.same(typed) {
		return
	}
	names := t.s.names[t.kind]
	if names == nil {
		names = map[string]bool{}
		t.s.names[t.kind] = names
	}
	names[obj.GetName()] = true
	t.set(typed)
	newest := t.at(&t.s.newest)
	*newest = max(*newest, version)
}

func (t target[T]) Delete(obj client.Object, version uint64) {
	t.s.mu.Lock()
	t.removeLocked(obj.GetName())
	newest := t.at(&t.s.newest)
	*newest = max(*newest, version)
	t.containLocked(version)
	t.s.mu.Unlock()
	t.s.notify()
}

func (t target[T]) removeLocked(name string) {
	delete(t.s.names[t.kind], name)
	if t.kind == "nodes" {
		delete(t.s.nodes, name)
	}
	t.remove(name)
}

func (t target[T]) Replace(objs []client.Object, version uint64) {
	t.s.mu.Lock()
	listed := make(map[string]bool, len(objs))
	for _, obj := range objs {
		listed[obj.GetName()] = true
		if v, err := parseVersion(obj); err == nil {
			t.setLocked(obj, v)
		}
	}
	for _, name := range sorted(t.s.names[t.kind]) {
		if !listed[name] {
			t.removeLocked(name)
		}
	}
	t.containLocked(version)
	t.s.mu.Unlock()
	t.s.notify()
}

func (t target[T]) Bookmark(version uint64) {
	t.s.mu.Lock()
	t.containLocked(version)
	t.s.mu.Unlock()
	t.s.notify()
}

func (t target[T]) containLocked(version uint64) {
	contained := t.at(&t.s.contained)
	*contained = max(*contained, version)
}

// nodeOf makes a node of its metadata.
func nodeOf(obj runtime.Object) (client.Object, error) {
	if node, ok := obj.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: strip(node.ObjectMeta)}, nil
	}
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, errNoObject(obj)
	}
	return &corev1.Node{ObjectMeta: strip(m.ObjectMeta)}, nil
}

// strip keeps what node selectors can read.
func strip(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels, CreationTimestamp: m.CreationTimestamp}
}
