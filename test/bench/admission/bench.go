package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// key is limited, far above what is created, by native quota and by ours alike.
const key = corev1.ResourceName("gpu.nvidia.com.deviceclass.resource.k8s.io/devices")

// limit is far above what is created.
var limit = resource.MustParse("1000000")

// load is one column of the benchmark.
type load struct {
	clients, namespaces, creates int
	// accounts spreads the clients over ServiceAccounts, which priority and fairness queues;
	// otherwise all are one cluster admin, which it exempts.
	accounts bool
}

func (l load) String() string {
	who := "clients"
	if l.accounts {
		who = "ServiceAccounts"
	}
	return fmt.Sprintf("%d %s, %d namespaces", l.clients, who, l.namespaces)
}

var loads = []load{
	{clients: 1, namespaces: 1, creates: 150},
	{clients: 20, namespaces: 1, creates: 900},
	{clients: 200, namespaces: 1, creates: 1400},
	{clients: 20, namespaces: 20, creates: 900},
	{clients: 200, namespaces: 20, creates: 1400},
	{clients: 800, namespaces: 20, creates: 1600, accounts: true},
}

// The subjects that others are compared with.
const (
	doNothingName = "do-nothing webhook"
	nativeName    = "native ResourceQuota"
)

// subject is one row: what stands between a create and the store.
type subject struct {
	name     string
	replicas int
	begin    func(ctx context.Context, namespaces []string) error
	end      func(ctx context.Context) error
}

// sample is one round of one cell.
type sample struct {
	perSecond    float64
	p50, p99     time.Duration
	cpu          time.Duration // of the webhook, per create
	server       time.Duration // of API server and etcd, per create
	puts         float64       // ledger writes per create
	webhook      bool          // cpu means something
	ledger       bool          // puts mean something
	failed       int64
	firstFailure error
}

type bench struct {
	cp       *harness.ControlPlane
	o        options
	only     *regexp.Regexp
	run      int
	managers []*harness.Manager
	// pprof has the addresses of the managers' profiles.
	pprof   []string
	nothing *nothingProcess
	puts    atomic.Int64
}

func newBench(ctx context.Context, cp *harness.ControlPlane, o options) (*bench, error) {
	b := &bench{cp: cp, o: o}
	var err error
	if b.only, err = regexp.Compile(o.only); err != nil {
		return nil, err
	}
	edit := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"create"}}}}
	bind := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts"}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "bench"}}
	return b, errors.Join(cp.Client.Create(ctx, edit), cp.Client.Create(ctx, bind), b.countPuts(ctx))
}

// countPuts counts writes of ledgers from now on.
func (b *bench) countPuts(ctx context.Context) error {
	c, err := client.NewWithWatch(b.cp.Config, client.Options{Scheme: b.cp.Client.Scheme()})
	if err != nil {
		return err
	}
	w, err := c.Watch(ctx, &v1alpha1.DeviceLedgerList{})
	if err != nil {
		return err
	}
	go func() {
		for range w.ResultChan() {
			b.puts.Add(1)
		}
	}()
	return nil
}

func (b *bench) subjects() []subject {
	none := func(context.Context) error { return nil }
	return []subject{
		{name: "no quota", begin: func(context.Context, []string) error { return nil }, end: none},
		{name: doNothingName, begin: func(ctx context.Context, ns []string) error { return b.nothing.install(ctx, b.cp.Client, ns[0]) },
			end: func(ctx context.Context) error { return b.nothing.uninstall(ctx, b.cp.Client) }},
		{name: nativeName, begin: b.nativeQuotas, end: none},
		{name: "devicequota, 1 replica", replicas: 1, begin: b.ourQuota, end: b.cp.UninstallWebhooks},
		{name: "devicequota, 1 replica, nothing shaped", replicas: 1, begin: b.ourQuotaAlone, end: b.cp.UninstallWebhooks},
		{name: "devicequota, 3 replicas", replicas: 3, begin: b.ourQuota, end: b.cp.UninstallWebhooks},
		{name: "devicequota, 3 replicas, nothing shaped", replicas: 3, begin: b.ourQuotaAlone, end: b.cp.UninstallWebhooks},
	}
}

// start starts what the subject needs and stops the rest.
func (b *bench) start(ctx context.Context, s subject) (err error) {
	if err := b.replicas(ctx, s.replicas); err != nil {
		return err
	}
	switch wanted := s.name == doNothingName; {
	case wanted && b.nothing == nil:
		b.nothing, err = startNothing(b.cp)
	case !wanted && b.nothing != nil:
		err = b.nothing.stop()
		b.nothing = nil
	}
	return err
}

// replicas starts or stops managers until there are n.
func (b *bench) replicas(ctx context.Context, n int) error {
	for len(b.managers) > n {
		m := b.managers[len(b.managers)-1]
		b.managers, b.pprof = b.managers[:len(b.managers)-1], b.pprof[:len(b.pprof)-1]
		if err := m.Stop(); err != nil {
			return err
		}
	}
	for len(b.managers) < n {
		args, address := []string{"--shutdown-delay=0s"}, ""
		if b.o.profiles != "" {
			address = fmt.Sprintf("127.0.0.1:%d", firstProfilePort+len(b.managers))
			args = append(args, "--pprof-bind-address="+address)
		}
		m, err := b.cp.StartManager(ctx, harness.ManagerOptions{Args: args})
		if err != nil {
			return err
		}
		b.managers, b.pprof = append(b.managers, m), append(b.pprof, address)
	}
	return nil
}

// measure measures all cells. Rounds are interleaved: a slow minute of the machine meets all. There
// are as many as asked for and as the time limit allows, but one.
func (b *bench) measure(ctx context.Context) (string, error) {
	samples := map[load]map[string][]sample{}
	for _, l := range loads {
		samples[l] = map[string][]sample{}
	}
	begun := time.Now()
	for round := range b.o.rounds {
		if took := time.Since(begun); round > 0 && took+took/time.Duration(round) > b.o.limit {
			break // the next one would end too late
		}
		for _, s := range b.subjects() {
			if err := b.start(ctx, s); err != nil {
				return "", err
			}
			for _, l := range loads {
				if !b.only.MatchString(s.name + ", " + l.String()) {
					continue
				}
				x, err := b.cell(ctx, s, l)
				if err != nil {
					return "", fmt.Errorf("%s, %s: %w", s.name, l, err)
				}
				samples[l][s.name] = append(samples[l][s.name], x)
				fmt.Fprintf(os.Stderr, "round %d: %-24s %-34s %6.0f creates/s  p50 %v  p99 %v  cpu %v + %v  puts %.3f  failed %d\n", round+1, s.name, l, x.perSecond,
					x.p50.Round(100*time.Microsecond), x.p99.Round(100*time.Microsecond), x.cpu.Round(10*time.Microsecond), x.server.Round(10*time.Microsecond), x.puts, x.failed)
				if x.firstFailure != nil {
					fmt.Fprintf(os.Stderr, "         first failure: %v\n", x.firstFailure)
				}
			}
		}
	}
	if err := b.start(ctx, subject{}); err != nil || b.o.only != "" {
		return "", err
	}
	return b.table(samples), nil
}

// cell measures one subject under one load once, in namespaces of its own.
func (b *bench) cell(ctx context.Context, s subject, l load) (sample, error) {
	b.run++
	namespaces := make([]string, l.namespaces)
	for i := range namespaces {
		namespaces[i] = fmt.Sprintf("run-%d-%d", b.run, i)
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaces[i], Labels: map[string]string{"run": namespaces[0]}}}
		if err := b.cp.Client.Create(ctx, ns); err != nil {
			return sample{}, err
		}
	}
	if err := s.begin(ctx, namespaces); err != nil {
		return sample{}, err
	}
	defer func() { _ = s.end(ctx) }() // the next begin would fail
	clients, err := b.clients(l)
	if err != nil {
		return sample{}, err
	}
	if err := b.create(ctx, clients, namespaces, "warm", len(clients), nil); err != nil {
		return sample{}, fmt.Errorf("warm up: %w", err)
	}
	stop, err := b.profile(ctx, s.name+", "+l.String())
	if err != nil {
		return sample{}, err
	}
	cpu, server, puts := b.cpu(), b.serverCPU(), b.puts.Load()
	x := sample{}
	n := int(float64(l.creates) * b.o.scale)
	latencies := make([]time.Duration, n)
	begun := time.Now()
	var failed atomic.Int64
	x.firstFailure = b.create(ctx, clients, namespaces, "c", n, func(i int, d time.Duration, err error) {
		latencies[i] = d
		if err != nil {
			failed.Add(1)
		}
	})
	x.perSecond = float64(n) / time.Since(begun).Seconds()
	x.failed = failed.Load()
	slices.Sort(latencies)
	x.p50, x.p99 = latencies[n/2], latencies[n*99/100]
	x.cpu = (b.cpu() - cpu) / time.Duration(n)
	x.server = (b.serverCPU() - server) / time.Duration(n)
	x.puts = float64(b.puts.Load()-puts) / float64(n)
	x.ledger = s.replicas > 0
	x.webhook = x.ledger || b.nothing != nil
	return x, stop()
}

// clients returns a client per simulated client.
func (b *bench) clients(l load) ([]client.Client, error) {
	out := make([]client.Client, l.clients)
	for i := range out {
		if !l.accounts {
			out[i] = b.cp.Client
			continue
		}
		cfg := rest.CopyConfig(b.cp.Config)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: fmt.Sprintf("system:serviceaccount:bench:client-%d", i),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:bench", "system:authenticated"}}
		c, err := client.New(cfg, client.Options{Scheme: b.cp.Client.Scheme(), Mapper: b.cp.Client.RESTMapper()})
		if err != nil {
			return nil, err
		}
		out[i] = c
	}
	return out, nil
}

// create makes n claims, spread over clients and namespaces, and returns the first failure.
func (b *bench) create(ctx context.Context, clients []client.Client, namespaces []string, prefix string, n int, done func(int, time.Duration, error)) error {
	var next atomic.Int64
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				begun := time.Now()
				err := c.Create(ctx, claim(namespaces[i%len(namespaces)], fmt.Sprintf("%s-%d", prefix, i)))
				if err != nil {
					once.Do(func() { first = err })
				}
				if done != nil {
					done(i, time.Since(begun), err)
				}
			}
		})
	}
	wg.Wait()
	return first
}

// cpu is what the webhook's processes have used.
func (b *bench) cpu() time.Duration {
	var sum time.Duration
	for _, m := range b.managers {
		if d, err := m.CPU(); err == nil {
			sum += d
		}
	}
	if b.nothing != nil {
		sum += b.nothing.cpu()
	}
	return sum
}

// serverCPU is what the API server and etcd have used.
func (b *bench) serverCPU() time.Duration {
	var sum time.Duration
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if d, err := b.cp.CPU(name); err == nil {
			sum += d
		}
	}
	return sum
}

func claim(namespace, name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}}}}
}
