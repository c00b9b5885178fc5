//go:build e2e

package versions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	draapiv1beta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	draapiv1beta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// world is one project with a quota, a class and a node with two devices. Its objects are
// written and read in one version.
type world struct {
	t      *testing.T
	cp     *harness.ControlPlane
	name   string
	api    *devices.API
	scheme *runtime.Scheme

	devicesKey, memoryKey corev1.ResourceName
}

func newWorld(t *testing.T, cp *harness.ControlPlane, version string) *world {
	t.Helper()
	w := &world{t: t, cp: cp, name: "in-" + version, scheme: runtime.NewScheme()}
	w.devicesKey = corev1.ResourceName(w.name + ".deviceclass.devicequota.io/devices")
	w.memoryKey = corev1.ResourceName(w.name + ".deviceclass.devicequota.io/capacity.memory")
	var err error
	if w.api, err = devices.NewAPI(version, ""); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(devices.AddToScheme(w.scheme), draapiv1beta1.AddToScheme(w.scheme), draapiv1beta2.AddToScheme(w.scheme)); err != nil {
		t.Fatal(err)
	}
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: map[string]string{corev1.LabelHostname: w.name}}})
	if err := cp.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	driver := w.name + ".example.com"
	w.createDevices("DeviceClass", &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}}}})
	gpu := func(name, memory string) resourceapi.Device {
		return resourceapi.Device{Name: name, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}}}
	}
	w.createDevices("ResourceSlice", &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To(w.name), Pool: resourceapi.ResourcePool{Name: w.name, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{gpu("small", "40Gi"), gpu("big", "80Gi")}}})
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: map[string]string{"world": w.name}}})
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: w.name, Annotations: map[string]string{"devicequota.io/true-down": "Always"}}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"world": w.name}}
	q.Spec.Quota.Hard = corev1.ResourceList{w.devicesKey: resource.MustParse("3"), w.memoryKey: resource.MustParse("200Gi")}
	w.create(q)
	w.eventually("quota in force", func(ctx context.Context) error {
		return cp.Client.Get(ctx, client.ObjectKey{Name: w.name}, &v1alpha1.DeviceLedger{})
	})
	return w
}

// scheduled plays the core path beside the real controllers and scheduler.
func (w *world) scheduled() {
	w.admitFirst()
	w.wantUsed(1, "80Gi") // the largest device that it may get
	w.deny()
	w.create(w.pod("first", corev1.PodResourceClaim{ResourceClaimName: ptr.To("first")}))
	w.wantUsed(1, "40Gi") // the one that the scheduler chose
	w.createDevices("ResourceClaimTemplate", w.template("big", w.bigOnly()))
	w.create(w.pod("made", corev1.PodResourceClaim{ResourceClaimTemplateName: ptr.To("big")}))
	w.wantUsed(2, "120Gi")
	if err := w.cp.Client.DeleteAllOf(w.t.Context(), &corev1.Pod{}, client.InNamespace(w.name), client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
	w.wantUsed(1, "80Gi") // the claim of the template went with its pod, the other one is deallocated
	w.deleteFirst()
	w.wantUsed(0, "0")
}

// allocatedByUs plays it where nobody else allocates.
func (w *world) allocatedByUs() {
	w.admitFirst()
	w.wantUsed(1, "40Gi")
	w.deny()
	w.createDevices("ResourceClaim", w.claim("second", w.bigOnly()))
	w.wantUsed(2, "120Gi")
	second, err := w.api.New("ResourceClaim")
	if err != nil {
		w.t.Fatal(err)
	}
	second.SetNamespace(w.name)
	second.SetName("second")
	if err := w.cp.Client.Delete(w.t.Context(), second); err != nil {
		w.t.Fatal(err)
	}
	w.wantUsed(1, "40Gi")
	w.deleteFirst()
	w.wantUsed(0, "0")
}

// admitFirst creates a claim that leaves out what has defaults.
func (w *world) admitFirst() {
	w.t.Helper()
	first := w.claim("first", resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: w.name}})
	w.eventually("the published devices are known", func(ctx context.Context) error {
		return w.cp.Client.Create(ctx, w.served("ResourceClaim", first))
	})
}

// deny creates what does not fit: a claim now, a template never.
func (w *world) deny() {
	w.t.Helper()
	four := resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: w.name, Count: 4, AllocationMode: resourceapi.DeviceAllocationModeExactCount}}
	err := w.cp.Client.Create(w.t.Context(), w.served("ResourceClaim", w.claim("denied", four)))
	if want := fmt.Sprintf("exceeded quota: %s, requested: ", w.name); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "limited: "+string(w.memoryKey)) && !strings.Contains(err.Error(), string(w.devicesKey)+"=3") {
		w.t.Errorf("a claim of four: want %q, got %v", want, err)
	}
	err = w.cp.Client.Create(w.t.Context(), w.served("ResourceClaimTemplate", w.template("denied", four)))
	if !apierrors.IsForbidden(err) {
		w.t.Errorf("a template of four: %v", err)
	}
}

func (w *world) deleteFirst() {
	w.t.Helper()
	if err := w.cp.Client.Delete(w.t.Context(), w.served("ResourceClaim", w.claim("first"))); err != nil {
		w.t.Fatal(err)
	}
}

// wantUsed waits until the quota's total and what the project sees are this, and both the same.
func (w *world) wantUsed(count int64, memory string) {
	w.t.Helper()
	want := map[string]string{string(w.devicesKey): fmt.Sprint(count), string(w.memoryKey): memory}
	text := func(l corev1.ResourceList) map[string]string {
		m := map[string]string{}
		for k, q := range l {
			m[string(k)] = q.String()
		}
		return m
	}
	w.eventually("usage", func(ctx context.Context) error {
		var q quotav1.ClusterResourceQuota
		if err := w.cp.Client.Get(ctx, client.ObjectKey{Name: w.name}, &q); err != nil {
			return err
		}
		var applied quotav1.AppliedClusterResourceQuota
		if err := w.cp.Client.Get(ctx, client.ObjectKey{Namespace: w.name, Name: w.name}, &applied); err != nil {
			return err
		}
		got := map[string]map[string]string{"quota": text(q.Status.Total.Used), "projection": text(applied.Status.Total.Used)}
		for _, p := range applied.Status.Namespaces {
			got["project "+p.Namespace] = text(p.Status.Used)
		}
		if diff := cmp.Diff(map[string]map[string]string{"quota": want, "projection": want, "project " + w.name: want}, got); diff != "" {
			return fmt.Errorf("used (-want +got):\n%s", diff)
		}
		return nil
	})
}

func (w *world) bigOnly() resourceapi.DeviceRequest {
	expression := fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("50Gi")) > 0`, w.name+".example.com")
	return resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: w.name,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}}
}

func (w *world) claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}
}

func (w *world) template(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: w.claim("", requests...).Spec}}
}

func (w *world) pod(name string, claim corev1.PodResourceClaim) *corev1.Pod {
	claim.Name = "devices"
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: name}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{claim}, TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers: []corev1.Container{{Name: "main", Image: "example.com/none",
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}}}}}}
}

// served returns the object of the kind in the world's version.
func (w *world) served(kind string, obj client.Object) client.Object {
	w.t.Helper()
	if w.api.Version == devices.V1 {
		return obj.DeepCopyObject().(client.Object)
	}
	out, err := w.api.New(kind)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.scheme.Convert(obj.DeepCopyObject(), out, nil); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) createDevices(kind string, obj client.Object) {
	w.t.Helper()
	w.create(w.served(kind, obj))
}

func (w *world) create(obj client.Object) {
	w.t.Helper()
	if err := w.cp.Client.Create(w.t.Context(), obj); err != nil {
		w.t.Fatalf("create %T %s: %v", obj, obj.GetName(), err)
	}
}

func (w *world) eventually(what string, f func(ctx context.Context) error) {
	w.t.Helper()
	harness.Eventually(w.t, what, f)
}

func wantLog(t *testing.T, m *harness.Manager, text string) {
	t.Helper()
	harness.Eventually(t, "the manager's log", func(context.Context) error {
		if !strings.Contains(m.Log(), text) {
			return fmt.Errorf("no %s in:\n%s", text, m.LogTail(20))
		}
		return nil
	})
}
