package allocator

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
)

// nodesWith is an allocator with nodes n0, n1, ... that have that many devices each.
func nodesWith(t *testing.T, counts ...int) *Allocator {
	t.Helper()
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	for i, n := range counts {
		name := fmt.Sprintf("n%d", i)
		b.SetNode(node(name))
		if n > 0 {
			b.SetSlice(sliceOf(name, devs("d", n), inPool(driverA, name, 1, 1), onNode(name)))
		}
	}
	a, err := New(b.Snapshot(), State{}, Options{Features: DefaultFeatures()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestNodesYieldsWhereItFits(t *testing.T) {
	t.Parallel()
	a := nodesWith(t, 1, 2, 0, 4, 2)
	var got []string
	for fit, err := range a.Nodes(t.Context(), []*resourceapi.ResourceClaim{claim("c", req("r", 2))}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fit.Node.Name+": "+short(fit.Result.Allocations))
	}
	want := []string{"n1: r=d-0 r=d-1", "n3: r=d-0 r=d-1", "n4: r=d-0 r=d-1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	a := nodesWith(t, 1, 4, 0, 2, 2)
	claims := []*resourceapi.ResourceClaim{claim("c", req("r", 2))}
	for choice, want := range map[Choice]string{FirstFit: "n1", BestFit: "n3"} {
		fit, err := a.Choose(t.Context(), claims, choice)
		if err != nil || fit.Node == nil || fit.Node.Name != want {
			t.Errorf("choice %d: want %s, got %v, %v", choice, want, fit.Node, err)
		}
	}
	fit, err := a.Choose(t.Context(), []*resourceapi.ResourceClaim{claim("c", req("r", 5))}, BestFit)
	if err != nil || fit.Node != nil || fit.Result.Unfit == nil || !fit.Result.Unfit.Permanent {
		t.Errorf("want permanently unfit, got %+v, %v", fit, err)
	}
	if _, err := a.Choose(t.Context(), []*resourceapi.ResourceClaim{claim("c", req("r", 0))}, FirstFit); err == nil {
		t.Error("want an error for a count of 0")
	}
}

// The last small partition goes where it leaves nothing that only it could use.
func TestBestFitStrandsLeast(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{})
	b.SetClass(class(classA, driverA))
	for _, name := range []string{"n0", "n1"} {
		b.SetNode(node(name))
		b.SetSlice(sliceOf(name+"-c", nil, inPool(driverA, name, 1, 2), onNode(name), counterSets(counterSetOf("gpu", "memory=40Gi"))))
		b.SetSlice(sliceOf(name+"-d", []resourceapi.Device{
			dev("small", consumes("gpu", "memory=10Gi"), attr("size", 1)), dev("mid", consumes("gpu", "memory=30Gi"), attr("size", 3)), dev("big", consumes("gpu", "memory=40Gi"), attr("size", 4)),
		}, inPool(driverA, name, 1, 2), onNode(name)))
	}
	a, err := New(b.Snapshot(), StateOf([]*resourceapi.ResourceClaim{holding("h", "n1/mid")}, DefaultFeatures()), Options{Features: DefaultFeatures()})
	if err != nil {
		t.Fatal(err)
	}
	fit, err := a.Choose(t.Context(), []*resourceapi.ResourceClaim{claim("c", req("r", 1, selecting(`device.attributes["`+driverA+`"].size == 1`)))}, BestFit)
	if err != nil || fit.Node == nil || fit.Node.Name != "n1" {
		t.Errorf("want n1, got %v, %v", fit.Node, err)
	}
}

func TestBudgetsAreOutcomesOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 8))}, claims: []*resourceapi.ResourceClaim{claim("c", req("r", 8))}, o: Options{MaxSteps: 5}}
	if r, err := s.allocate(t); !errors.Is(err, ErrSteps) || r.Unfit != nil {
		t.Errorf("steps: want ErrSteps, got %v, %v", r.Unfit, err)
	}
	s.o = Options{MaxCost: 3}
	if r, err := s.allocate(t); !errors.Is(err, ErrSteps) || r.Unfit != nil {
		t.Errorf("cost: want ErrSteps, got %v, %v", r.Unfit, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no time")
	cancel(reason)
	s = scenario{slices: []*resourceapi.ResourceSlice{sliceOf("s", devs("d", 128))}}
	if r, err := s.allocator(t).Allocate(ctx, node(node1), []*resourceapi.ResourceClaim{claim("c", req("r", 0, all))}); !errors.Is(err, reason) || r.Unfit != nil {
		t.Errorf("context: want its cause, got %v, %v", r.Unfit, err)
	}
}
