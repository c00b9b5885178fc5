package install

import (
	"context"
	"strings"
	"sync"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/test/harness"
)

const deviceKey = "gpu.deviceclass.devicequota.io/devices"

// deviceQuota limits the devices of class gpu in the projects of a team.
func deviceQuota(team string, devices string) *quotav1.ClusterResourceQuota {
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: team}}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}}
	q.Spec.Quota.Hard = corev1.ResourceList{deviceKey: resource.MustParse(devices)}
	return q
}

func claim(ns, name string, devices int64) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: devices}}}
	return c
}

func pod(ns, name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	return p
}

func create(t *testing.T, cp *harness.ControlPlane, objs ...client.Object) {
	t.Helper()
	for _, o := range objs {
		if err := client.IgnoreAlreadyExists(cp.Client.Create(t.Context(), o)); err != nil {
			t.Fatalf("%T %s/%s: %v", o, o.GetNamespace(), o.GetName(), err)
		}
	}
}

// load creates and deletes claims, from several clients, until it is ended.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex // protects following
	// requests that were made, and the errors of those that failed
	requests int
	failures []string
}

func startLoad(t *testing.T, cp *harness.ControlPlane, ns string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	for range 4 {
		l.done.Go(func() {
			for ctx.Err() == nil {
				c := claim(ns, "", 1)
				c.GenerateName = "load-"
				// Each request is brought to its end: a claim that is left would get a device.
				err := cp.Client.Create(t.Context(), c)
				if err == nil {
					err = cp.Client.Delete(t.Context(), c)
				}
				l.note(err)
			}
		})
	}
	t.Cleanup(func() { l.cancel(); l.done.Wait() })
	return l
}

func (l *load) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if err != nil {
		l.failures = append(l.failures, err.Error())
	}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

// end stops the load; any failed request is an error.
func (l *load) end(t *testing.T, what string) {
	t.Helper()
	l.cancel()
	l.done.Wait()
	if len(l.failures) > 0 {
		t.Errorf("%s: %d of %d requests failed:\n%s", what, len(l.failures), l.requests, strings.Join(l.failures[:min(5, len(l.failures))], "\n"))
	} else {
		t.Logf("%s: %d requests, none failed", what, l.requests)
	}
}
