package envtest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

// thirdManager runs beside the two that all tests share, until the test ends.
func thirdManager(t *testing.T) *harness.Manager {
	t.Helper()
	m, err := startManager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// existing counts the tenant's claims.
func (tn *tenant) existing(ctx context.Context) (int, error) {
	n := 0
	for _, ns := range tn.namespaces {
		var l resourceapi.ResourceClaimList
		if err := cp.Client.List(ctx, &l, client.InNamespace(ns)); err != nil {
			return 0, err
		}
		n += len(l.Items)
	}
	return n, nil
}

// wantExisting fails unless exactly n claims exist.
func (tn *tenant) wantExisting(want int) {
	tn.t.Helper()
	if got, err := tn.existing(tn.t.Context()); err != nil || got != want {
		tn.t.Errorf("%d claims exist, want %d (%v)", got, want, err)
	}
}

func TestThreeReplicasAdmitExactlyFiftyOfTwoHundred(t *testing.T) {
	third := thirdManager(t)
	defer func() {
		if err := third.Stop(); err != nil {
			t.Error(err)
		}
	}()
	limit := hard(string(gpuKey), "50")
	tn := newTenant(t, 20, limit)
	tn.known(limit, third)
	for round := range 2 {
		got := race(t, 200, func(ctx context.Context, i int) error {
			return answered(ctx, claim(tn.namespaces[i%20], fmt.Sprintf("r%d-c%d", round, i), "gpu.nvidia.com", 1))
		})
		if got.admitted != 50 || len(got.other) != 0 {
			t.Errorf("round %d: admitted %d of 50 places, denied %d, other answers: %v", round, got.admitted, got.denied, got.other)
		}
		tn.wantUsed(hard(string(gpuKey), "50"))
		for _, ns := range tn.namespaces {
			if err := cp.Client.DeleteAllOf(t.Context(), &resourceapi.ResourceClaim{}, client.InNamespace(ns)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tn.wantUsed(hard(string(gpuKey), "0"))
}

// answered creates a claim again until the answer is final.
func answered(ctx context.Context, c *resourceapi.ResourceClaim) error {
	return harness.Persist(ctx, cp.Client, c)
}

func TestKilledReplicasNeitherOvershootNorLeak(t *testing.T) {
	tn := newTenant(t, 20, hard(string(gpuKey), "50"))
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			m, err := startManager(context.Background())
			if err != nil {
				t.Errorf("start a replica: %v", err)
				return
			}
			select {
			case <-stop:
				if err := m.Stop(); err != nil {
					t.Error(err)
				}
				return
			case <-time.After(time.Second):
				m.Kill()
			}
		}
	})
	got := race(t, 200, func(ctx context.Context, i int) error {
		if i >= 100 {
			time.Sleep(time.Duration(i-100) * 50 * time.Millisecond) //nolint:forbidigo // spreads the load over the kills
		}
		return answered(ctx, claim(tn.namespaces[i%20], fmt.Sprintf("c%d", i), "gpu.nvidia.com", 1))
	})
	close(stop)
	killer.Wait()
	if len(got.other) != 0 {
		t.Errorf("admitted %d, denied %d, other answers: %v", got.admitted, got.denied, got.other)
	}
	n, err := tn.existing(t.Context())
	if err != nil || n > 50 {
		t.Fatalf("%d claims exist at a limit of 50 (%v)", n, err)
	}
	for ; n < 50; n++ { // a replica died between its write and its answer: its holds age out
		harness.Eventually(t, "the place of a lost answer is free again", func(ctx context.Context) error {
			return answered(ctx, claim(tn.namespaces[0], fmt.Sprintf("rest-%d", n), "gpu.nvidia.com", 1))
		})
	}
	tn.wantExisting(50)
	tn.wantUsed(hard(string(gpuKey), "50"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "over", "gpu.nvidia.com", 1)), "exceeded quota")
}

func TestHoldsOfWhatALaterWebhookDeniesEnd(t *testing.T) {
	denied := denyAThird(t)
	tn := newTenant(t, 20, hard(string(gpuKey), "50"))
	got := race(t, 200, func(ctx context.Context, i int) error {
		err := answered(ctx, claim(tn.namespaces[i%20], fmt.Sprintf("c%d", i), "gpu.nvidia.com", 1))
		if err != nil && strings.Contains(err.Error(), "every third") {
			return nil
		}
		return err
	})
	if len(got.other) != 0 {
		t.Errorf("answers that are none: %v", got.other)
	}
	if denied.Load() == 0 {
		t.Fatal("the later webhook was not asked")
	}
	n, err := tn.existing(t.Context())
	if err != nil || n > 50 {
		t.Fatalf("%d claims exist at a limit of 50 (%v)", n, err)
	}
	tn.wantUsed(hard(string(gpuKey), fmt.Sprint(n))) // and no holds are left
	for i := n; i < 50; i++ {
		create(t, claim(tn.namespaces[0], fmt.Sprintf("rest%d-x", i), "gpu.nvidia.com", 1))
	}
	tn.wantExisting(50)
	tn.wantUsed(hard(string(gpuKey), "50"))
}

// denyAThird installs another admission webhook that denies every third claim named c<number>.
func denyAThird(t *testing.T) *atomic.Int64 {
	t.Helper()
	crt, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	var denied atomic.Int64
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		var n int
		_, err := fmt.Sscanf(review.Request.Name, "c%d", &n)
		deny := err == nil && n%3 == 0
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !deny, Result: &metav1.Status{Message: "every third is denied here"}}
		if deny {
			denied.Add(1)
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("answer a review: %v", err)
		}
	})}
	go func() { _ = srv.Serve(l) }() // it ends with Close
	config := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "zz-every-third"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "third.test.devicequota.io", SideEffects: ptr.To(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{URL: ptr.To("https://" + l.Addr().String()), CABundle: crt},
			Rules: []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule: registrationv1.Rule{APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"resourceclaims"}}}},
		}}}
	create(t, config)
	t.Cleanup(func() {
		if err := cp.Client.Delete(context.Background(), config); err != nil {
			t.Error(err)
		}
		// The API server goes on asking until it has seen that: then the next test may begin.
		if err := harness.Poll(context.Background(), func(ctx context.Context) error {
			return cp.Client.Create(ctx, claim("default", "c0", "gpu.nvidia.com", 1), client.DryRunAll)
		}); err != nil {
			t.Errorf("the later webhook is still asked: %v", err)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	harness.Eventually(t, "the later webhook is asked", func(ctx context.Context) error {
		err := cp.Client.Create(ctx, claim("default", "c0", "gpu.nvidia.com", 1), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "every third") {
			return fmt.Errorf("want a denial, got: %w", err)
		}
		return nil
	})
	return &denied
}
