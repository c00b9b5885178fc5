package feed

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// log is a Target that writes down what it gets.
type log struct{ lines chan string }

func newLog() log { return log{make(chan string, 100)} }

func (l log) Set(o client.Object, version uint64) {
	l.lines <- fmt.Sprintf("set %s at %d", o.GetName(), version)
}
func (l log) Delete(o client.Object, version uint64) {
	l.lines <- fmt.Sprintf("delete %s at %d", o.GetName(), version)
}
func (l log) Replace(objs []client.Object, version uint64) {
	l.lines <- fmt.Sprintf("replace by %d at %d", len(objs), version)
}
func (l log) Bookmark(version uint64) { l.lines <- fmt.Sprintf("bookmark at %d", version) }

func (l log) want(t *testing.T, lines ...string) {
	t.Helper()
	for _, want := range lines {
		select {
		case got := <-l.lines:
			if got != want {
				t.Errorf("want %q, got %q", want, got)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%q did not come", want)
		}
	}
}

func node(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// source answers lists with one node, and watches with what is sent.
type source struct {
	client.WithWatch
	fail   func() error
	events chan *watch.FakeWatcher
}

func (s source) IsWatchListSemanticsUnSupported() bool { return true }

func (s source) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if err := s.fail(); err != nil {
		return err
	}
	if l, ok := list.(*corev1.NodeList); ok {
		l.Items = []corev1.Node{*node("a", "3")}
	}
	list.SetResourceVersion("5")
	return nil
}

func (s source) Watch(context.Context, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
	w := watch.NewFake()
	s.events <- w
	return w, nil
}

func TestTargetGetsEachChangeWithTheVersionOfTheContent(t *testing.T) {
	t.Parallel()
	l, s := newLog(), source{fail: func() error { return nil }, events: make(chan *watch.FakeWatcher, 10)}
	f := New(Config{Name: "nodes", Client: s, NewList: func() client.ObjectList { return &corev1.NodeList{} }, Target: l, Log: logr.Discard()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	l.want(t, "replace by 1 at 5")
	if !f.Health().Synced {
		t.Error("not synced after the first list")
	}
	w := <-s.events
	w.Add(node("b", "7"))
	w.Modify(node("a", "8"))
	w.Delete(node("b", "9"))
	w.Action(watch.Bookmark, node("", "12"))
	l.want(t, "set b at 7", "set a at 8", "delete b at 9", "bookmark at 12")
	cancel()
	<-done
}

func TestHealthTellsTheErrorUntilSomethingIsHeard(t *testing.T) {
	t.Parallel()
	calls := 0
	s := source{events: make(chan *watch.FakeWatcher, 10), fail: func() error {
		if calls++; calls == 1 {
			return errors.New("connection refused")
		}
		return nil
	}}
	c := testclock.NewFakeClock(time.Unix(100, 0))
	l := newLog()
	f := New(Config{Name: "nodes", Client: s, NewList: func() client.ObjectList { return &corev1.NodeList{} }, Target: l, Clock: c, Log: logr.Discard()})
	if _, err := cache.ToListerWatcherWithContext(f.listerWatcher()).ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Fatal("the list succeeded")
	}
	if h := f.Health(); h.Err == nil || h.Synced || !h.Contact.IsZero() {
		t.Errorf("after an error: %+v", h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	l.want(t, "replace by 1 at 5")
	<-s.events
	cancel()
	<-done
	if diff := cmp.Diff(Health{Synced: true, Contact: time.Unix(100, 0)}, f.Health()); diff != "" {
		t.Errorf("after a list (-want +got):\n%s", diff)
	}
}

func TestWhatCannotBeConvertedIsAnErrorAndKeepsTheTarget(t *testing.T) {
	t.Parallel()
	l := newLog()
	f := New(Config{Name: "nodes", Target: l, Convert: func(o runtime.Object) (client.Object, error) {
		if n, ok := o.(*corev1.Node); ok && n.Name != "bad" {
			return n, nil
		}
		return nil, errors.New("no conversion")
	}})
	for _, obj := range []any{node("bad", "1"), "no object", node("x", "not-a-number"), &corev1.NodeList{}} {
		if err := f.Store().Add(obj); err == nil {
			t.Errorf("%v is no error", obj)
		}
	}
	if err := f.Store().Replace([]any{node("good", "1"), node("bad", "2")}, "3"); err == nil {
		t.Error("a list with it is no error")
	}
	if f.Health().Synced {
		t.Error("synced by a list that was not taken")
	}
	if err := f.Store().Update(node("good", "4")); err != nil {
		t.Error(err)
	}
	l.want(t, "set good at 4")
}
