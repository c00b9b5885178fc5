package envtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// wantClear fails unless err is a 4xx that contains the text.
func wantClear(t *testing.T, err error, contains string) {
	t.Helper()
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code < 400 || status.Status().Code > 499 {
		t.Fatalf("want a 4xx, got: %v", err)
	}
	if !strings.Contains(err.Error(), contains) {
		t.Errorf("want %q in: %v", contains, err)
	}
}

func TestABadClaimIsAClearErrorAndLeavesNoHold(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	request := func(fields map[string]any) *unstructured.Unstructured {
		r := map[string]any{"name": "r0"}
		for k, v := range fields {
			r[k] = v
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
			"metadata": map[string]any{"namespace": tn.namespaces[0], "name": "bad"},
			"spec":     map[string]any{"devices": map[string]any{"requests": []any{r}}},
		}}
	}
	exactly := func(fields map[string]any) map[string]any {
		e := map[string]any{"deviceClassName": "gpu.nvidia.com"}
		for k, v := range fields {
			e[k] = v
		}
		return map[string]any{"exactly": e}
	}
	for _, c := range []struct {
		name   string
		object *unstructured.Unstructured
		want   string
	}{
		{"an unknown field", request(exactly(map[string]any{"gpus": int64(1)})), "gpus"},
		{"neither exactly nor firstAvailable", request(nil), "spec.devices.requests[0]"},
		{"a negative count", request(exactly(map[string]any{"count": int64(-1)})), "spec.devices.requests[0].exactly.count"},
		{"a fractional count", request(exactly(map[string]any{"count": 1.5})), "count"},
		{"a selector that does not compile", request(exactly(map[string]any{"selectors": []any{map[string]any{"cel": map[string]any{"expression": "device.nonsense("}}}})), "selectors[0].cel.expression"},
		{"an unknown allocation mode", request(exactly(map[string]any{"allocationMode": "Some"})), "allocationMode"},
		{"no class", request(map[string]any{"exactly": map[string]any{}}), "deviceClassName"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantClear(t, cp.Client.Create(t.Context(), c.object, client.FieldValidation("Strict")), c.want)
		})
	}
	tn.wantUsed(hard(string(gpuKey), "0"))
}

func TestABadQuotaIsAClearErrorThatNamesTheField(t *testing.T) {
	good := func(name string) *quotav1.ClusterResourceQuota {
		q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
		q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tenant": "nobody"}}
		q.Spec.Quota.Hard = hard(string(gpuKey), "1")
		return q
	}
	for i, c := range []struct {
		name  string
		spoil func(q *quotav1.ClusterResourceQuota)
		want  string
	}{
		{"a negative limit", func(q *quotav1.ClusterResourceQuota) { q.Spec.Quota.Hard = hard(string(gpuKey), "-1") }, "spec.quota.hard[" + string(gpuKey) + "]"},
		{"a fractional device limit", func(q *quotav1.ClusterResourceQuota) { q.Spec.Quota.Hard = hard(string(gpuKey), "1500m") }, "spec.quota.hard[" + string(gpuKey) + "]"},
		{"an empty selector", func(q *quotav1.ClusterResourceQuota) { q.Spec.Selector = quotav1.ClusterResourceQuotaSelector{} }, "spec.selector"},
		{"an empty label selector", func(q *quotav1.ClusterResourceQuota) { q.Spec.Selector.LabelSelector = &metav1.LabelSelector{} }, "spec.selector"},
		{"a malformed key of ours", func(q *quotav1.ClusterResourceQuota) {
			q.Spec.Quota.Hard = hard("gpu.nvidia.com.deviceclass.devicequota.io/gpus", "1")
		}, "spec.quota.hard[gpu.nvidia.com.deviceclass.devicequota.io/gpus]"},
		{"an unknown enforcement", func(q *quotav1.ClusterResourceQuota) { q.Annotations["devicequota.io/enforcement"] = "Sometimes" }, "metadata.annotations[devicequota.io/enforcement]"},
		{"an unknown true-down", func(q *quotav1.ClusterResourceQuota) { q.Annotations["devicequota.io/true-down"] = "Maybe" }, "metadata.annotations[devicequota.io/true-down]"},
		{"a selector key without its expression", func(q *quotav1.ClusterResourceQuota) {
			q.Spec.Quota.Hard = hard("h100.selector.devicequota.io/devices", "1")
		}, "selector.devicequota.io/h100"},
		{"a selector that does not compile", func(q *quotav1.ClusterResourceQuota) {
			q.Spec.Quota.Hard = hard("h100.selector.devicequota.io/devices", "1")
			q.Annotations["selector.devicequota.io/h100"] = "device.nonsense("
		}, "selector.devicequota.io/h100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := good(fmt.Sprintf("bad-quota-%d", i))
			c.spoil(q)
			err := cp.Client.Create(t.Context(), q)
			if err == nil {
				_ = cp.Client.Delete(context.Background(), q) // it should not be there
			}
			wantClear(t, err, c.want)
		})
	}
}

func TestAHugeCountIsChargedExactly(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2"))
	err := cp.Client.Create(t.Context(), claim(tn.namespaces[0], "huge", "gpu.nvidia.com", 1<<62))
	wantDenied(t, err, "requested: "+string(gpuKey)+"=4611686018427387904")
	c := claim(tn.namespaces[0], "huger", "gpu.nvidia.com", 1<<63-1)
	c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, *c.Spec.Devices.Requests[0].DeepCopy())
	c.Spec.Devices.Requests[1].Name = "r1"
	wantDenied(t, cp.Client.Create(t.Context(), c), "requested: "+string(gpuKey)+"=18446744073709551614")
}

// warnings collects the warnings that the API server sends.
type warnings struct {
	mu  sync.Mutex // protects following
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.all, "\n")
}

// warned returns a client and the warnings that its requests raise.
func warned(t *testing.T) (client.Client, *warnings) {
	t.Helper()
	w := &warnings{}
	cfg := rest.CopyConfig(cp.Config)
	cfg.WarningHandler = w
	c, err := client.New(cfg, client.Options{Scheme: cp.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

func TestAClassThatDoesNotExistIsWarnedOfAndChargedByItsCount(t *testing.T) {
	key := "nothing.example.com.deviceclass.devicequota.io/devices"
	tn := newTenant(t, 1, hard(key, "3"))
	c, w := warned(t)
	if err := c.Create(t.Context(), claim(tn.namespaces[0], "unknown", "nothing.example.com", 2)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(w.String(), "UnknownClass") || !strings.Contains(w.String(), "nothing.example.com") {
		t.Errorf("want an UnknownClass warning that names the class, got: %s", w)
	}
	tn.wantUsed(hard(key, "2"))
	wantDenied(t, cp.Client.Create(t.Context(), claim(tn.namespaces[0], "more", "nothing.example.com", 2)), "exceeded quota")
}

func TestFirstAvailableIsChargedAsTheLargestAlternative(t *testing.T) {
	tn := newTenant(t, 1, hard(string(gpuKey), "2", string(migKey), "1"))
	c := claim(tn.namespaces[0], "first", "gpu.nvidia.com", 1)
	c.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "r0", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "one", DeviceClassName: "gpu.nvidia.com"},
		{Name: "two", DeviceClassName: "gpu.nvidia.com", Count: 2, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
		{Name: "mig", DeviceClassName: "mig.nvidia.com"},
	}}
	create(t, c)
	tn.wantUsed(hard(string(gpuKey), "2", string(migKey), "1"))
}
