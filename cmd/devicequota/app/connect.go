package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota/cluster"
)

// connect finds out what the API server is and has, which decides what parts there are. It asks
// until it knows, and tells false when ctx ended before. What fails meanwhile is the reason of
// not being ready.
func (i *instance) connect(ctx context.Context) (known bool, err error) {
	if i.platform, err = cluster.ParsePlatform(i.o.Platform); err != nil {
		return false, err
	}
	scheme, err := NewScheme()
	if err != nil {
		return false, err
	}
	if i.client, err = client.NewWithWatch(i.config, client.Options{Scheme: scheme}); err != nil {
		return false, err
	}
	if i.discovery, err = discovery.NewDiscoveryClientForConfig(i.config); err != nil {
		return false, err
	}
	logger := log.FromContext(ctx)
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Cap: 15 * time.Second, Steps: math.MaxInt32}
	for {
		err := i.discover(ctx)
		if err == nil {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, nil
		}
		i.ready.set(map[string]healthz.Checker{clusterCheck: func(*http.Request) error { return err }})
		delay := backoff.Step()
		logger.Error(err, "not ready: what the API server is and has is not known", "retryAfter", delay)
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(delay):
		}
	}
}

// clusterCheck is the name of the only check of readiness until connect knows the cluster.
const clusterCheck = "cluster"

// discover asks once.
func (i *instance) discover(ctx context.Context) (err error) {
	if v := i.o.ResourceAPIVersion; v == VersionAuto {
		i.api, err = devices.DiscoverAPI(ctx, i.discovery)
	} else {
		i.api, err = devices.DiscoverVersion(ctx, i.discovery, v)
	}
	if err != nil {
		return err
	}
	if i.o.Platform == PlatformAuto {
		if i.platform, err = cluster.DetectPlatform(ctx, i.client); err != nil {
			return err
		}
	}
	return i.findPlatformKeys(i.discovery)
}

// firstPlatformKeys is the Kubernetes version of OpenShift 4.21, the first whose own
// ClusterResourceQuota counts claims.
const firstPlatformKeys = "1.34.0"

// findPlatformKeys finds out whether the platform enforces Kubernetes' own keys.
func (i *instance) findPlatformKeys(d discovery.ServerVersionInterface) error {
	if !i.onOpenShift() {
		return nil
	}
	info, err := d.ServerVersion()
	if err != nil {
		return err
	}
	v, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return fmt.Errorf("version of the API server: %w", err)
	}
	i.platformKeys = v.AtLeast(version.MustParseGeneric(firstPlatformKeys))
	return nil
}

// changed returns what has changed on the API server that only a start takes account of, empty
// when nothing has.
func (i *instance) changed(ctx context.Context) (string, error) {
	change, err := i.api.Outdated(ctx, i.discovery)
	if err != nil || change != "" {
		return change, err
	}
	now := &instance{platform: i.platform}
	if err := now.findPlatformKeys(i.discovery); err != nil {
		return "", err
	}
	if now.platformKeys && !i.platformKeys {
		return "the platform enforces Kubernetes' own keys now", nil
	}
	return "", nil
}

// changedEvery is how often an upgrade of the API server is looked for.
const changedEvery = 30 * time.Second

// upgraded asks every so often and returns what has changed as an error, nil when ctx ends.
// Replicas do not ask all at once, so that they do not all end at once.
func (i *instance) upgraded(ctx context.Context, every time.Duration) error {
	logger := log.FromContext(ctx).WithName("upgrades")
	for {
		timer := time.NewTimer(every + rand.N(every))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		change, err := i.changed(ctx)
		if err != nil {
			logger.V(1).Info("API server not asked", "error", err.Error()) // whoever needs it says so
			continue
		}
		if change != "" {
			return errors.New(change + ": the manager has to start again")
		}
	}
}
