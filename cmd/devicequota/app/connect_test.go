package app

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/devicequota/devicequota/quota/cluster"
)

// apiServer is of a Kubernetes version, serves one version of resource.k8s.io, and tells about its APIServices only when
// that is allowed.
type apiServer struct {
	served, kubernetes atomic.Pointer[string]
	allowed            atomic.Bool
}

func newAPIServer(t *testing.T, served string) (*apiServer, *instance) {
	t.Helper()
	a := &apiServer{}
	a.served.Store(&served)
	kubernetes := "v1.37.2"
	a.kubernetes.Store(&kubernetes)
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	o := DefaultOptions()
	return a, &instance{o: &o, config: &rest.Config{Host: s.URL}, ready: newReadiness(logr.Discard())}
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // a client that went away
	}
	refuse := func(code int32, reason metav1.StatusReason) {
		answer(int(code), metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: code, Reason: reason, Message: r.URL.Path + ": " + string(reason), Details: &metav1.StatusDetails{Name: path.Base(r.URL.Path)}})
	}
	resources := func(groupVersion string, names ...string) {
		l := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: groupVersion}
		for _, name := range names {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: name, Kind: "APIService"})
		}
		answer(http.StatusOK, l)
	}
	switch requested := r.URL.Path; {
	case requested == "/apis/resource.k8s.io/"+*a.served.Load():
		resources("resource.k8s.io/"+*a.served.Load(), "resourceclaims")
	case requested == "/version":
		answer(http.StatusOK, version.Info{GitVersion: *a.kubernetes.Load()})
	case requested == "/apis":
		v1 := metav1.GroupVersionForDiscovery{GroupVersion: "apiregistration.k8s.io/v1", Version: "v1"}
		answer(http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{
			{Name: "apiregistration.k8s.io", Versions: []metav1.GroupVersionForDiscovery{v1}, PreferredVersion: v1}}})
	case requested == "/apis/apiregistration.k8s.io/v1":
		resources("apiregistration.k8s.io/v1", "apiservices")
	case strings.HasPrefix(requested, "/apis/apiregistration.k8s.io/v1/apiservices/") && !a.allowed.Load():
		refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
	default:
		refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// notReady waits until readiness fails for a reason that contains the text.
func notReady(t *testing.T, i *instance, text string) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		last = i.ready.current()[clusterCheck](nil)
		return last != nil && strings.Contains(last.Error(), text), nil
	})
	if err != nil {
		t.Fatalf("not ready for %q: want %q", last, text)
	}
}

type connection struct {
	known bool
	err   error
}

func connect(ctx context.Context, i *instance) chan connection {
	done := make(chan connection, 1)
	go func() {
		known, err := i.connect(ctx)
		done <- connection{known, err}
	}()
	return done
}

func TestAPlatformThatCannotBeReadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	server, i := newAPIServer(t, "v1beta2")
	done := connect(t.Context(), i)
	notReady(t, i, `platform: read of APIService "v1.quota.openshift.io"`)
	if len(done) > 0 {
		t.Fatalf("gave up: %v", <-done)
	}
	server.allowed.Store(true)
	if got := <-done; !got.known || got.err != nil {
		t.Fatalf("got %v", got)
	}
	if i.platform != cluster.Kubernetes || i.api.Version != "v1beta2" {
		t.Errorf("platform %q, version %q", i.platform, i.api.Version)
	}
}

func TestAServerWithoutDeviceAllocationIsWaitedFor(t *testing.T) {
	t.Parallel()
	server, i := newAPIServer(t, "v0")
	i.o.Platform = PlatformOpenShift
	i.o.ResourceAPIVersion = "v1beta1"
	ctx, cancel := context.WithCancel(t.Context())
	done := connect(ctx, i)
	notReady(t, i, "serves none of resource.k8s.io/v1, v1beta2 and v1beta1")
	v1 := "v1"
	server.served.Store(&v1)
	notReady(t, i, "does not serve resource.k8s.io/v1beta1: it serves v1")
	cancel()
	if got := <-done; got.known || got.err != nil {
		t.Errorf("asked to end: %v", got)
	}
}

func TestTheManagerEndsWhenItsVersionIsServedNoMore(t *testing.T) {
	t.Parallel()
	server, i := newAPIServer(t, "v1beta1")
	server.allowed.Store(true)
	if got := <-connect(t.Context(), i); !got.known {
		t.Fatal(got.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.upgraded(ctx, time.Millisecond) }()
	v1 := "v1"
	server.served.Store(&v1)
	const want = "resource.k8s.io/v1beta1 is served no more, v1 is: the manager has to start again"
	if err := <-done; err == nil || err.Error() != want {
		t.Errorf("want %q, got %v", want, err)
	}
	cancel()
	if err := i.upgraded(ctx, time.Millisecond); err != nil {
		t.Errorf("asked to end: %v", err)
	}
}

func TestTheManagerEndsWhenThePlatformBeginsToEnforceItsKeys(t *testing.T) {
	t.Parallel()
	server, i := newAPIServer(t, "v1beta2")
	i.o.Platform = PlatformOpenShift
	before, after := "v1.33.6", "v1.34.2"
	server.kubernetes.Store(&before)
	if got := <-connect(t.Context(), i); !got.known || i.platformKeys {
		t.Fatalf("known %v, %v; platform keys %v", got.known, got.err, i.platformKeys)
	}
	if change, err := i.changed(t.Context()); change != "" || err != nil {
		t.Errorf("nothing has changed: %q, %v", change, err)
	}
	server.kubernetes.Store(&after)
	if change, err := i.changed(t.Context()); change != "the platform enforces Kubernetes' own keys now" || err != nil {
		t.Errorf("got %q, %v", change, err)
	}
	i.platformKeys = true
	server.kubernetes.Store(&before) // another replica of the API server, which is upgraded later
	if change, err := i.changed(t.Context()); change != "" || err != nil {
		t.Errorf("not back: %q, %v", change, err)
	}
}
