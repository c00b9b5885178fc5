package openshift

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
)

// policyControllerUser is the user name of OpenShift's own controller.
const policyControllerUser = "system:serviceaccount:openshift-infra:cluster-quota-reconciliation-controller"

// policyController keeps one quota's status as OpenShift's cluster-policy-controller does
// with a forced recompute: each project's entry is replaced by what the platform's own
// evaluators count, other keys go with it, the total is corrected by the difference, and one
// guarded write follows if that changed anything.
//
// Source of the rules: syncQuotaForNamespaces in openshift/cluster-policy-controller
// pkg/quota/clusterquotareconciliation/reconciliation_controller.go (4.21).
type policyController struct {
	client client.Client
	quota  string

	mu     sync.Mutex // protects the following
	writes int
	errs   []error
}

// startPolicyController runs one until the test ends or stop is called.
func startPolicyController(t *testing.T, quotaName string) (c *policyController, stop func()) {
	t.Helper()
	cfg, _, err := cp.User(policyControllerUser, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(cfg, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	c = &policyController{client: cl, quota: quotaName}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.run(ctx) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return c, stop
}

func (c *policyController) run(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wrote, err := c.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if wrote {
			c.writes++
		}
		if err != nil {
			c.errs = append(c.errs, err)
		}
		c.mu.Unlock()
	}
}

func (c *policyController) stats() (writes int, errs []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes, slices.Clone(c.errs)
}

// sync recomputes all projects and writes once.
func (c *policyController) sync(ctx context.Context) (wrote bool, err error) {
	q := &quotav1.ClusterResourceQuota{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: c.quota}, q); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(q.Spec.Selector.LabelSelector)
	if err != nil {
		return false, err
	}
	covered, err := c.covered(ctx, selector)
	if err != nil || len(covered) == 0 {
		return false, err // returns early when nothing matches
	}
	old := q.DeepCopy()
	entries := map[string]corev1.ResourceQuotaStatus{}
	for _, n := range q.Status.Namespaces {
		entries[n.Namespace] = n.Status
	}
	total := quota.Copy(q.Status.Total.Used)
	if total == nil {
		total = corev1.ResourceList{}
	}
	for project, entry := range entries {
		if !slices.Contains(covered, project) {
			total = add(total, entry.Used, -1)
			delete(entries, project)
		}
	}
	for _, project := range covered {
		used, err := c.evaluate(ctx, project, q.Spec.Quota.Hard)
		if err != nil {
			return false, err
		}
		total = add(add(total, entries[project].Used, -1), used, 1)
		entries[project] = corev1.ResourceQuotaStatus{Hard: quota.Copy(q.Spec.Quota.Hard), Used: used}
	}
	q.Status.Total = corev1.ResourceQuotaStatus{Hard: quota.Copy(q.Spec.Quota.Hard), Used: total}
	q.Status.Namespaces = nil
	for _, project := range slices.Sorted(maps.Keys(entries)) {
		q.Status.Namespaces = append(q.Status.Namespaces, quotav1.ResourceQuotaStatusByNamespace{Namespace: project, Status: entries[project]})
	}
	if equality.Semantic.DeepEqual(old.Status, q.Status) {
		return false, nil
	}
	if err := c.client.Status().Update(ctx, q); err != nil {
		return false, fmt.Errorf("write of the status: %w", err)
	}
	return true, nil
}

func (c *policyController) covered(ctx context.Context, selector labels.Selector) ([]string, error) {
	var list corev1.NamespaceList
	if err := c.client.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out, nil
}

// evaluate counts what the platform's evaluator for claims counts: objects, and devices per
// class as requested.
func (c *policyController) evaluate(ctx context.Context, project string, hard corev1.ResourceList) (corev1.ResourceList, error) {
	var list resourceapi.ResourceClaimList
	if err := c.client.List(ctx, &list, client.InNamespace(project)); err != nil {
		return nil, err
	}
	used := corev1.ResourceList{claimsKey: *resource.NewQuantity(int64(len(list.Items)), resource.DecimalSI), nativeGPUKey: *resource.NewQuantity(0, resource.DecimalSI)}
	for i := range list.Items {
		for _, r := range list.Items[i].Spec.Devices.Requests {
			if r.Exactly != nil && r.Exactly.DeviceClassName == gpuClass {
				n := used[nativeGPUKey]
				n.Add(*resource.NewQuantity(r.Exactly.Count, resource.DecimalSI))
				used[nativeGPUKey] = n
			}
		}
	}
	maps.DeleteFunc(used, func(k corev1.ResourceName, _ resource.Quantity) bool { _, limited := hard[k]; return !limited })
	return used, nil
}

// add returns a + sign*b; a key that gets zero stays, and one that gets negative does too.
func add(a, b corev1.ResourceList, sign int) corev1.ResourceList {
	out := quota.Copy(a)
	for k, v := range b {
		sum := out[k]
		if sign < 0 {
			sum.Sub(v)
		} else {
			sum.Add(v)
		}
		out[k] = sum
	}
	return out
}
