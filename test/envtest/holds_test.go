package envtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// TestAProjectUnderManyQuotasIsHeldByTheTightest: whatever its place among the others, no
// parallel creates stand in each other's way, and who does not fit leaves a hold nowhere.
func TestAProjectUnderManyQuotasIsHeldByTheTightest(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "5"))
	var names []string
	for i := range 8 {
		q := tn.quota(hard(string(gpuKey), "1000"))
		q.Name = fmt.Sprintf("%c-%s-%d", "az"[i%2], tn.name[:20], i) // half of them before and after it
		names = append(names, q.Name)
		create(t, q)
		t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), q) }) // it may be gone
	}
	names = append(names, tn.name)
	for _, name := range names {
		eventually(t, "quota in force", func(ctx context.Context) error {
			l := &v1alpha1.DeviceLedger{}
			return cp.Client.Get(ctx, client.ObjectKey{Name: name}, l)
		})
	}
	got := race(t, 20, func(ctx context.Context, i int) error {
		return answered(ctx, claim(tn.namespaces[0], fmt.Sprintf("c%d", i), "gpu.nvidia.com", 1))
	})
	if got.admitted != 5 || len(got.other) > 0 {
		t.Errorf("admitted %d of 5 places, denied %d, other answers: %v", got.admitted, got.denied, got.other)
	}
	wantDenied(t, answered(t.Context(), claim(tn.namespaces[0], "over", "gpu.nvidia.com", 1)), "exceeded quota: "+tn.name)
	for _, name := range names {
		each := &tenant{t: t, name: name, namespaces: tn.namespaces}
		each.wantUsed(hard(string(gpuKey), "5"))
	}
}

// TestALoopOfCreatesOfANameThatExistsTakesOnePlace: each of them is admitted and then not
// stored, and the others in the quota are not kept waiting for the holds to end.
func TestALoopOfCreatesOfANameThatExistsTakesOnePlace(t *testing.T) {
	tn := newTenant(t, 2, hard(string(gpuKey), "3"))
	create(t, claim(tn.namespaces[0], "same", "gpu.nvidia.com", 1))
	for range 60 {
		if err := cp.Client.Create(t.Context(), claim(tn.namespaces[0], "same", "gpu.nvidia.com", 1)); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("want AlreadyExists, got: %v", err)
		}
	}
	create(t, claim(tn.namespaces[1], "other", "gpu.nvidia.com", 1))
	tn.wantExisting(2)
}

// TestTheSameReviewTwiceHoldsOnce: the API server may deliver a request to several replicas,
// and again when an answer is late. The second must not find the place taken by the first.
func TestTheSameReviewTwiceHoldsOnce(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "1"))
	c := claim(tn.namespaces[0], "twice", "gpu.nvidia.com", 1)
	c.UID, c.CreationTimestamp = types.UID("uid-of-"+tn.name), metav1.Now()
	c.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	review, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "one-request", Operation: admissionv1.Create, Namespace: c.Namespace, Name: c.Name,
			Kind:     metav1.GroupVersionKind{Group: resourceapi.GroupName, Version: "v1", Kind: "ResourceClaim"},
			Resource: metav1.GroupVersionResource{Group: resourceapi.GroupName, Version: "v1", Resource: "resourceclaims"},
			UserInfo: authenticationv1.UserInfo{Username: "somebody"}, Object: runtime.RawExtension{Raw: raw}}})
	if err != nil {
		t.Fatal(err)
	}
	hc := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // the certificate is for the Service
	defer hc.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			resp, err := hc.Post("https://"+managers[i%2].Address+"/validate-resourceclaim", "application/json", bytes.NewReader(review))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var answer admissionv1.AdmissionReview
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Response == nil || !answer.Response.Allowed {
				t.Errorf("delivery %d: want it allowed, got %+v (%v)", i, answer.Response, err)
			}
		})
	}
	wg.Wait()
	l, err := tn.ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Status.Holds) != 1 || !strings.HasPrefix(string(l.Status.Holds[0].UID), "uid-of-") {
		t.Errorf("want one hold, got %v", l.Status.Holds)
	}
}
