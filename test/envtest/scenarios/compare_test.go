package scenarios

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/scenario"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// newOf returns a zero object of the same type.
func newOf(obj runtime.Object) runtime.Object {
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
}

// gvkOf finds the kind of a reference, which may lack the version.
func gvkOf(r sim.Ref) (schema.GroupVersionKind, error) {
	if r.APIVersion != "" {
		return schema.FromAPIVersionAndKind(r.APIVersion, r.Kind), nil
	}
	for _, group := range []string{"", "apps", "batch", "resource.k8s.io", "quota.openshift.io"} {
		if m, err := cp.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: group, Kind: r.Kind}); err == nil {
			return m.GroupVersionKind, nil
		}
	}
	return schema.GroupVersionKind{}, fmt.Errorf("unknown kind %q", r.Kind)
}

// compare returns the lines in which two values differ: "-" is offline, "+" the API server's.
func compare(what string, want, got any) []string {
	quantities := gocmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
	if diff := gocmp.Diff(want, got, quantities, cmpopts.EquateEmpty()); diff != "" {
		return append([]string{what + ":"}, strings.Split(strings.TrimSuffix(diff, "\n"), "\n")...)
	}
	return nil
}

// differences compares two answers, but for the charge, and for what controllers made of the
// object: that are requests of their own.
func differences(want, got *sim.Result) []string {
	only := func(r *sim.Result) sim.Result {
		out := *r
		out.Charge, out.Made, out.Pods, out.Object = nil, nil, nil, sim.Ref{}
		return out
	}
	return compare("answer", only(want), only(got))
}

// usage compares a quota's account with the step's expectation and with the offline run's.
func (w *world) usage(ctx context.Context, c *sim.Cluster, step *scenario.Usage) ([]string, error) {
	lines, err := w.account(ctx, c, step.Quota, step)
	if len(lines) > 0 {
		lines = append([]string{"quota " + step.Quota + ", expected (-) and on the API server (+):"}, lines...)
	}
	return lines, err
}

// account waits until a quota's account, its conditions and its projections are those of the
// offline run; what the reconcilers write comes after a while.
func (w *world) account(ctx context.Context, c *sim.Cluster, name string, step *scenario.Usage) ([]string, error) {
	want, err := c.Usage(ctx, name)
	if err != nil {
		return nil, err
	}
	var lines []string
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, deadline, true, func(ctx context.Context) (bool, error) {
		got, err := w.read(ctx, name)
		if ctx.Err() != nil {
			return false, ctx.Err() // what was found before is what differs
		}
		if err != nil {
			lines = []string{err.Error()}
			return false, client.IgnoreNotFound(err)
		}
		lines = nil
		if step != nil {
			lines = step.Compare(&got)
		}
		lines = append(lines, w.accounts(&want, &got)...)
		return len(lines) == 0, nil
	})
	if wait.Interrupted(err) {
		err = nil
	}
	return lines, err
}

// settled waits until the conditions of all quotas are those of the offline run. Why a limit is
// exceeded depends on what was the case before, so before the next change the manager has to have
// come to the same.
func (w *world) settled(ctx context.Context, c *sim.Cluster) ([]string, error) {
	for _, name := range c.Quotas() {
		want, err := c.Usage(ctx, name)
		if err != nil {
			return nil, err
		}
		var lines []string
		err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, deadline, true, func(ctx context.Context) (bool, error) {
			l, err := cp.Ledger(ctx, name)
			if err != nil {
				lines = []string{err.Error()}
				return false, client.IgnoreNotFound(err)
			}
			lines = compare("conditions of quota "+name, conditions(want.Conditions), conditions(l.Status.Conditions))
			return len(lines) == 0, nil
		})
		if len(lines) > 0 || err != nil && !wait.Interrupted(err) {
			return lines, err
		}
	}
	return nil, nil
}

// condition is what is compared of a ledger's.
type condition struct{ Type, Key, Status, Reason, Message string }

func conditions(list []v1alpha1.LedgerCondition) []condition {
	var out []condition
	for i := range list {
		l := &list[i]
		out = append(out, condition{l.Type, l.Key, string(l.Status), l.Reason, l.Message})
	}
	return out
}

// accounts compares all of a quota's account.
func (w *world) accounts(want, got *sim.Usage) []string {
	lines := compare("used", quota.Positive(want.Used), quota.Positive(got.Used))
	lines = append(lines, compare("conditions", conditions(want.Conditions), conditions(got.Conditions))...)
	namespaces := slices.Sorted(maps.Keys(want.ByNamespace))
	if !w.openshift { // where the status is the platform's
		lines = append(lines, compare("status", want.Status, got.Status)...)
	}
	lines = append(lines, compare("projected into", namespaces, slices.Sorted(maps.Keys(got.Applied)))...)
	for _, n := range namespaces {
		mine, ok := want.Projected(n)
		theirs := got.Applied[n]
		if ok && theirs != nil {
			lines = append(lines, compare("projection in "+n, mine.Status, theirs.Status)...)
			lines = append(lines, compare("spec of the projection in "+n, mine.Spec, theirs.Spec)...)
		}
	}
	return lines
}

// read returns a quota's account as the API server has it. Holds of what is stored are not
// used yet: they are told as an error.
func (w *world) read(ctx context.Context, name string) (sim.Usage, error) {
	u := sim.Usage{CRQ: &quotav1.ClusterResourceQuota{}, ByNamespace: map[string]corev1.ResourceList{}, Applied: map[string]*quotav1.AppliedClusterResourceQuota{}}
	if err := cp.Client.Get(ctx, client.ObjectKey{Name: name}, u.CRQ); err != nil {
		return u, err
	}
	l := &v1alpha1.DeviceLedger{}
	if err := cp.Client.Get(ctx, client.ObjectKey{Name: name}, l); err != nil {
		return u, err
	}
	u.Status, u.Used, u.Conditions = u.CRQ.Status, l.Status.Used, l.Status.Conditions
	if err := w.readApplied(ctx, name, &u); err != nil {
		return u, err
	}
	for n, a := range u.Applied {
		for _, s := range a.Status.Namespaces {
			if s.Namespace == n {
				u.ByNamespace[n] = s.Status.Used
			}
		}
	}
	for _, h := range l.Status.Holds {
		if !h.Advisory {
			// Shown by the caller as what differs until the manager has seen the object.
			u.Used = quota.Add(u.Used, h.Charge)
			u.Used["holds"] = *resource.NewQuantity(int64(len(l.Status.Holds)), resource.DecimalSI)
		}
	}
	return u, nil
}

// readApplied reads what the projects are shown.
func (w *world) readApplied(ctx context.Context, name string, u *sim.Usage) error {
	if !w.openshift {
		var list quotav1.AppliedClusterResourceQuotaList
		err := cp.Client.List(ctx, &list)
		for i := range list.Items {
			if a := &list.Items[i]; a.Name == name {
				u.Applied[a.Namespace] = a
			}
		}
		return err
	}
	var list v1alpha1.AppliedDeviceQuotaList
	err := cp.Client.List(ctx, &list)
	for i := range list.Items {
		if a := &list.Items[i]; a.Name == name {
			u.Applied[a.Namespace] = &quotav1.AppliedClusterResourceQuota{ObjectMeta: a.ObjectMeta, Spec: a.Spec, Status: a.Status}
		}
	}
	return err
}

// allocate runs the embedded allocator over what the API server has, and compares the devices.
// The claims get them by control.
func (w *world) allocate(ctx context.Context, c *sim.Cluster) ([]string, error) {
	copied, err := sim.New(sim.Options{OpenShift: w.openshift})
	if err != nil {
		return nil, err
	}
	objects, err := w.objects(ctx)
	if err != nil {
		return nil, err
	}
	if err := copied.Apply(ctx, objects...); err != nil {
		return nil, err
	}
	if _, err := copied.Allocate(ctx); err != nil {
		return nil, err
	}
	devices := func(c *sim.Cluster) map[string]*resourceapi.AllocationResult {
		out := map[string]*resourceapi.AllocationResult{}
		for _, claim := range c.Claims() {
			a := claim.Status.Allocation.DeepCopy()
			for i := 0; a != nil && i < len(a.Devices.Results); i++ {
				a.Devices.Results[i].ShareID = nil // a new one each time
			}
			out[claim.Namespace+"/"+claim.Name] = a
		}
		return out
	}
	return compare("allocations", devices(c), devices(copied)), nil
}

// objects returns what the allocator looks at, claims in the order of their creation.
func (w *world) objects(ctx context.Context) ([]runtime.Object, error) {
	lists := []client.ObjectList{&corev1.NamespaceList{}, &corev1.NodeList{}, &resourceapi.DeviceClassList{},
		&resourceapi.ResourceSliceList{}, &resourceapi.DeviceTaintRuleList{}, &resourceapi.ResourceClaimList{}}
	var out []runtime.Object
	for _, list := range lists {
		if err := cp.Client.List(ctx, list); err != nil {
			return nil, err
		}
		items := reflect.ValueOf(list).Elem().FieldByName("Items")
		var objects []client.Object
		for i := range items.Len() {
			o := items.Index(i).Addr().Interface().(client.Object)
			gvk, err := cp.Client.GroupVersionKindFor(o)
			if err != nil {
				return nil, err
			}
			o.GetObjectKind().SetGroupVersionKind(gvk)
			objects = append(objects, o)
		}
		slices.SortStableFunc(objects, func(a, b client.Object) int { return w.order(a) - w.order(b) })
		for _, o := range objects {
			if o.GetNamespace() != barrier && o.GetName() != barrier {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

// order is when a claim was created.
func (w *world) order(o client.Object) int {
	return slices.Index(w.created, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
}
