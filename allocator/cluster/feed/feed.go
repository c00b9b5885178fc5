// Package feed keeps a target up to date with one resource of the API server.
//
// It is a client-go Reflector with a store of our own, because the ledger needs what an
// informer does not give: a version that is never ahead of the content. The target gets
// each change together with the version that the content then has, and applies both under
// its own lock.
package feed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Target receives the changes of one resource, one at a time. The version of a call is the
// version of everything received until then, the call included.
type Target interface {
	// Set adds or replaces the object.
	Set(obj client.Object, version uint64)
	// Delete removes the object; obj is its last state.
	Delete(obj client.Object, version uint64)
	// Replace replaces everything.
	Replace(objs []client.Object, version uint64)
	// Bookmark tells that nothing changed up to version.
	Bookmark(version uint64)
}

// Config is what a Feed watches and whom it tells.
type Config struct {
	// Name of the resource in messages, as quota.Component names it.
	Name   string
	Client client.WithWatch
	// NewList returns an empty list of the watched type.
	NewList func() client.ObjectList
	// Convert turns a received object into the one that the target gets; nil is identity.
	// It owns the object. An error is reported by Health and counts as an object that
	// changed to nothing known: the target keeps what it had.
	Convert func(runtime.Object) (client.Object, error)
	Target  Target
	Clock   clock.PassiveClock
	Log     logr.Logger
}

// Health tells how a feed is doing.
type Health struct {
	// Synced is true once the whole content was received.
	Synced bool
	// Contact is when the API server was last heard of this resource; zero when never.
	Contact time.Time
	// Err is the last error if nothing was received since.
	Err error
}

// Feed watches one resource. Safe for concurrent use.
type Feed struct {
	c Config

	mu     sync.Mutex // protects the following
	health Health
}

// New returns a feed that does nothing until it runs.
func New(c Config) *Feed {
	if c.Convert == nil {
		c.Convert = identity
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Feed{c: c}
}

// Name returns the name of the resource.
func (f *Feed) Name() string { return f.c.Name }

// Health returns the feed's state.
func (f *Feed) Health() Health {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.health
}

// Run lists and watches until ctx ends. It returns when all its goroutines ended.
func (f *Feed) Run(ctx context.Context) {
	logger := f.c.Log.WithValues("resource", f.c.Name)
	r := cache.NewReflectorWithOptions(f.listerWatcher(), nil, f.Store(), cache.ReflectorOptions{
		Logger: &logger, Name: f.c.Name, TypeDescription: f.c.Name,
		// Default would wait up to a minute after an outage; nothing settles meanwhile.
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 5 * time.Second, Steps: 8, Factor: 2, Jitter: 0.5},
	})
	r.RunWithContext(logr.NewContext(ctx, logger))
}

// Store is what the feed's reflector writes to.
type Store interface {
	cache.ReflectorStore
	cache.ReflectorBookmarkStore
}

// Store returns what Run's reflector writes to, for whoever has changes from elsewhere.
func (f *Feed) Store() Store { return &store{f: f} }

func (f *Feed) listerWatcher() cache.ListerWatcher {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := f.c.NewList()
			err := f.c.Client.List(ctx, list, &client.ListOptions{Raw: &o})
			f.failed(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := f.c.Client.Watch(ctx, f.c.NewList(), &client.ListOptions{Raw: &o})
			f.failed(err)
			return w, err
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, f.c.Client)
}

// failed remembers the error of a call, also nil.
func (f *Feed) failed(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.health.Err = err
}

func (f *Feed) contact(synced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.health.Contact = f.c.Clock.Now()
	f.health.Synced = f.health.Synced || synced
	f.health.Err = nil
}

// store is what the reflector writes to.
type store struct{ f *Feed }

var _ Store = (*store)(nil)

func (s *store) Add(obj any) error {
	o, version, err := s.object(obj)
	if err != nil {
		return err
	}
	s.f.c.Target.Set(o, version)
	s.f.contact(false)
	return nil
}

func (s *store) Update(obj any) error { return s.Add(obj) }

func (s *store) Delete(obj any) error {
	o, version, err := s.object(obj)
	if err != nil {
		return err
	}
	s.f.c.Target.Delete(o, version)
	s.f.contact(false)
	return nil
}

func (s *store) Replace(objs []any, resourceVersion string) error {
	version, err := parse(resourceVersion)
	if err != nil {
		return err
	}
	converted := make([]client.Object, 0, len(objs))
	for _, obj := range objs {
		o, _, err := s.object(obj)
		if err != nil {
			return err
		}
		converted = append(converted, o)
	}
	s.f.c.Target.Replace(converted, version)
	s.f.contact(true)
	return nil
}

func (s *store) Bookmark(resourceVersion string) error {
	version, err := parse(resourceVersion)
	if err != nil {
		return err
	}
	s.f.c.Target.Bookmark(version)
	s.f.contact(false)
	return nil
}

func (s *store) Resync() error { return nil }

func (s *store) object(obj any) (client.Object, uint64, error) {
	ro, ok := obj.(runtime.Object)
	if !ok {
		return nil, 0, fmt.Errorf("%s: received a %T", s.f.c.Name, obj)
	}
	o, err := s.f.c.Convert(ro)
	if err != nil {
		err = fmt.Errorf("%s: %w", s.f.c.Name, err)
		s.f.failed(err)
		return nil, 0, err
	}
	version, err := parse(o.GetResourceVersion())
	return o, version, err
}

func identity(o runtime.Object) (client.Object, error) {
	c, ok := o.(client.Object)
	if !ok {
		return nil, fmt.Errorf("received a %T", o)
	}
	c.SetManagedFields(nil)
	return c, nil
}

// parse returns a resourceVersion as a number. A store without numbers, which the API
// server has not, could not be ordered.
func parse(resourceVersion string) (uint64, error) {
	v, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is not a number", resourceVersion)
	}
	return v, nil
}
