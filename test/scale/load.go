package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// rate is how many claims are created per second.
const rate = 50

// claimsWebhook is the webhook that admits claims.
const claimsWebhook = "resourceclaims.validate.devicequota.io"

// steady creates claims at the rate for a time, whatever the answers take, and returns how
// long each took from the moment at which it was due. beside is called at the same time with the
// number of the project; it may be nil.
func (s *session) steady(ctx context.Context, prefix string, d time.Duration, beside func(project int)) (latencies, error) {
	n := int(d.Seconds() * rate)
	took := make([]time.Duration, n)
	errs := make([]error, n)
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		due := begun.Add(time.Duration(i) * time.Second / rate)
		select {
		case <-ctx.Done():
			wg.Wait()
			return latencies{}, ctx.Err()
		case <-time.After(time.Until(due)):
		}
		project := i % s.loadProjects()
		if beside != nil {
			wg.Go(func() { beside(project) })
		}
		wg.Go(func() {
			errs[i] = s.create(ctx, s.c.project(project), fmt.Sprintf("%s-%d", prefix, i))
			took[i] = time.Since(due)
		})
	}
	wg.Wait()
	out := latencies{Creates: n}
	for _, err := range errs {
		if err != nil {
			out.Failed++
			out.FirstFailure = err.Error()
		}
	}
	slices.Sort(took)
	out.P50, out.P99, out.Max = took[n/2], took[n*99/100], took[n-1]
	return out, nil
}

// baseline creates claims while there is no webhook.
func (s *session) baseline(ctx context.Context) error {
	var err error
	s.r.Without, err = s.steady(ctx, "base", s.o.load/2, nil)
	return err
}

// underLoad creates claims beside the manager, and single ones in other projects.
func (s *session) underLoad(ctx context.Context) error {
	if _, err := s.steady(ctx, "warm", 5*time.Second, nil); err != nil {
		return err
	}
	if err := s.w.waitEverywhere(ctx, s.c, s.totals()); err != nil {
		return err
	}
	cpu, err := s.m.CPU()
	if err != nil {
		return err
	}
	calls, within, err := s.webhookCalls(ctx)
	if err != nil {
		return err
	}
	applied, statuses, ledgers := s.w.applied.Load(), s.w.statuses.Load(), s.w.ledgers.Load()
	stopProfile := s.profileCPU(ctx, "load")

	probing, stop := context.WithCancel(ctx)
	defer stop()
	probed := make(chan error, 1)
	go func() { probed <- s.probeEverySecond(probing) }()
	if s.r.With, err = s.steady(ctx, "load", s.o.load, nil); err != nil {
		return err
	}
	x := &s.r.Load
	x.Applied = s.w.applied.Load() - applied
	x.Statuses, x.Ledgers = s.w.statuses.Load()-statuses, s.w.ledgers.Load()-ledgers
	stop()
	if err := <-probed; err != nil && ctx.Err() == nil && probing.Err() == nil {
		return err
	}
	ended := time.Now()
	stopProfile()
	now, err := s.m.CPU()
	if err != nil {
		return err
	}
	x.CPU = now - cpu
	callsNow, withinNow, err := s.webhookCalls(ctx)
	if err != nil {
		return err
	}
	x.Calls, x.Within = callsNow-calls, withinNow-within
	if err := s.w.waitEverywhere(ctx, s.c, s.totals()); err != nil {
		return err
	}
	x.Everywhere = time.Since(ended)
	x.AppliedAfter = s.w.applied.Load() - applied - x.Applied
	if err := s.profile(ctx, "heap", "load-heap"); err != nil {
		return err
	}
	x.Memory, x.MostMemory, err = s.m.Memory()
	return err
}

// probeEverySecond notes when single changes are seen while there is load.
func (s *session) probeEverySecond(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		d, err := s.probe(ctx)
		if err != nil {
			if ctx.Err() != nil || answered(err) {
				continue // counted by nobody: the load tells of failures
			}
			return err
		}
		s.r.OwnUnderLoad = append(s.r.OwnUnderLoad, d)
	}
}

// webhookCalls returns how often the API server asked the claims' webhook, and how many of the
// answers came within 25 ms, by the API server's own histogram.
func (s *session) webhookCalls(ctx context.Context) (calls, within int64, err error) {
	cl, url, err := s.apiServer("/metrics")
	if err != nil {
		return 0, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	resp, err := cl.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("metrics of the API server: %s", resp.Status)
	}
	return histogram(resp.Body)
}

// apiServer returns a client for the API server and the URL of one of its paths.
func (s *session) apiServer(path string) (*http.Client, string, error) {
	cl, err := rest.HTTPClientFor(rest.CopyConfig(s.cp.Config))
	return cl, strings.TrimSuffix(s.cp.Config.Host, "/") + path, err
}

func histogram(r io.Reader) (calls, within int64, err error) {
	const metric = "apiserver_admission_webhook_admission_duration_seconds_"
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if !ok || !strings.HasPrefix(name, metric) || !strings.Contains(name, `name="`+claimsWebhook+`"`) || !strings.Contains(name, `operation="CREATE"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, 0, err
		}
		switch {
		case strings.HasPrefix(name, metric+"count"):
			calls += int64(n)
		case strings.HasPrefix(name, metric+"bucket") && strings.Contains(name, `le="0.025"`):
			within += int64(n)
		}
	}
	return calls, within, lines.Err()
}
