package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/harness"
)

// Keys of the demo's quota.
const (
	claimsKey = corev1.ResourceName("count/resourceclaims.resource.k8s.io")
	gpuKey    = corev1.ResourceName("gpu.nvidia.com.deviceclass.resource.k8s.io/devices")
	migKey    = corev1.ResourceName("mig.nvidia.com.deviceclass.devicequota.io/devices")
	tpuKey    = corev1.ResourceName("tpu.google.com.deviceclass.devicequota.io/devices")
)

// player plays steps and counts what differed.
type player struct {
	ctx      context.Context
	out      io.Writer
	cp       *harness.ControlPlane
	steps    int
	checks   int
	problems []string
	fatal    error
	// reason of the last create that was not admitted
	reason metav1.StatusReason
}

func (p *player) title(format string, a ...any) {
	p.steps++
	fmt.Fprintf(p.out, "\n%d. %s\n", p.steps, fmt.Sprintf(format, a...))
}

func (p *player) say(format string, a ...any) {
	fmt.Fprintf(p.out, "   %s\n", fmt.Sprintf(format, a...))
}

// check prints what was expected and what happened.
func (p *player) check(what, want, got string) {
	p.checks++
	if want == got {
		p.say("ok    %s: %s", what, got)
		return
	}
	p.problems = append(p.problems, fmt.Sprintf("step %d, %s: expected %q, got %q", p.steps, what, want, got))
	p.say("WRONG %s: expected %s", what, want)
	p.say("      %s  got %s", strings.Repeat(" ", len(what)), got)
}

// result returns an error that lists what differed.
func (p *player) result() error {
	if p.fatal != nil {
		return p.fatal
	}
	if len(p.problems) > 0 {
		return fmt.Errorf("%d of %d checks differed:\n  %s", len(p.problems), p.checks, strings.Join(p.problems, "\n  "))
	}
	fmt.Fprintf(p.out, "\nAll %d checks of %d steps are as expected.\n", p.checks, p.steps)
	return nil
}

// load reads the first object of an example.
func (p *player) load(path string) *unstructured.Unstructured {
	objs, err := harness.Objects(filepath.Join(harness.Root(), "examples", path))
	if err == nil && len(objs) == 0 {
		err = fmt.Errorf("%s: no object", path)
	}
	if err != nil {
		p.stop(err)
		return &unstructured.Unstructured{Object: map[string]any{}}
	}
	return objs[0]
}

// apply applies an example file.
func (p *player) apply(path string) {
	p.say("$ kubectl apply -f examples/%s", path)
	if err := p.cp.ApplyPath(p.ctx, filepath.Join(harness.Root(), "examples", path)); err != nil {
		p.stop(err)
	}
}

func (p *player) stop(err error) {
	if p.fatal == nil {
		p.fatal = err
	}
}

// admitted is what check prints for an admitted request.
const admitted = "admitted"

// create creates an object, prints the answer as kubectl does, and returns it.
func (p *player) create(u *unstructured.Unstructured, how string) string {
	p.say("$ kubectl create %s", how)
	err := p.cp.Client.Create(p.ctx, u)
	p.reason = apierrors.ReasonForError(err)
	switch {
	case err == nil:
		p.say("%s/%s created", strings.ToLower(u.GetKind()), u.GetName())
		return admitted
	case p.reason == metav1.StatusReasonUnknown:
		p.stop(err)
	}
	for _, line := range wrap("Error from server ("+string(p.reason)+"): "+err.Error(), 110) {
		p.say("  %s", line)
	}
	return err.Error()
}

// named returns a copy of the object with another name and namespace.
func named(u *unstructured.Unstructured, namespace, name string) *unstructured.Unstructured {
	c := u.DeepCopy()
	c.SetNamespace(namespace)
	c.SetName(name)
	return c
}

// until polls until the condition holds; a timeout is left to the check that follows.
func (p *player) until(cond func(ctx context.Context) (bool, error)) {
	if p.fatal != nil {
		return
	}
	err := wait.PollUntilContextTimeout(p.ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		done, err := cond(ctx)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return done, err
	})
	if err != nil && !wait.Interrupted(err) {
		p.stop(err)
	}
}

// devices waits until a claim is allocated and returns its devices.
func (p *player) devices(namespace, name string) string {
	var claim resourceapi.ResourceClaim
	p.until(func(ctx context.Context) (bool, error) {
		err := p.cp.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &claim)
		return claim.Status.Allocation != nil, err
	})
	if claim.Status.Allocation == nil {
		return "not allocated"
	}
	var out []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		out = append(out, r.Pool+"/"+r.Device)
	}
	return strings.Join(out, " ")
}

// used waits until the quota's status shows the amount and returns what it shows.
func (p *player) used(key corev1.ResourceName, want string) string {
	var crq quotav1.ClusterResourceQuota
	got := ""
	p.until(func(ctx context.Context) (bool, error) {
		err := p.cp.Client.Get(ctx, client.ObjectKey{Name: "team-a"}, &crq)
		q := crq.Status.Total.Used[key]
		got = q.String()
		return got == want, err
	})
	return got
}

// ledger returns the quota's ledger.
func (p *player) ledger() *v1alpha1.DeviceLedger {
	l := &v1alpha1.DeviceLedger{}
	p.until(func(ctx context.Context) (bool, error) {
		err := p.cp.Client.Get(ctx, client.ObjectKey{Name: "team-a"}, l)
		return err == nil, err
	})
	return l
}

// wrap breaks a text into lines of at most width characters at spaces.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(s) {
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}
