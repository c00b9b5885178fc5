package envtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestClaimsAreAdmittedUpToTheLimitOverAllProjects(t *testing.T) {
	tn := newTenant(t, 2, hard(string(gpuKey), "3", string(claimsKey), "5"))
	create(t, claim(tn.namespaces[0], "one", "gpu.nvidia.com", 1))
	create(t, claim(tn.namespaces[1], "two", "gpu.nvidia.com", 2))
	tn.wantUsed(hard(string(gpuKey), "3", string(claimsKey), "2"))

	err := cp.Client.Create(t.Context(), claim(tn.namespaces[0], "three", "gpu.nvidia.com", 1))
	wantDenied(t, err,
		fmt.Sprintf("exceeded quota: %s, requested: %s=1, used: %s=3, limited: %s=3", tn.name, gpuKey, gpuKey, gpuKey),
		`request "r0": 1 device`, "used by this project: "+string(gpuKey)+"=1, by the others together: "+string(gpuKey)+"=2")
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 ||
		status.Status().Details.Causes[0].Type != "QuotaExceeded" {
		t.Errorf("causes lack QuotaExceeded: %+v", status.Status().Details)
	}
	if strings.Contains(err.Error(), tn.namespaces[1]) {
		t.Errorf("the denial names a foreign project: %v", err)
	}
	tn.wantUsed(hard(string(gpuKey), "3", string(claimsKey), "2"))
}

func TestDryRunIsDecidedAndLeavesNoHold(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "1"))
	if err := cp.Client.Create(t.Context(), claim(tn.namespaces[0], "dry", "gpu.nvidia.com", 1), client.DryRunAll); err != nil {
		t.Fatalf("a dry run that fits: %v", err)
	}
	l, err := tn.ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Status.Holds) != 0 {
		t.Errorf("a dry run left holds: %v", l.Status.Holds)
	}
	create(t, claim(tn.namespaces[0], "real", "gpu.nvidia.com", 1))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "dry", "gpu.nvidia.com", 1), client.DryRunAll), "exceeded quota")
	tn.wantUsed(hard(string(gpuKey), "1"))
}

func TestGeneratedNamesAreHeldUnderTheFinalName(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	for range 2 {
		c := claim(tn.namespaces[0], "", "gpu.nvidia.com", 1)
		c.GenerateName = "gen-"
		create(t, c)
	}
	c := claim(tn.namespaces[0], "", "gpu.nvidia.com", 1)
	c.GenerateName = "gen-"
	wantDenied(t, cp.Client.Create(t.Context(), c), "exceeded quota")
	tn.wantUsed(hard(string(gpuKey), "2"))
}

func TestFiftyParallelCreatesForTenPlacesAdmitExactlyTen(t *testing.T) {
	tn := newTenant(t, 5, hard(string(gpuKey), "10"))
	got := race(t, 50, func(ctx context.Context, i int) error {
		return answered(ctx, claim(tn.namespaces[i%5], fmt.Sprintf("c%d", i), "gpu.nvidia.com", 1))
	})
	if got.admitted != 10 || len(got.other) != 0 {
		t.Errorf("admitted %d of 10 places, denied %d, other answers: %v", got.admitted, got.denied, got.other)
	}
	tn.wantUsed(hard(string(gpuKey), "10"))
}

type raceResult struct {
	admitted, denied int
	// answers that are neither: none is expected
	other []error
}

// race calls f n times in parallel and sorts the answers.
func race(t *testing.T, n int, f func(ctx context.Context, i int) error) raceResult {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(t.Context(), i) })
	}
	wg.Wait()
	var r raceResult
	for _, err := range errs {
		switch {
		case err == nil:
			r.admitted++
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
			r.denied++
		default:
			r.other = append(r.other, err)
		}
	}
	return r
}

func TestDeleteThenCreateWorksAtTheLimit(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "1"))
	for i := range 10 {
		c := claim(tn.namespaces[0], fmt.Sprintf("c%d", i), "gpu.nvidia.com", 1)
		if err := cp.Client.Create(t.Context(), c); err != nil {
			t.Fatalf("create %d right after the delete: %v", i, err)
		}
		if err := cp.Client.Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	tn.wantUsed(hard(string(gpuKey), "0"))
}

func TestARelabelledProjectMovesItsUsage(t *testing.T) {
	tn := newTenant(t, 2, hard(string(gpuKey), "2"))
	create(t, claim(tn.namespaces[0], "one", "gpu.nvidia.com", 1))
	create(t, claim(tn.namespaces[1], "two", "gpu.nvidia.com", 1))
	tn.wantUsed(hard(string(gpuKey), "2"))

	label(t, tn.namespaces[1], "someone-else")
	tn.wantUsed(hard(string(gpuKey), "1"))
	create(t, claim(tn.namespaces[0], "three", "gpu.nvidia.com", 1))

	label(t, tn.namespaces[1], tn.name)
	tn.wantUsed(hard(string(gpuKey), "3")) // moved in, over the limit: reported, nothing evicted
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "four", "gpu.nvidia.com", 1)), "exceeded quota")
}

func label(t *testing.T, namespace, tenant string) {
	t.Helper()
	var ns corev1.Namespace
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, &ns); err != nil {
		t.Fatal(err)
	}
	ns.Labels["tenant"] = tenant
	if err := cp.Client.Update(t.Context(), &ns); err != nil {
		t.Fatal(err)
	}
}

func TestADeletedProjectCountsUntilItsClaimsAreGone(t *testing.T) {
	tn := newTenant(t, 2, hard(string(gpuKey), "2"))
	create(t, claim(tn.namespaces[0], "one", "gpu.nvidia.com", 1))
	create(t, claim(tn.namespaces[1], "two", "gpu.nvidia.com", 1))
	tn.wantUsed(hard(string(gpuKey), "2"))
	// no namespace controller runs here: the project stays terminating, its claims stay
	if err := cp.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tn.namespaces[1]}}); err != nil {
		t.Fatal(err)
	}
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "three", "gpu.nvidia.com", 1)), "exceeded quota")
	if err := cp.Client.Delete(t.Context(), claim(tn.namespaces[1], "two", "gpu.nvidia.com", 1)); err != nil {
		t.Fatal(err)
	}
	create(t, claim(tn.namespaces[0], "three", "gpu.nvidia.com", 1))
	tn.wantUsed(hard(string(gpuKey), "2"))
}

func TestLoweringTheLimitBelowUseEvictsNothingAndDeniesMore(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "3"))
	create(t, claim(tn.namespaces[0], "three", "gpu.nvidia.com", 3))
	tn.wantUsed(hard(string(gpuKey), "3"))
	tn.annotate(nil, hard(string(gpuKey), "1"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "more", "gpu.nvidia.com", 1)), "used: "+string(gpuKey)+"=3", "limited: "+string(gpuKey)+"=1")
	tn.wantUsed(hard(string(gpuKey), "3"))
	if err := cp.Client.Delete(t.Context(), claim(tn.namespaces[0], "three", "gpu.nvidia.com", 3)); err != nil {
		t.Fatal(err)
	}
	create(t, claim(tn.namespaces[0], "one", "gpu.nvidia.com", 1))
	tn.wantUsed(hard(string(gpuKey), "1"))
}

func TestAManagerRestartInTheMiddleLosesNothing(t *testing.T) {
	tn := newTenant(t, 2, hard(string(gpuKey), "6"))
	create(t, claim(tn.namespaces[0], "before", "gpu.nvidia.com", 2))
	managers[0].Kill()
	if err := answered(t.Context(), claim(tn.namespaces[1], "during", "gpu.nvidia.com", 2)); err != nil {
		t.Fatal(err)
	}
	m, err := startManager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	managers[0] = m
	create(t, claim(tn.namespaces[0], "after", "gpu.nvidia.com", 2))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "over", "gpu.nvidia.com", 1)), "exceeded quota")
	tn.wantUsed(hard(string(gpuKey), "6"))
}

func TestOldVersionsAreChargedTheSame(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1", "v1beta2"} {
		t.Run(version, func(t *testing.T) {
			tn := newTenant(t, 1, hard(string(gpuKey), "2", string(claimsKey), "1"))
			u := asVersion(t, claim(tn.namespaces[0], "c", "gpu.nvidia.com", 2), version)
			if err := cp.Client.Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			tn.wantUsed(hard(string(gpuKey), "2", string(claimsKey), "1"))
		})
	}
}

func TestAllIsChargedAsTheLargestHost(t *testing.T) {
	tn := newTenant(t, 1, hard(string(tpuKey), "7"))
	c := claim(tn.namespaces[0], "all", "tpu.google.com", 0)
	c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	create(t, c)
	tn.wantUsed(hard(string(tpuKey), "4"))
	c = c.DeepCopy()
	c.ObjectMeta = metav1.ObjectMeta{Namespace: tn.namespaces[0], Name: "again"}
	wantDenied(t, cp.Client.Create(t.Context(), c), "requested: "+string(tpuKey)+"=4", "used: "+string(tpuKey)+"=4")
}
