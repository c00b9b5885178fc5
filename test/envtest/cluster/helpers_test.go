package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const (
	objectsKey = "count/resourceclaims.resource.k8s.io"
	driver     = "gpu.example.com"
)

// calls counts what a replica asks of the API server, by kind: what it writes, and of that what
// it wrote, which a conflict is not.
type calls struct {
	mu     sync.Mutex // protects the following
	counts map[string]int
}

func (c *calls) add(verb string, obj any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[fmt.Sprintf("%s %T", verb, obj)]++
}

func (c *calls) of(verb string, obj any) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[fmt.Sprintf("%s %T", verb, obj)]
}

func (c *calls) funcs() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
			c.add("get", obj)
			return w.Get(ctx, key, obj, o...)
		},
		Create: func(ctx context.Context, w client.WithWatch, obj client.Object, o ...client.CreateOption) error {
			return c.write(obj, func() error { return w.Create(ctx, obj, o...) })
		},
		Update: func(ctx context.Context, w client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
			return c.write(obj, func() error { return w.Update(ctx, obj, o...) })
		},
		Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, o ...client.DeleteOption) error {
			return c.write(obj, func() error { return w.Delete(ctx, obj, o...) })
		},
		SubResourceUpdate: func(ctx context.Context, w client.Client, sub string, obj client.Object, o ...client.SubResourceUpdateOption) error {
			return c.write(obj, func() error { return w.SubResource(sub).Update(ctx, obj, o...) })
		},
	}
}

func (c *calls) write(obj any, f func() error) error {
	c.add("write", obj)
	err := f()
	if err == nil {
		c.add("wrote", obj)
	}
	return err
}

// scene is what one test has for itself: projects of its own label, a class and devices.
type scene struct {
	t    *testing.T
	name string
}

func newScene(t *testing.T, name string, projects, gpus int) *scene {
	t.Helper()
	s := &scene{t: t, name: name}
	for i := range projects {
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.project(i), Labels: map[string]string{"scene": name}}})
	}
	s.create(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", name+"."+driver)}}},
	}})
	if gpus > 0 {
		s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s.create(s.slice(gpus))
	}
	return s
}

func (s *scene) slice(gpus int) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: s.name + "." + driver, NodeName: ptr.To(s.name), Pool: resourceapi.ResourcePool{Name: s.name, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range gpus {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name:     fmt.Sprintf("gpu-%d", i),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	return slice
}

func (s *scene) project(i int) string { return fmt.Sprintf("%s-%d", s.name, i) }
func (s *scene) devicesKey() corev1.ResourceName {
	return corev1.ResourceName(s.name + ".deviceclass.devicequota.io/devices")
}
func (s *scene) memoryKey() corev1.ResourceName {
	return corev1.ResourceName(s.name + ".deviceclass.devicequota.io/capacity.memory")
}

func (s *scene) create(obj client.Object) {
	s.t.Helper()
	if err := cp.Client.Create(context.Background(), obj); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := cp.Client.Delete(context.Background(), obj); err != nil && !apierrors.IsNotFound(err) {
			s.t.Error(err)
		}
	})
}

func (s *scene) quota(hard corev1.ResourceList) *quotav1.ClusterResourceQuota {
	s.t.Helper()
	crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	crq.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"scene": s.name}}
	crq.Spec.Quota.Hard = hard
	s.create(crq)
	return crq
}

func (s *scene) claim(project int, name string, count int64) *resourceapi.ResourceClaim {
	s.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.project(project), Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: s.name, Count: count}}}
	s.create(claim)
	return claim
}

// list makes a ResourceList of pairs of key and quantity.
func list(pairs ...any) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(fmt.Sprint(pairs[i]))] = resource.MustParse(fmt.Sprint(pairs[i+1]))
	}
	return out
}
