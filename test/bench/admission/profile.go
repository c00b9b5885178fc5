package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

const (
	// profileSeconds of each cell are profiled.
	profileSeconds = 8
	// firstProfilePort is where the first manager serves its profiles, the next ones after it.
	firstProfilePort = 16060
)

// profile begins to profile managers and API server, and returns a function that waits for the
// profiles and saves the API server's metrics as they were and as they are then. Without a folder
// for them it does nothing.
func (b *bench) profile(ctx context.Context, cell string) (func() error, error) {
	if b.o.profiles == "" {
		return func() error { return nil }, nil
	}
	cell = strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' {
			return '-'
		}
		return r
	}, cell)
	path := func(what string) string { return filepath.Join(b.o.profiles, cell+"."+what) }
	server, err := rest.HTTPClientFor(b.cp.Config)
	if err != nil {
		return nil, err
	}
	host := strings.TrimSuffix(b.cp.Config.Host, "/")
	if err := download(ctx, server, host+"/metrics", path("before.metrics")); err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex // protects errs
	var errs []error
	get := func(c *http.Client, url, file string) {
		wg.Go(func() {
			if err := download(ctx, c, url, file); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	query := fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileSeconds)
	get(server, host+query, path("apiserver.pprof"))
	for i, address := range b.pprof {
		get(http.DefaultClient, "http://"+address+query, path(fmt.Sprintf("manager-%d.pprof", i)))
	}
	return func() error {
		err := download(ctx, server, host+"/metrics", path("after.metrics"))
		wg.Wait()
		return errors.Join(append(errs, err)...)
	}, nil
}

// download saves what a GET answers.
func download(ctx context.Context, c *http.Client, url, file string) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, resp.Body)
	return err
}
