package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"
)

const day = 24 * time.Hour

func options(c *testingclock.FakeClock) Options {
	return Options{
		Namespace: "dq", Secret: "dq-tls", Service: "dq", Validating: []string{"dq"}, Mutating: []string{"dq"},
		AuthorityLife: 300 * day, ServingLife: 30 * day, Propagation: time.Minute, Clock: c,
	}
}

func config(service string) admissionv1.WebhookClientConfig {
	return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "dq", Name: service}}
}

func cluster() *fake.Clientset {
	return fake.NewClientset(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "dq", Name: "dq-tls"}},
		&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "dq"}, Webhooks: []admissionv1.ValidatingWebhook{
			{Name: "a.dq", ClientConfig: config("dq")}, {Name: "b.dq", ClientConfig: config("dq")}, {Name: "c.dq", ClientConfig: config("other")},
		}},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "dq"}, Webhooks: []admissionv1.MutatingWebhook{
			{Name: "d.dq", ClientConfig: config("dq")},
		}},
	)
}

func newSource(t *testing.T, client *fake.Clientset, c *testingclock.FakeClock) *SelfSigned {
	t.Helper()
	s, err := New(client, options(c))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func round(t *testing.T, s *SelfSigned) time.Time {
	t.Helper()
	next, err := s.round(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func bundles(t *testing.T, client *fake.Clientset) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	v, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "dq", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range v.Webhooks {
		out[w.Name] = w.ClientConfig.CABundle
	}
	m, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "dq", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range m.Webhooks {
		out[w.Name] = w.ClientConfig.CABundle
	}
	return out
}

func secret(t *testing.T, client *fake.Clientset) *corev1.Secret {
	t.Helper()
	s, err := client.CoreV1().Secrets("dq").Get(t.Context(), "dq-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// accepts tells whether a client that trusts the bundle accepts what the source serves.
func accepts(t *testing.T, s *SelfSigned, bundle []byte, now time.Time) error {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	server := &tls.Config{Time: func() time.Time { return now }}
	s.Configure(server)
	a, b := net.Pipe()
	go func() { _ = tls.Server(a, server).Handshake() }() // the client says what is wrong
	defer a.Close()
	defer b.Close()
	return tls.Client(b, &tls.Config{RootCAs: pool, ServerName: "dq.dq.svc", Time: func() time.Time { return now }}).Handshake()
}

func TestFirstRoundFillsTheSecretAndEveryAddressOfOurService(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), cluster()
	s := newSource(t, client, clock)
	if s.Ready(nil) == nil {
		t.Fatal("ready before the first round")
	}
	round(t, s)
	if err := s.Ready(nil); err != nil {
		t.Fatal(err)
	}
	ca := secret(t, client).Data[KeyCA]
	want := map[string][]byte{"a.dq": ca, "b.dq": ca, "c.dq": nil, "d.dq": ca}
	if diff := cmp.Diff(want, bundles(t, client)); diff != "" {
		t.Errorf("caBundles (-want +got):\n%s", diff)
	}
	if err := accepts(t, s, ca, clock.Now()); err != nil {
		t.Error(err)
	}
}

func TestReplicasServeTheSameCertificate(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), cluster()
	a, b := newSource(t, client, clock), newSource(t, client, clock)
	round(t, a)
	round(t, b)
	if !a.current.Load().serving.Leaf.Equal(b.current.Load().serving.Leaf) {
		t.Error("two replicas serve different certificates")
	}
}

func TestLoserOfARaceTakesOverWhatTheWinnerMade(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), cluster()
	elsewhere := cluster()
	winner, loser := newSource(t, elsewhere, clock), newSource(t, client, clock)
	round(t, winner)
	won, raced := secret(t, elsewhere), false
	client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if raced {
			return false, nil, nil
		}
		raced = true
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), won, "dq"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "dq-tls", errors.New("changed"))
	})
	round(t, loser)
	if !raced || !winner.current.Load().serving.Leaf.Equal(loser.current.Load().serving.Leaf) {
		t.Error("winner and loser serve different certificates")
	}
}

func TestNothingIsWrittenWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), cluster()
	s := newSource(t, client, clock)
	next := round(t, s)
	client.ClearActions()
	clock.SetTime(next.Add(-time.Minute))
	round(t, s)
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("%s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

// TestRotationIsNeverNoticed plays three years, and manual renewals, against a client that
// learns a caBundle a little later than it is written.
func TestRotationIsNeverNoticed(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	clock, client := testingclock.NewFakeClock(start), cluster()
	s := newSource(t, client, clock)
	next := round(t, s)
	known := bundles(t, client)["a.dq"]
	serials, authorities := map[string]bool{}, map[string]bool{}
	for step := 0; clock.Now().Before(start.Add(3 * 365 * day)); step++ {
		if step%7 == 3 {
			edit := secret(t, client)
			delete(edit.Data, []string{KeyCAKey, KeyCert}[step%2])
			if _, err := client.CoreV1().Secrets("dq").Update(t.Context(), edit, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		} else {
			clock.SetTime(next.Add(time.Second))
		}
		next = round(t, s)
		if err := accepts(t, s, known, clock.Now()); err != nil {
			t.Fatalf("step %d, %s: a client with the previous caBundle: %v", step, clock.Now(), err)
		}
		known = bundles(t, client)["a.dq"]
		if err := accepts(t, s, known, clock.Now()); err != nil {
			t.Fatalf("step %d, %s: a client with the new caBundle: %v", step, clock.Now(), err)
		}
		m := s.current.Load()
		serials[m.serving.Leaf.SerialNumber.String()], authorities[m.signer().SerialNumber.String()] = true, true
	}
	if len(serials) < 40 || len(authorities) < 6 {
		t.Errorf("%d serving certificates by %d authorities in three years: rotation does not happen", len(serials), len(authorities))
	}
}

func TestAuthorityDoesNotSignWhileAConfigurationCannotBeWritten(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), cluster()
	s := newSource(t, client, clock)
	round(t, s)
	old := s.current.Load().signer()
	edit := secret(t, client)
	delete(edit.Data, KeyCAKey)
	if _, err := client.CoreV1().Secrets("dq").Update(t.Context(), edit, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	broken := true
	client.PrependReactor("update", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, errors.New("no")
	})
	for range 3 {
		clock.Step(10 * time.Minute)
		if _, err := s.round(t.Context()); err == nil {
			t.Fatal("want an error")
		}
		if !s.current.Load().signer().Equal(old) {
			t.Fatal("a new authority signs that one webhook configuration does not trust")
		}
	}
	broken = false
	round(t, s)
	clock.Step(10 * time.Minute)
	round(t, s)
	if s.current.Load().signer().Equal(old) {
		t.Error("the old authority still signs")
	}
}

func TestRemovedCABundleIsWrittenAgainAtOnce(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), cluster()
	s := newSource(t, client, clock)
	watched, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Start(ctx) }()
	wiped := false
	for e := range watched.ResultChan() {
		c := e.Object.(*admissionv1.ValidatingWebhookConfiguration)
		if len(c.Webhooks[0].ClientConfig.CABundle) == 0 {
			continue
		}
		if wiped {
			break
		}
		wiped = true
		c = c.DeepCopy()
		c.Webhooks[0].ClientConfig.CABundle = nil
		if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestUnusableSecretContentIsMadeAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	o := options(testingclock.NewFakeClock(now)).withDefaults()
	good, _, err := material{}.renew(now, false, o)
	if err != nil {
		t.Fatal(err)
	}
	data, err := good.encode()
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := material{}.renew(now, false, o)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, changed, err := parse(data).renew(now, true, o); err != nil || changed {
		t.Fatalf("what was just made is renewed (%v)", err)
	}
	for name, change := range map[string]func(map[string][]byte){
		"no data":             func(d map[string][]byte) { clear(d) },
		"garbage certificate": func(d map[string][]byte) { d[KeyCert] = []byte("x") },
		"garbage authority": func(d map[string][]byte) {
			d[KeyCA] = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		},
		"key of another certificate": func(d map[string][]byte) { d[KeyKey] = foreign[KeyKey] },
		"key of another authority":   func(d map[string][]byte) { d[KeyCAKey] = foreign[KeyCAKey] },
		"another authority":          func(d map[string][]byte) { d[KeyCA], d[KeyCAKey] = foreign[KeyCA], foreign[KeyCAKey] },
	} {
		edited := map[string][]byte{}
		for k, v := range data {
			edited[k] = v
		}
		change(edited)
		m, changed, err := parse(edited).renew(now, false, o)
		if err != nil || !changed || m.signer() == nil || m.key == nil {
			t.Errorf("%s: changed %v, signer %v, error %v", name, changed, m.signer() != nil, err)
		}
	}
}

func TestErrorsNameTheObject(t *testing.T) {
	t.Parallel()
	clock, client := testingclock.NewFakeClock(time.Now()), fake.NewClientset()
	s := newSource(t, client, clock)
	if _, err := s.round(t.Context()); err == nil || !strings.Contains(err.Error(), `secret "dq/dq-tls"`) {
		t.Errorf("got %v", err)
	}
	if err := s.Ready(nil); err == nil || !strings.Contains(err.Error(), `secret "dq/dq-tls"`) {
		t.Errorf("readiness: got %v", err)
	}
	if _, err := s.certificate(nil); err == nil {
		t.Error("a certificate from nothing")
	}
	if _, err := New(client, Options{}); err == nil {
		t.Error("options without names are taken")
	}
}

func TestFilesAreASource(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m, _, err := material{}.renew(now, false, options(testingclock.NewFakeClock(now)).withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	data, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := FromFiles(dir); err == nil {
		t.Error("an empty folder is taken")
	}
	for _, name := range []string{KeyCert, KeyKey} {
		if err := os.WriteFile(filepath.Join(dir, name), data[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := FromFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	var source Source = f
	if err := source.Ready(nil); err != nil {
		t.Error(err)
	}
	if got, want := source.Expiry()["serving"], m.serving.Leaf.NotAfter; !got.Equal(want) {
		t.Errorf("expiry: want %s, got %s", want, got)
	}
	if n := testutil.CollectAndCount(Collector(source), "devicequota_certificate_expiry_timestamp_seconds"); n != 1 {
		t.Errorf("%d metrics, want 1", n)
	}
}

var _ Source = (*SelfSigned)(nil)
