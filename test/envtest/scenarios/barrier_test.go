package scenarios

import (
	"context"
	"fmt"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
)

// barrier waits until the manager has seen what was written. It has a project and a quota of
// its own: each claim that is admitted there makes a commit to the quota's ledger, which tells
// the versions that the manager goes by.
const barrier = "barrier"

// deadline of everything that is waited for: only a failure reaches it.
const deadline = 3 * time.Minute

// seen waits until the manager has seen the versions, and all claims of before.
func seen(ctx context.Context, versions quota.Vector) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, deadline, true, func(ctx context.Context) (bool, error) {
		c := builders.Claim(barrier, barrier, builders.Exactly("r", barrier, 1))
		c.UID, c.ResourceVersion = "", ""
		if err := cp.Client.Create(ctx, c); err != nil {
			return false, err
		}
		if err := cp.Client.Delete(ctx, c); err != nil {
			return false, err
		}
		if versions[quota.Claims] == 0 {
			v, err := quota.ParseVersion(c.ResourceVersion)
			if err != nil {
				return false, err
			}
			versions[quota.Claims] = v
		}
		l := &v1alpha1.DeviceLedger{}
		if err := cp.Client.Get(ctx, client.ObjectKey{Name: barrier}, l); err != nil {
			last = err
			return false, client.IgnoreNotFound(err)
		}
		observed, err := quota.StoredVersions(&l.Status)
		if err != nil {
			return false, err
		}
		last = fmt.Errorf("observed %v, want %v", observed, versions)
		return observed.AtLeast(versions), nil
	})
	if err != nil {
		return fmt.Errorf("the manager's caches: %w: %w", err, last)
	}
	return nil
}

// raiseBarrier makes the barrier's project and quota.
func raiseBarrier(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: barrier, Labels: map[string]string{barrier: ""}}}
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: barrier}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{barrier: ""}}
	q.Spec.Quota.Hard = builders.List("count/resourceclaims.resource.k8s.io", "1000000", barrier+".deviceclass.devicequota.io/devices", "1000000")
	for _, o := range []client.Object{ns, q} {
		if err := cp.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// componentOf tells what a written object is observed as. No charge depends on a DeviceTaintRule.
func componentOf(kind string) (quota.Component, bool) {
	c, ok := map[string]quota.Component{
		"Namespace": quota.Namespaces, "ClusterResourceQuota": quota.Quotas, "ResourceSlice": quota.Slices,
		"DeviceClass": quota.Classes, "Node": quota.Nodes, "ResourceClaim": quota.Claims,
	}[kind]
	return c, ok
}

// note adds the object's version to those to be seen.
func note(versions *quota.Vector, kind, resourceVersion string) error {
	c, ok := componentOf(kind)
	if !ok {
		return nil
	}
	v, err := quota.ParseVersion(resourceVersion)
	if err == nil {
		versions[c] = max(versions[c], v)
	}
	return err
}

// deletionsSeen waits until the manager has seen that devices, classes and nodes are gone:
// what is deleted tells no version, what is made afterwards does.
func deletionsSeen(ctx context.Context) error {
	var versions quota.Vector
	last := []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: barrier}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: barrier}},
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: barrier}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "barrier.example.com", NodeName: new(string), Pool: resourceapi.ResourcePool{Name: barrier, Generation: 1, ResourceSliceCount: 1}}},
	}
	for _, o := range last {
		if s, ok := o.(*resourceapi.ResourceSlice); ok {
			*s.Spec.NodeName = barrier
		}
		if err := cp.Client.Create(ctx, o); err != nil {
			return err
		}
		gvk, err := cp.Client.GroupVersionKindFor(o)
		if err != nil {
			return err
		}
		if err := note(&versions, gvk.Kind, o.GetResourceVersion()); err != nil {
			return err
		}
	}
	if err := seen(ctx, versions); err != nil {
		return err
	}
	for _, o := range last {
		if err := cp.Client.Delete(ctx, o); err != nil {
			return err
		}
	}
	return nil
}
