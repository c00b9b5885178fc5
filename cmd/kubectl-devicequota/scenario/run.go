package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/webhooks"
)

// Outcome is how a scenario ended.
type Outcome struct {
	Scenario *Scenario
	Elapsed  time.Duration
	// Failure is nil when everything was as expected.
	Failure *Failure
}

// Failure is the step that was not as expected.
type Failure struct {
	// Step from 1.
	Step int
	Verb string
	// Line in the scenario's file.
	Line int
	// Lines say what was expected ("-") and what was found ("+").
	Lines []string
}

// String returns the failure as text of several lines.
func (f *Failure) String() string {
	return strings.Join(f.Lines, "\n")
}

// Beside plays a scenario elsewhere, too: it is called after each step that was as expected,
// with the requests of the step, those of controllers too, in order, and the cluster as it is
// then, which must not be changed. What it returns is not as expected, as Failure.Lines.
type Beside func(ctx context.Context, c *sim.Cluster, step *Step, requests []sim.Request) ([]string, error)

// Run plays the scenario. The error tells that ctx ended.
func Run(ctx context.Context, s *Scenario) (Outcome, error) { return RunBeside(ctx, s, nil) }

// RunBeside is Run with a Beside, which may be nil.
func RunBeside(ctx context.Context, s *Scenario, beside Beside) (Outcome, error) {
	begun := time.Now()
	out := Outcome{Scenario: s}
	var requests []sim.Request
	options := sim.Options{
		AdminAccess: webhooks.AdminAccessPolicy(s.Options.AdminAccess), MayUseAdminAccess: s.Options.MayUseAdminAccess,
		OpenShift: strings.EqualFold(s.Options.Platform, platformOpenShift),
	}
	if beside != nil {
		options.Follow = func(r sim.Request) { requests = append(requests, r) }
	}
	cluster, err := sim.New(options)
	if err != nil {
		return out, err
	}
	for i := range s.Steps {
		step := &s.Steps[i]
		requests = nil
		lines, err := take(ctx, cluster, step)
		if beside != nil && err == nil && len(lines) == 0 {
			lines, err = beside(ctx, cluster, step, requests)
		}
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		if err != nil {
			lines = append(lines, "error: "+err.Error())
		}
		if len(lines) > 0 {
			out.Failure = &Failure{Step: i + 1, Verb: step.verb, Line: step.line, Lines: lines}
			break
		}
	}
	out.Elapsed = time.Since(begun)
	return out, nil
}

// take takes one step and returns what is not as expected.
func take(ctx context.Context, c *sim.Cluster, step *Step) ([]string, error) {
	switch step.verb {
	case verbApply:
		objects := make([]runtime.Object, len(step.objects))
		for i, d := range step.objects {
			objects[i] = d.Object.DeepCopyObject()
		}
		return nil, c.Apply(ctx, objects...)
	case verbCreate, verbUpdate:
		return requests(ctx, c, step)
	case verbDelete:
		t := step.Delete
		r, err := c.Delete(ctx, sim.Ref{APIVersion: t.APIVersion, Kind: t.Kind, Namespace: t.namespace(), Name: t.Name})
		if err != nil {
			return nil, err
		}
		return step.Expect.Compare(&r), nil
	case verbAllocate:
		return allocate(ctx, c, step)
	}
	return usage(ctx, c, step.Usage)
}

func (t *Target) namespace() string {
	if t.Namespace == "" && namespaced(t.Kind) {
		return "default"
	}
	return t.Namespace
}

// requests creates or updates the step's objects; each must be as expected.
func requests(ctx context.Context, c *sim.Cluster, step *Step) ([]string, error) {
	user := sim.User(step.As, step.AsGroups)
	for _, d := range step.objects {
		ask := c.Create
		if step.verb == verbUpdate {
			ask = c.Update
		}
		r, err := ask(ctx, d.Object.DeepCopyObject(), user)
		if err != nil {
			return nil, err
		}
		if lines := step.expectOf(&r).Compare(&r); len(lines) > 0 {
			return append([]string{r.Object.String() + ":"}, lines...), nil
		}
	}
	return nil, nil
}

// expectOf is the step's expectation of one answer: of several objects, only those with pods are
// asked for pods.
func (s *Step) expectOf(r *sim.Result) *Expect {
	if s.Expect == nil || s.Expect.Pods == nil || r.Pods != nil || len(s.objects) == 1 {
		return s.Expect
	}
	e := *s.Expect
	e.Pods = nil
	return &e
}

func allocate(ctx context.Context, c *sim.Cluster, step *Step) ([]string, error) {
	a := step.Allocate
	namespace, n, _ := strings.Cut(a.Claim, "/")
	key := types.NamespacedName{Namespace: namespace, Name: n}
	switch {
	case a.Claim == "":
		done, err := c.Allocate(ctx)
		if err != nil {
			return nil, err
		}
		return step.Expect.CompareAllocation(&done), nil
	case a.Release:
		if err := c.Release(ctx, key); err != nil {
			return nil, err
		}
		return step.Expect.CompareAllocation(pending(c)), nil
	}
	var results []resourceapi.DeviceRequestAllocationResult
	for _, d := range a.Devices {
		r := resourceapi.DeviceRequestAllocationResult{Request: d.Request, Driver: d.Driver, Pool: d.Pool, Device: d.Device,
			ConsumedCapacity: d.ConsumedCapacity, AdminAccess: d.AdminAccess}
		if len(d.ConsumedCapacity) > 0 {
			id := types.UID(fmt.Sprintf("00000000-0000-4000-a000-%012x", len(results)+1))
			r.ShareID = &id
		}
		results = append(results, r)
	}
	if err := c.SetAllocation(ctx, key, results, a.ReservedFor); err != nil {
		return nil, err
	}
	done := pending(c)
	done.Allocated = []types.NamespacedName{key}
	return step.Expect.CompareAllocation(done), nil
}

// pending is an allocation after which the cluster is as it is.
func pending(c *sim.Cluster) *sim.Allocation {
	done := &sim.Allocation{}
	for _, key := range c.Pending() {
		done.Pending = append(done.Pending, sim.Pending{Claim: key, Why: "nobody allocated it"})
	}
	return done
}

// CompareAllocation returns how what the allocator did differs from the expectation, as Compare does.
func (e *Expect) CompareAllocation(done *sim.Allocation) []string {
	if e == nil {
		return nil
	}
	var lines []string
	allocated, pending := []string{}, []string{}
	for _, key := range done.Allocated {
		allocated = append(allocated, key.String())
	}
	for _, p := range done.Pending {
		pending = append(pending, p.Claim.String())
	}
	compare := func(what string, want *[]string, got []string) {
		if want == nil {
			return
		}
		sorted := slices.Sorted(slices.Values(*want))
		slices.Sort(got)
		if !slices.Equal(sorted, got) {
			lines = append(lines, diff(what, strings.Join(sorted, ", "), strings.Join(got, ", "))...)
		}
	}
	compare("allocated", e.Allocated, allocated)
	compare("pending", e.Pending, pending)
	if len(lines) > 0 {
		for _, p := range done.Pending {
			lines = append(lines, fmt.Sprintf("pending %s: %s", p.Claim, p.Why))
		}
	}
	return lines
}

func diff(what, want, got string) []string {
	return []string{"- " + what + ": " + want, "+ " + what + ": " + got}
}
