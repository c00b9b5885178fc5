package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// pprofAddress serves the manager's profiles when they are wanted.
const pprofAddress = "127.0.0.1:16060"

// session is the measurement of one size.
type session struct {
	o  options
	c  cluster
	cp *harness.ControlPlane
	r  result
	m  *harness.Manager
	w  *watched

	mu sync.Mutex // protects following
	// created counts claims beyond the first ones by project.
	created map[string]int64
	probes  int
}

// end stops the manager and keeps its log beside the profiles.
func (s *session) end() error {
	if s.m == nil {
		return nil
	}
	err := s.m.Stop()
	if s.o.profile != "" {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.o.profile, fmt.Sprintf("manager-%v.log", s.c)), []byte(s.m.Log()), 0o644))
	}
	return err
}

// create creates a claim and counts it.
func (s *session) create(ctx context.Context, namespace, name string) error {
	if err := s.cp.Client.Create(ctx, newClaim(namespace, name)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.created == nil {
		s.created = map[string]int64{}
	}
	s.created[namespace]++
	return nil
}

// totals returns how many claims each quota covers.
func (s *session) totals() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int64{}
	for i := range s.c.Projects {
		n := s.created[s.c.project(i)] + int64(s.c.Claims/s.c.Projects)
		if i < s.c.Claims%s.c.Projects {
			n++
		}
		for _, quota := range s.c.quotas(i) {
			out[quota] += n
		}
	}
	return out
}

// start starts the manager and waits until it is ready and admits a claim.
func (s *session) start(ctx context.Context, name string) (startup, error) {
	if _, err := harness.Binary(ctx); err != nil { // not to be measured
		return startup{}, err
	}
	begun := time.Now()
	args := []string{"--shutdown-delay=0s"}
	if s.o.profile != "" {
		args = append(args, "--pprof-bind-address="+pprofAddress, "--log-level=1")
	}
	var err error
	if s.m, err = s.cp.StartManager(ctx, harness.ManagerOptions{NotReady: true, Direct: true, Args: args}); err != nil {
		return startup{}, err
	}
	stopProfile := s.profileCPU(ctx, name)
	for range 5 { // each waits a minute
		if err = s.m.WaitReady(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return startup{}, err
	}
	x := startup{Ready: time.Since(begun)}
	if x.CPU, err = s.m.CPU(); err != nil {
		return startup{}, err
	}
	if x.Memory, x.MostMemory, err = s.m.Memory(); err != nil {
		return startup{}, err
	}
	// quotas that are older than their ledger are rebuilt first
	if err := waitFor(ctx, 5*time.Minute, func() error { return s.create(ctx, s.probeProject(), "start-"+name) }); err != nil {
		return startup{}, err
	}
	x.Admits = time.Since(begun)
	stopProfile()
	return x, s.profile(ctx, "heap", name+"-heap")
}

// profileCPU profiles the manager and the API server until stop is called.
func (s *session) profileCPU(ctx context.Context, name string) (stop func()) {
	if s.o.profile == "" {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() {
		// it serves some moments after its start
		_ = waitFor(ctx, time.Minute, func() error { return s.profile(ctx, "profile?seconds=10", name+"-cpu") })
	})
	wg.Go(func() { _ = s.profileServer(ctx, "profile", name) })
	wg.Go(func() { _ = s.profileServer(ctx, "allocs", name+"-allocs") })
	return func() {
		wg.Wait()
		cancel()
	}
}

// profileServer stores a profile of the API server, over ten seconds.
func (s *session) profileServer(ctx context.Context, what, name string) error {
	cl, url, err := s.apiServer("/debug/pprof/" + what + "?seconds=10")
	if err != nil {
		return err
	}
	return s.keepProfile(ctx, cl, url, name+"-apiserver")
}

// profile stores one profile of the manager.
func (s *session) profile(ctx context.Context, what, name string) error {
	if s.o.profile == "" {
		return nil
	}
	return s.keepProfile(ctx, http.DefaultClient, "http://"+pprofAddress+"/debug/pprof/"+what, name)
}

func (s *session) keepProfile(ctx context.Context, cl *http.Client, url, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := cl.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile %s: %s", name, data)
	}
	return os.WriteFile(filepath.Join(s.o.profile, fmt.Sprintf("%s-%v.prof", name, s.c)), data, 0o644)
}

// firstStart installs the webhooks and starts a manager that finds no ledger.
func (s *session) firstStart(ctx context.Context) error {
	var err error
	if s.w, err = follow(ctx, s.cp); err != nil {
		return err
	}
	if err := s.cp.InstallWebhooks(ctx); err != nil {
		return err
	}
	s.r.First, err = s.start(ctx, "first")
	return err
}

// settled waits until every project shows its quotas and every ledger is rebuilt.
func (s *session) settled(ctx context.Context) error {
	begun := time.Now()
	if err := s.w.waitEverywhere(ctx, s.c, s.totals()); err != nil {
		return err
	}
	s.r.FirstProjection = time.Since(begun)
	return waitFor(ctx, 2*time.Minute, func() error {
		var ledgers v1alpha1.DeviceLedgerList
		if err := s.cp.Client.List(ctx, &ledgers); err != nil {
			return err
		}
		for i := range ledgers.Items {
			if ledgers.Items[i].Status.Rebuilding {
				return fmt.Errorf("ledger %q is being rebuilt", ledgers.Items[i].Name)
			}
		}
		return nil
	})
}

// restart replaces the manager by one that finds its ledgers.
func (s *session) restart(ctx context.Context) error {
	if err := s.m.Stop(); err != nil {
		return err
	}
	var err error
	if s.r.Restart, err = s.start(ctx, "restart"); err != nil {
		return err
	}
	return s.w.waitEverywhere(ctx, s.c, s.totals())
}

// probeProject returns the next of the projects in which only single claims are created.
func (s *session) probeProject() string {
	first := s.loadProjects()
	s.probes++
	return s.c.project(first + s.probes%(s.c.Projects-first))
}

// loadProjects is how many projects, from the first, get load.
func (s *session) loadProjects() int { return s.c.Projects * 9 / 10 }

// probe creates one claim and returns how long it took from the answer until the project's
// own projections show it.
func (s *session) probe(ctx context.Context) (time.Duration, error) {
	project := s.probeProject()
	before := map[string]int64{}
	for i := range s.c.Projects {
		if s.c.project(i) == project {
			for _, quota := range s.c.quotas(i) {
				now, err := s.w.of(project, quota)
				if err != nil {
					return 0, err
				}
				before[quota] = now.own
			}
		}
	}
	if err := s.create(ctx, project, fmt.Sprintf("probe-%d", s.probes)); err != nil {
		return 0, err
	}
	begun := time.Now()
	err := s.w.waitOwn(ctx, project, before)
	return time.Since(begun), err
}

// probeAtRest measures when a single change is seen, in its project and everywhere.
func (s *session) probeAtRest(ctx context.Context) error {
	for range 10 {
		d, err := s.probe(ctx)
		if err != nil {
			return err
		}
		s.r.OwnAtRest = append(s.r.OwnAtRest, d)
	}
	if err := s.w.waitEverywhere(ctx, s.c, s.totals()); err != nil {
		return err
	}
	before := s.w.applied.Load()
	begun := time.Now()
	if _, err := s.probe(ctx); err != nil {
		return err
	}
	if err := s.w.waitEverywhere(ctx, s.c, s.totals()); err != nil {
		return err
	}
	s.r.EverywhereAtRest = time.Since(begun)
	s.r.WritesAtRest = s.w.applied.Load() - before
	return nil
}

// verify compares ledgers, quotas and their projects with what exists.
func (s *session) verify(ctx context.Context) error {
	var claims resourceapi.ResourceClaimList
	if err := s.cp.Client.List(ctx, &claims); err != nil {
		return err
	}
	byProject := map[string]int64{}
	for i := range claims.Items {
		byProject[claims.Items[i].Namespace]++
	}
	want := map[string]int64{}
	for i := range s.c.Projects {
		for _, quota := range s.c.quotas(i) {
			want[quota] += byProject[s.c.project(i)]
		}
	}
	for name, n := range want {
		if err := waitFor(ctx, time.Minute, func() error { return s.isTrue(ctx, name, n) }); err != nil {
			return err
		}
	}
	return nil
}

// isTrue compares the ledger and the quota of that name with the number of claims that exist.
func (s *session) isTrue(ctx context.Context, name string, claims int64) error {
	l, q := &v1alpha1.DeviceLedger{}, &quotav1.ClusterResourceQuota{}
	key := client.ObjectKey{Name: name}
	if err := errors.Join(s.cp.Client.Get(ctx, key, l), s.cp.Client.Get(ctx, key, q)); err != nil {
		return err
	}
	memory := claims * 80 << 30
	for k, n := range map[corev1.ResourceName]int64{claimsKey: claims, gpuKey: claims, memoryKey: memory} {
		var sum int64
		for i := range q.Status.Namespaces {
			used := q.Status.Namespaces[i].Status.Used[k]
			sum += used.Value()
		}
		used, total := l.Status.Used[k], q.Status.Total.Used[k]
		if used.Value() != n || total.Value() != n || sum != n {
			return fmt.Errorf("quota %q, %s: %d exist, the ledger says %s, the quota %s, its projects %d", name, k, n, used.String(), total.String(), sum)
		}
	}
	return nil
}

// answered tells whether an error is an answer of the API server's, not a lost connection.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
