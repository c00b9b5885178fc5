// Package cluster tests quota/cluster and allocator/cluster against a real API server, without
// webhooks: what is created here nobody asks.
package cluster

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/devicequota/devicequota/allocator"
	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/test/harness"
)

var cp *harness.ControlPlane

func TestMain(m *testing.M) { harness.Exit(run(m)) }

func run(m *testing.M) (code int, err error) {
	ctrllog.SetLogger(logr.Discard())
	if cp, err = harness.Start(harness.Options{OldVersions: true, Flags: map[string]string{
		"feature-gates": "DRADeviceTaintRules=true", "enable-garbage-collector": "true",
	}}); err != nil {
		return 1, err
	}
	defer func() {
		if e := cp.Stop(); e != nil {
			code, err = 1, e
		}
	}()
	_, err = envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join(harness.Root(), "config", "crd", "bases")}, ErrorIfPathMissing: true,
	})
	if err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// replica is what one manager runs, without its webhooks.
type replica struct {
	t          *testing.T
	client     client.WithWatch
	api        *devices.API
	source     *devices.Source
	store      *cluster.Store
	view       *cluster.View
	ledger     *ledger.Ledger
	projection *cluster.Projection
	usage      *cluster.Usage
	calls      *calls
}

// newReplica runs a replica until the test ends; the version of resource.k8s.io is the
// preferred one if empty. Ledger options are the defaults unless given.
func newReplica(t *testing.T, version string, platform cluster.Platform, options ...ledger.Options) *replica {
	t.Helper()
	r := &replica{t: t, calls: &calls{}}
	base, err := client.NewWithWatch(cp.Config, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	r.client = interceptor.NewClient(base, r.calls.funcs())
	d, err := discovery.NewDiscoveryClientForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	if r.api, err = devices.DiscoverAPI(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if version != "" {
		if r.api, err = devices.NewAPI(version, r.api.TaintRules); err != nil {
			t.Fatal(err)
		}
	}
	log := logr.Discard()
	if r.source, err = devices.NewSource(devices.SourceOptions{Client: r.client, API: r.api, Log: log}); err != nil {
		t.Fatal(err)
	}
	r.store = cluster.NewStore(cluster.StoreOptions{Client: r.client, Log: log})
	r.view, err = cluster.NewView(cluster.Options{Client: r.client, API: r.api, Source: r.source, Store: r.store, Exempt: []string{"kube-system"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	o := ledger.Options{}
	if len(options) > 0 {
		o = options[0]
	}
	r.ledger = ledger.New(r.store, r.view, o)
	r.projection = cluster.NewProjection(cluster.ProjectionOptions{Client: r.client, View: r.view, Platform: platform, Log: log})
	r.usage = cluster.NewUsage(cluster.UsageOptions{View: r.view, Store: r.store, Ledger: r.ledger, Projection: r.projection, Log: log})
	for _, start := range []func(context.Context) error{r.source.Start, r.store.Start, r.view.Start} {
		r.run(start)
	}
	r.eventually("replica is ready", func() error { return r.view.Ready(nil) })
	return r
}

// lead runs the leader's reconcilers.
func (r *replica) lead() *replica {
	r.run(r.projection.Start)
	r.run(r.usage.Start)
	return r
}

func (r *replica) allocate() {
	r.t.Helper()
	a, err := devices.NewAllocation(devices.AllocationOptions{Client: r.client, API: r.api, Source: r.source, Allocator: allocator.Options{Features: allocator.DefaultFeatures()}, Log: logr.Discard()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(a.Start)
}

// run runs until the test ends, which waits for it to return.
func (r *replica) run(start func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- start(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// eventually polls until what returns nil.
func (r *replica) eventually(name string, what func() error) {
	r.t.Helper()
	harness.Eventually(r.t, name, func(context.Context) error { return what() })
}
