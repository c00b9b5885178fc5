package scenarios

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/test/harness"
)

// interval is the least time between two settles of a quota here, so that the many accounts
// which are waited for do not take a second each.
const interval = 50 * time.Millisecond

// startManager runs a manager in this process, as the identity of every installation, behind
// the webhooks' address; it ends with the test.
func startManager(t *testing.T, o app.Options) {
	t.Helper()
	identity := "system:serviceaccount:" + harness.Namespace + ":" + harness.ServiceAccount
	cfg, _, err := cp.User(identity, "system:authenticated", "system:serviceaccounts", "system:serviceaccounts:"+harness.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	o.WebhookAddress, o.HealthAddress, o.MetricsAddress = harness.FreeAddress(t), app.AddressOff, app.AddressOff
	o.CertDir, o.LeaderElect, o.ShutdownDelay, o.SettleInterval = cp.CertDir(), false, 0, interval
	ready := make(chan struct{})
	o.Started = func() { close(ready) }
	var lines tail
	logger := funcr.New(func(prefix, args string) { lines.add(prefix + " " + args) }, funcr.Options{})
	ctx, stop := context.WithCancel(log.IntoContext(context.WithoutCancel(t.Context()), logger))
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, o, cfg) }()
	remove := cp.AddBackend(o.WebhookAddress)
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the manager's end: %v", err)
		}
		remove()
		if t.Failed() {
			t.Logf("manager:\n%s", lines.String())
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the manager ended: %v", err)
	case <-time.After(deadline):
		t.Fatalf("the manager is not ready after %v", deadline)
	}
}

// tail keeps the last lines of a log.
type tail struct {
	mu    sync.Mutex // protects the following
	lines []string
}

func (l *tail) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%.500s", line))
	l.lines = l.lines[max(0, len(l.lines)-40):]
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
