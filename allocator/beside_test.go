package allocator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
)

// Kubernetes 1.33 and 1.34: each slice of a pool has its own counter sets, whatever their names.
func TestCountersBesideDevicesAreTheirSlicesOwn(t *testing.T) {
	t.Parallel()
	card := func(name string) *resourceapi.ResourceSlice {
		return sliceOf(name, []resourceapi.Device{
			dev(name+"-big", consumes("gpu", "memory=40Gi")), dev(name+"-small", consumes("gpu", "memory=10Gi")),
		}, inPool(driverA, "pool", 1, 2), counterSets(counterSetOf("gpu", "memory=40Gi")))
	}
	for _, c := range []struct {
		name   string
		beside bool
		held   []*resourceapi.ResourceClaim
		count  int64
		want   []string // nil: unfit
	}{
		{"as of 1.35 the devices are not looked at", false, nil, 1, nil},
		{"one of each", true, nil, 2, []string{"a-big", "b-big"}},
		{"two small ones leave room for no big one", true, []*resourceapi.ResourceClaim{holding("h", "pool/a-small"), holding("i", "pool/b-small")}, 1, nil},
		{"three do not fit", true, nil, 3, nil},
		{"what is in use counts in its own slice", true, []*resourceapi.ResourceClaim{holding("h", "pool/a-small")}, 1, []string{"b-big"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := NewBuilder(BuilderOptions{CountersBesideDevices: c.beside})
			b.SetClass(class(classA, driverA))
			b.SetSlice(card("a"))
			b.SetSlice(card("b"))
			a, err := New(b.Snapshot(), StateOf(c.held, DefaultFeatures()), Options{Features: DefaultFeatures()})
			if err != nil {
				t.Fatal(err)
			}
			r, err := a.Allocate(t.Context(), node(node1), []*resourceapi.ResourceClaim{claim("c", req("r", c.count))})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if r.Unfit == nil {
				for _, d := range r.Allocations[0].Devices.Results {
					got = append(got, d.Device)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
}
