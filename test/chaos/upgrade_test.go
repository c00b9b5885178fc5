//go:build chaos

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// later is the field that the next version writes, into the status and into each hold.
const later = "writtenByTheNextVersion"

// nextVersion plays the API access of a manager of the next version: what it writes to a
// ledger has fields that this version does not know.
type nextVersion struct {
	server     *httptest.Server
	kubeconfig string
	writes     atomic.Int64
}

func newNextVersion(t *testing.T, cp *harness.ControlPlane) *nextVersion {
	t.Helper()
	cfg, _, err := cp.User("system:serviceaccount:"+harness.Namespace+":"+harness.ServiceAccount, "system:authenticated",
		"system:serviceaccounts", "system:serviceaccounts:"+harness.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	n := &nextVersion{kubeconfig: filepath.Join(t.TempDir(), "next.kubeconfig")}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, // watches
		ErrorLog: log.New(io.Discard, "", 0), // of an API server that restarts
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			n.rewrite(t, r.Out)
		},
	}
	n.server = httptest.NewServer(proxy)
	t.Cleanup(func() {
		n.server.CloseClientConnections()
		n.server.Close()
	})
	config := clientcmdapi.NewConfig()
	config.Clusters["next"] = &clientcmdapi.Cluster{Server: n.server.URL}
	config.Contexts["next"] = &clientcmdapi.Context{Cluster: "next"}
	config.CurrentContext = "next"
	if err := clientcmd.WriteToFile(*config, n.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return n
}

// rewrite adds to a ledger that is written what the next version writes.
func (n *nextVersion) rewrite(t *testing.T, r *http.Request) {
	if r.Method != http.MethodPut && r.Method != http.MethodPost || !strings.Contains(r.URL.Path, "/deviceledgers") {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller is gone
	}
	var l map[string]any
	if err := json.Unmarshal(body, &l); err != nil {
		t.Errorf("a ledger that is no JSON: %v", err)
		return
	}
	status, _ := l["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		l["status"] = status
	}
	status[later] = "status"
	holds, _ := status["holds"].([]any)
	for _, h := range holds {
		h.(map[string]any)[later] = "hold"
	}
	if body, err = json.Marshal(l); err != nil {
		t.Error(err)
		return
	}
	n.writes.Add(1)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
}

// nextCRD installs the ledger's CRD as the next version ships it: with its fields.
func nextCRD(t *testing.T, cp *harness.ControlPlane) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: "deviceledgers.devicequota.io"}, crd); err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	field := map[string]any{"type": "string"}
	version := versions[0].(map[string]any)
	for _, path := range [][]string{
		{"schema", "openAPIV3Schema", "properties", "status", "properties", later},
		{"schema", "openAPIV3Schema", "properties", "status", "properties", "holds", "items", "properties", later},
	} {
		if err := unstructured.SetNestedMap(version, field, path...); err != nil {
			t.Fatal(err)
		}
	}
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	if err := cp.Client.Update(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
}

// writers follows who wrote a ledger: the next version leaves its field, this one drops it.
type writers struct {
	next, this atomic.Int64
}

func (w *writers) follow(t *testing.T, cp *harness.ControlPlane, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	last := ""
	done.Go(func() {
		for ctx.Err() == nil {
			l := &unstructured.Unstructured{}
			l.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DeviceLedger"))
			if err := cp.Client.Get(ctx, client.ObjectKey{Name: name}, l); err == nil && l.GetResourceVersion() != last {
				last = l.GetResourceVersion()
				if _, has, _ := unstructured.NestedString(l.Object, "status", later); has {
					w.next.Add(1)
				} else {
					w.this.Add(1)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// clients create and delete claims and know which of theirs exist.
type clients struct {
	tn *tenant
	// strict: every request has to be answered, by an admission, a denial or "later".
	strict atomic.Bool

	mu sync.Mutex // protects following
	// mine are claims that were admitted and that nobody deleted.
	mine map[types.NamespacedName]types.UID
}

func (c *clients) run(ctx context.Context, r *rand.Rand) {
	var own []*resourceapi.ResourceClaim
	for i := 0; ctx.Err() == nil; i++ {
		if len(own) > 0 && r.IntN(5) < 2 {
			k := r.IntN(len(own))
			c.forget(own[k]) // before: after a lost answer it may be gone
			if err := c.tn.w.cp.Client.Delete(ctx, own[k].DeepCopy()); err == nil || apierrors.IsNotFound(err) {
				own = slices.Delete(own, k, k+1)
			}
			continue
		}
		claim := gpus(c.tn.namespaces[r.IntN(len(c.tn.namespaces))], fmt.Sprintf("c-%x-%d", r.Uint32(), i), int64(1+r.IntN(3)))
		strict := c.strict.Load()
		err := c.tn.w.cp.Client.Create(ctx, claim)
		if ctx.Err() != nil {
			return // the request was given up
		}
		v, expected := verdict(err)
		switch {
		case !expected, v == "outage" && strict && c.strict.Load():
			c.tn.w.t.Errorf("no clear answer: %v", err)
		case v == "outage" && !retryable(err):
			c.tn.w.t.Errorf("an answer that does not tell to try again: %v", err)
		}
		switch v {
		case "admitted":
			c.remember(claim)
			own = append(own, claim)
		case "outage": // it may exist
			own = append(own, claim)
		}
		c.tn.mu.Lock()
		c.tn.n[v]++
		c.tn.mu.Unlock()
	}
}

// retryable tells whether a client knows that it may try again: a lost connection, or an
// answer of the server's own trouble.
func retryable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // the connection
	}
	code := status.Status().Code
	return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

func (c *clients) remember(claim *resourceapi.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mine[client.ObjectKeyFromObject(claim)] = claim.UID
}

func (c *clients) forget(claim *resourceapi.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mine, client.ObjectKeyFromObject(claim))
}

// wantAll fails for a claim that was admitted, was not deleted and does not exist.
func (c *clients) wantAll() {
	c.tn.w.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, uid := range c.mine {
		claim := &resourceapi.ResourceClaim{}
		if err := c.tn.w.cp.Client.Get(c.tn.w.t.Context(), name, claim); err != nil || claim.UID != uid {
			c.tn.w.t.Errorf("claim %s was admitted and is lost: %v", name, err)
		}
	}
}

func gpus(namespace, name string, count int64) *resourceapi.ResourceClaim {
	return harness.Claim(namespace, name, "gpu.nvidia.com", count)
}

// previous stores the ledger as version 0.1 left it, for a quota over the tenant's projects in
// which one claim exists that is held, and one that never came.
func (tn *tenant) previous(existing *resourceapi.ResourceClaim) {
	tn.w.t.Helper()
	data, err := os.ReadFile(filepath.Join(harness.Root(), "quota", "v1alpha1", "testdata", "deviceledger-v0.1.yaml"))
	if err != nil {
		tn.w.t.Fatal(err)
	}
	l := &v1alpha1.DeviceLedger{}
	if err := yaml.UnmarshalStrict(data, l); err != nil {
		tn.w.t.Fatal(err)
	}
	q := quotaFor(tn.name)
	if err := tn.w.cp.Client.Create(tn.w.t.Context(), q); err != nil {
		tn.w.t.Fatal(err)
	}
	l.Name = tn.name
	s := &l.Status
	s.CRQUID, s.CRQResourceVersion, s.Hard, s.Rebuilding = q.UID, q.ResourceVersion, q.Spec.Quota.Hard, false
	s.Selector = v1alpha1.LedgerSelector{Labels: q.Spec.Selector.LabelSelector}
	s.Observed = v1alpha1.ObservedVersions{Claims: "1", Namespaces: "1"} // what this cluster can have had
	s.Used = nil
	s.Holds[0].UID, s.Holds[0].Namespace, s.Holds[0].Name = existing.UID, existing.Namespace, existing.Name
	if err := tn.w.cp.Client.Create(tn.w.t.Context(), l, client.FieldValidation("Strict")); err != nil {
		tn.w.t.Fatal(err)
	}
}

// await waits until the condition holds, at most two minutes.
func (w *world) await(what string, condition func() bool) {
	w.t.Helper()
	w.retry(what, func(context.Context) error {
		if !condition() {
			return errors.New("not yet")
		}
		return nil
	})
}

// replace replaces the managers one by one, each new one being ready before an old one leaves.
// While some are replaced and some are not, mixed is called.
func (w *world) replace(args []string, mixed func()) {
	w.t.Helper()
	for i, old := range w.managers {
		m, err := w.cp.StartManager(w.t.Context(), harness.ManagerOptions{Args: append([]string{"--shutdown-delay=1s"}, args...)})
		if err != nil {
			w.t.Fatal(err)
		}
		w.managers[i] = m
		if err := old.Stop(); err != nil {
			w.t.Error(err)
		}
		if i < len(w.managers)-1 {
			mixed() // from now on the connections of the one that left are spread over both versions
		}
	}
}

func TestUpgradeAndRestartUnderLoad(t *testing.T) {
	w := startEmpty(t)
	nextCRD(t, w.cp)
	tn := w.previousTenant("upgraded", 6)
	for range 2 {
		w.managers = append(w.managers, w.manager())
	}
	for _, m := range w.managers {
		if err := m.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	next, seen := newNextVersion(t, w.cp), &writers{}
	seen.follow(t, w.cp, tn.name)

	c := &clients{tn: tn, mine: map[types.NamespacedName]types.UID{}}
	c.strict.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	load.Go(func() { tn.watch(ctx) })
	for i := range 8 {
		load.Go(func() { c.run(ctx, rand.New(rand.NewPCG(uint64(i), 2))) })
	}
	// both write in turn: what one wrote, the other reads and replaces
	mixed := func() {
		a, b := seen.next.Load()+10, seen.this.Load()+10
		w.await("both versions write the ledger", func() bool { return seen.next.Load() >= a && seen.this.Load() >= b })
	}
	w.replace([]string{"--kubeconfig=" + next.kubeconfig}, mixed)
	t.Logf("upgraded: %s; versions of the ledger seen by the next version %d, by this one %d", tn.counts(), seen.next.Load(), seen.this.Load())

	before := tn.answered()
	c.strict.Store(false)
	if err := w.cp.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.managers {
		if err := m.WaitReady(t.Context()); err != nil {
			t.Error(err)
		}
	}
	w.await("claims are admitted and denied after the restart", func() bool {
		now := tn.answered()
		return now["admitted"] > before["admitted"]+20 && now["denied"] > before["denied"]+20
	})
	t.Logf("API server restarted: %s", tn.counts())

	before = tn.answered()
	c.strict.Store(true)
	w.replace(nil, func() {})
	w.await("claims are admitted after going back", func() bool { return tn.answered()["admitted"] > before["admitted"]+20 })
	stop()
	load.Wait()
	t.Logf("went back: %s", tn.counts())

	c.wantAll()
	tn.wantTrue()
	tn.wantPlaces()
}

// previousTenant is a tenant whose ledger a previous version wrote, while no manager runs.
func (w *world) previousTenant(name string, projects int) *tenant {
	w.t.Helper()
	if err := w.cp.UninstallWebhooks(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	tn := &tenant{w: w, name: name, n: map[string]int{}}
	tn.createProjects(projects)
	existing := gpus(tn.namespaces[0], "existing", 2)
	w.retry("create claim", func(ctx context.Context) error { return w.cp.Client.Create(ctx, existing) })
	tn.previous(existing)
	if err := w.cp.InstallWebhooks(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return tn
}

// answered returns a copy of the answers by verdict.
func (tn *tenant) answered() map[string]int {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	out := map[string]int{}
	for v, n := range tn.n {
		out[v] = n
	}
	return out
}

// wantPlaces fails unless exactly the free places can be used, one by one.
func (tn *tenant) wantPlaces() {
	tn.w.t.Helper()
	ctx := tn.w.t.Context()
	used, err := tn.count(ctx)
	if err != nil {
		tn.w.t.Fatal(err)
	}
	for i := used; i < limit; i++ {
		if err := tn.w.cp.Client.Create(ctx, gpus(tn.namespaces[0], fmt.Sprintf("free-%d", i), 1)); err != nil {
			tn.w.t.Fatalf("place %d of %d cannot be used: %v", i+1, limit, err)
		}
	}
	if v, _ := verdict(tn.w.cp.Client.Create(ctx, gpus(tn.namespaces[0], "beyond", 1))); v != "denied" {
		tn.w.t.Errorf("a claim beyond the limit: %s", v)
	}
}
