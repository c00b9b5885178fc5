package openshift

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

func TestTheManagersMayNotWriteWhatThePlatformOwns(t *testing.T) {
	for _, r := range []authorizationv1.ResourceAttributes{
		{Resource: "clusterresourcequotas"},
		{Resource: "clusterresourcequotas", Subresource: "status"},
		{Resource: "clusterresourcequotas", Subresource: "finalizers"},
		{Resource: "appliedclusterresourcequotas", Namespace: "team-a-train"},
	} {
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			r.Group, r.Verb = quotav1.GroupName, verb
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: identity, Groups: []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + harness.Namespace},
				ResourceAttributes: &r,
			}}
			create(t, review)
			if review.Status.Allowed {
				t.Errorf("allowed: %s %s/%s", verb, r.Resource, r.Subresource)
			}
		}
	}
}

// load is what a crowd of clients got.
type load struct {
	mu                sync.Mutex // protects the following
	admitted, refused map[string]int
	errs              []error
}

// createClaims creates claims of one device in each project, many at the same time.
func createClaims(ctx context.Context, projects []string, workers, each int) *load {
	l := &load{admitted: map[string]int{}, refused: map[string]int{}}
	var wg sync.WaitGroup
	for _, project := range projects {
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					err := harness.Persist(ctx, cp.Client, claim(project, fmt.Sprintf("c-%d-%d", w, i), gpuClass, 1))
					l.mu.Lock()
					switch {
					case err == nil:
						l.admitted[project]++
					case apierrors.IsForbidden(err):
						l.refused[project]++
					default:
						l.errs = append(l.errs, err)
					}
					l.mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return l
}

// gpus is what n claims of one GPU count for us: the largest has 80Gi.
func gpus(n int) corev1.ResourceList {
	if n == 0 {
		return corev1.ResourceList{}
	}
	return amounts(gpuKey, n, memoryKey, fmt.Sprintf("%dGi", 80*n))
}

func TestThePlatformsControllerAndWeKeepOutOfEachOthersWay(t *testing.T) {
	const limit = 60
	// The platform's key would allow 3: it is the platform's to enforce.
	tn := newTenant(t, "both", 4, amounts(gpuKey, limit, memoryKey, "8Ti", claimsKey, 1000, nativeGPUKey, 3), nil)
	tn.seed(amounts(gpuKey, 7, memoryKey, "99Gi", nativeGPUKey, 2))
	idle := tn.projects[3]

	ctl, stop := startPolicyController(t, tn.name)
	got := createClaims(t.Context(), tn.projects[:3], 3, 9)
	for _, err := range got.errs {
		t.Errorf("create: %v", err)
	}
	want := map[string]corev1.ResourceList{idle: {}}
	admitted := 0
	for _, project := range tn.projects[:3] {
		want[project] = gpus(got.admitted[project])
		admitted += got.admitted[project]
	}
	if admitted != limit {
		t.Errorf("%d claims were admitted, %v refused; want %d", admitted, got.refused, limit)
	}
	tn.wantUsed(want)

	freed := tn.projects[0]
	if err := cp.Client.DeleteAllOf(t.Context(), &resourceapi.ResourceClaim{}, client.InNamespace(freed)); err != nil {
		t.Fatal(err)
	}
	want[freed] = corev1.ResourceList{}
	tn.wantUsed(want)
	again := createClaims(t.Context(), []string{idle}, 1, 1)
	if again.admitted[idle] != 1 {
		t.Errorf("after claims were deleted: %v", again.errs)
	}
	want[idle] = gpus(1)
	tn.wantUsed(want)
	tn.platformsNumbers(map[string]int{tn.projects[1]: got.admitted[tn.projects[1]], tn.projects[2]: got.admitted[tn.projects[2]], freed: 0, idle: 1})

	left := tn.projects[1]
	relabel(t, left, nil)
	delete(want, left)
	tn.wantUsed(want)

	stop()
	writes, errs := ctl.stats()
	t.Logf("%d admitted, %v refused; the platform wrote %d times", admitted, got.refused, writes)
	if writes < 5 {
		t.Errorf("the platform wrote only %d times", writes)
	}
	for _, err := range errs {
		t.Errorf("the platform's controller: %v", err)
	}
	wantCleanAudit(t)
}

// seed leaves numbers in the quota's status that are not true, under foreign keys too.
func (tn *tenant) seed(used corev1.ResourceList) {
	tn.t.Helper()
	q, err := tn.quota(tn.t.Context())
	if err != nil {
		tn.t.Fatal(err)
	}
	status := corev1.ResourceQuotaStatus{Hard: q.Spec.Quota.Hard, Used: used}
	q.Status.Total = status
	q.Status.Namespaces = quotav1.ResourceQuotasStatusByNamespace{{Namespace: tn.projects[0], Status: status}}
	if err := cp.Client.Status().Update(tn.t.Context(), q); err != nil {
		tn.t.Fatal(err)
	}
}

// platformsNumbers waits until the quota's status is as the platform counts it; of our keys
// nothing is left but the zeros of the total.
func (tn *tenant) platformsNumbers(claims map[string]int) {
	tn.t.Helper()
	want := map[string]string{}
	total := 0
	for project, n := range claims {
		want[project] = platformFormat(amounts(claimsKey, n, nativeGPUKey, n))
		total += n
	}
	want[""] = platformFormat(amounts(claimsKey, total, nativeGPUKey, total, gpuKey, 0, memoryKey, 0))
	harness.Eventually(tn.t, "the platform's numbers", func(ctx context.Context) error {
		q, err := tn.quota(ctx)
		if err != nil {
			return err
		}
		got := map[string]string{"": platformFormat(q.Status.Total.Used)}
		for _, n := range q.Status.Namespaces {
			got[n.Namespace] = platformFormat(n.Status.Used)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("status: %s", diff)
		}
		return nil
	})
}

// platformFormat shows every key, those with zero too.
func platformFormat(used corev1.ResourceList) string {
	text := ""
	for _, k := range []corev1.ResourceName{claimsKey, nativeGPUKey, gpuKey, memoryKey} {
		if v, ok := used[k]; ok {
			text += fmt.Sprintf("%s=%s ", k, v.String())
		}
	}
	return text
}

func relabel(t *testing.T, namespace string, labels map[string]string) {
	t.Helper()
	ns := &corev1.Namespace{}
	if err := cp.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, ns); err != nil {
		t.Fatal(err)
	}
	ns.Labels = labels
	if err := cp.Client.Update(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
}

func TestWhatThePlatformWritesCostsNoWriteOfOurs(t *testing.T) {
	tn := newTenant(t, "quiet", 2, amounts(gpuKey, 5, nativeGPUKey, 5), nil)
	create(t, claim(tn.projects[0], "one", gpuClass, 1))
	tn.wantUsed(map[string]corev1.ResourceList{tn.projects[0]: amounts(gpuKey, 1), tn.projects[1]: {}})
	before := tn.versions()
	for i := range 50 {
		tn.seed(amounts(gpuKey, i, nativeGPUKey, i))
	}
	// A later quota is in force: the writes before it were seen.
	newTenant(t, "later", 1, amounts(gpuKey, 1), nil)
	if diff := cmp.Diff(before, tn.versions()); diff != "" {
		t.Errorf("ledger or views were written: %s", diff)
	}
	wantCleanAudit(t)
}

// versions of the ledger, under no project, and of the views.
func (tn *tenant) versions() map[string]string {
	tn.t.Helper()
	l, err := tn.ledger(tn.t.Context())
	if err != nil {
		tn.t.Fatal(err)
	}
	out := map[string]string{"": l.ResourceVersion}
	views, err := tn.views(tn.t.Context())
	if err != nil {
		tn.t.Fatal(err)
	}
	for project, a := range views {
		out[project] = a.ResourceVersion
	}
	return out
}

func TestADeletedQuotaLeavesNothingAndIsNotTouched(t *testing.T) {
	tn := newTenant(t, "deleted", 2, amounts(gpuKey, 5), nil)
	create(t, claim(tn.projects[0], "one", gpuClass, 1))
	tn.wantUsed(map[string]corev1.ResourceList{tn.projects[0]: amounts(gpuKey, 1), tn.projects[1]: {}})
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: tn.name}}
	if err := cp.Client.Delete(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if _, err := tn.quota(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("a deleted quota waits for something: %v", err)
	}
	harness.Eventually(t, "nothing left", func(ctx context.Context) error {
		views, err := tn.views(ctx)
		if err != nil || len(views) > 0 {
			return fmt.Errorf("%d views, %w", len(views), err)
		}
		if _, err := tn.ledger(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ledger: %w", err)
		}
		return nil
	})
	wantCleanAudit(t)
}
