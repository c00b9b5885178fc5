package webhooks

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/test/harness"
	"github.com/devicequota/devicequota/webhooks"
)

// running is a manager in this process.
type running struct {
	o    app.Options
	stop context.CancelFunc
	done chan error
}

// runManager starts one, with a certificate of its own making, and waits until it is ready. At its
// end it serves on for a while.
func runManager(t *testing.T, secret string, drain time.Duration) *running {
	t.Helper()
	o := app.DefaultOptions()
	o.WebhookAddress, o.HealthAddress, o.MetricsAddress = harness.FreeAddress(t), harness.FreeAddress(t), harness.FreeAddress(t)
	o.TLSMode, o.TLSSecret, o.TLSService = app.TLSSelfSigned, secret, "devicequota"
	o.LeaseName = "in-process"
	o.ShutdownDelay = drain
	ready := make(chan struct{})
	o.Started = func() { close(ready) }
	ctx, stop := context.WithCancel(t.Context())
	r := &running{o: o, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- app.Run(ctx, o, rest.CopyConfig(cp.Config)) }()
	select {
	case <-ready:
	case err := <-r.done:
		t.Fatalf("the manager ended: %v", err)
	case <-time.After(3 * time.Minute):
		t.Fatal("the manager is not ready after three minutes")
	}
	return r
}

// get returns the status and body of an answer.
func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // the certificate is for the Service
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// scraperToken returns a token that may get /metrics.
func scraperToken(t *testing.T) string {
	t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: "scraper"}}
	create(t, cp.Client, sa)
	create(t, cp.Client, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scraper"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}})
	create(t, cp.Client, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "scraper"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: sa.Namespace, Name: sa.Name}}})
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)}}
	if err := cp.Client.SubResource("token").Create(t.Context(), sa, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func TestTwoManagersRunInOneProcessAndDrain(t *testing.T) {
	create(t, cp.Client, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: "in-process"}})
	// The first serves on for as long as it may take on a slow machine to see that it does.
	first, second := runManager(t, "in-process", 8*time.Second), runManager(t, "in-process", 0)
	token := scraperToken(t)
	for i, m := range []*running{first, second} {
		url := "https://" + m.o.MetricsAddress + "/metrics"
		harness.Eventually(t, "metrics", func(context.Context) error {
			if code, _ := get(t, url, ""); code != http.StatusUnauthorized {
				return fmt.Errorf("manager %d: metrics without a token: %d, want 401", i, code)
			}
			if code, body := get(t, url, token); code != http.StatusOK || !strings.Contains(body, "devicequota_build_info") ||
				!strings.Contains(body, `devicequota_certificate_expiry_timestamp_seconds{kind="serving"}`) {
				return fmt.Errorf("manager %d: metrics: %d %.200s", i, code, body)
			}
			return nil
		})
		if code, body := get(t, "http://"+m.o.HealthAddress+"/livez", ""); code != http.StatusOK {
			t.Errorf("manager %d: livez: %d %s", i, code, body)
		}
	}
	first.stop()
	harness.Eventually(t, "readiness is withdrawn", func(context.Context) error {
		if code, body := get(t, "http://"+first.o.HealthAddress+"/readyz", ""); code != http.StatusInternalServerError || !strings.Contains(body, "shutting down") {
			return fmt.Errorf("readyz: %d %s", code, body)
		}
		return nil
	})
	// Not a review, but somebody answers: the webhooks are still served.
	if code, body := get(t, "https://"+first.o.WebhookAddress+webhooks.PathValidateClaim, ""); code == 0 {
		t.Errorf("the webhooks are not served while draining: %s", body)
	}
	if err := <-first.done; err != nil {
		t.Errorf("the first manager's end: %v", err)
	}
	if code, body := get(t, "http://"+second.o.HealthAddress+"/readyz", ""); code != http.StatusOK {
		t.Errorf("the second manager is not ready any more: %d %s", code, body)
	}
	second.stop()
	if err := <-second.done; err != nil {
		t.Errorf("the second manager's end: %v", err)
	}
}
