package envtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAProjectUnderManyQuotasIsHeldByTheTightest: whatever its place among the others, no
// parallel creates stand in each other's way, and who does not fit leaves a hold nowhere.
func TestAProjectUnderManyQuotasIsHeldByTheTightest(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "5"))
	var names []string
	wide := hard(string(gpuKey), "1000")
	for i := range 8 {
		q := tn.quota(wide)
		q.Name = fmt.Sprintf("%c-%s-%d", "az"[i%2], tn.name[:20], i) // half of them before and after it
		names = append(names, q.Name)
		create(t, q)
		t.Cleanup(func() { _ = cp.Client.Delete(context.Background(), q) }) // it may be gone
	}
	for _, name := range names {
		(&tenant{t: t, name: name, namespaces: tn.namespaces}).inForce(wide)
	}
	names = append(names, tn.name)
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
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if answer, err := managers[i%2].Review(t.Context(), c, false); err != nil || !answer.Allowed {
				t.Errorf("delivery %d: want it allowed, got %+v (%v)", i, answer, err)
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

// TestLedgersAreStoredWithoutManagedFields: who set which field of which hold would be larger than
// the ledger itself, and cost each write more than all else.
func TestLedgersAreStoredWithoutManagedFields(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	create(t, claim(tn.namespaces[0], "one", "gpu.nvidia.com", 1))
	tn.wantUsed(hard(string(gpuKey), "1"))
	l, err := tn.ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(l.ManagedFields) > 0 {
		t.Errorf("the stored ledger has managed fields: %v", l.ManagedFields)
	}
}
