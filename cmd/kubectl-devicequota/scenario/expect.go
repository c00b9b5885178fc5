package scenario

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// wantsAllowed is what allowed must be.
func (e *Expect) wantsAllowed() bool {
	if e.Allowed != nil {
		return *e.Allowed
	}
	return e.Reason == "" && len(e.Message) == 0
}

// Compare returns how the answer to a request differs from the expectation, as lines of "-"
// (expected) and "+" (found); none when it does not. Without an expectation (nil) it must be yes.
func (e *Expect) Compare(r *sim.Result) []string {
	if e == nil {
		e = &Expect{}
	}
	var lines []string
	if want := e.wantsAllowed(); want != r.Allowed {
		lines = append(lines, diff("allowed", fmt.Sprint(want), fmt.Sprint(r.Allowed))...)
	}
	if e.Reason != "" && e.Reason != r.Reason && !slices.Contains(reasons(r), e.Reason) {
		lines = append(lines, diff("reason", e.Reason, strings.Join(reasons(r), ", "))...)
	}
	warnings := strings.Join(append(sim.JoinWarnings(r.Warnings), r.Warnings...), "\n")
	for _, text := range e.Message {
		if !strings.Contains(r.Message, text) {
			lines = append(lines, "- message with: "+text)
		}
	}
	for _, text := range e.Warnings {
		if !strings.Contains(warnings, text) {
			lines = append(lines, "- warning with: "+text)
		}
	}
	for _, text := range e.NotMessage {
		if strings.Contains(r.Message, text) || strings.Contains(warnings, text) {
			lines = append(lines, "+ which must not appear: "+text)
		}
	}
	if e.NoWarnings && len(r.Warnings) > 0 {
		lines = append(lines, "- no warnings")
	}
	for _, n := range slices.Sorted(maps.Keys(e.Charge)) {
		lines = append(lines, amounts("charge."+n, e.Charge[n], r.Charge[n])...)
	}
	if e.Pods != nil && (r.Pods == nil || *e.Pods != *r.Pods) {
		lines = append(lines, diff("pods", podsText(e.Pods), podsText(r.Pods))...)
	}
	if len(lines) > 0 {
		if r.Message != "" {
			lines = append(lines, "+ message: "+r.Message)
		}
		for _, w := range sim.JoinWarnings(r.Warnings) {
			lines = append(lines, "+ warning: "+w)
		}
	}
	return lines
}

// reasons are those of the answer, and of its warnings.
func reasons(r *sim.Result) []string {
	var out []string
	if r.Reason != "" {
		out = append(out, r.Reason)
	}
	for _, w := range r.Warnings {
		if reason, _, ok := strings.Cut(w, ": "); ok && !slices.Contains(out, reason) {
			out = append(out, reason)
		}
	}
	return out
}

func podsText(p *sim.Pods) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%d admitted, %d denied", p.Admitted, p.Denied)
}

// amounts compares the keys that are wanted; a key that is missing is 0.
func amounts(what string, want, got corev1.ResourceList) []string {
	var lines []string
	for _, key := range quota.SortedKeys(want) {
		w, g := want[key], got[key]
		if w.Cmp(g) != 0 {
			lines = append(lines, diff(what+"."+string(key), w.String(), g.String())...)
		}
	}
	return lines
}

// usage compares a quota's account in the cluster.
func usage(ctx context.Context, c *sim.Cluster, want *Usage) ([]string, error) {
	got, err := c.Usage(ctx, want.Quota)
	if err != nil {
		return nil, err
	}
	return want.Compare(&got), nil
}

// Compare returns how a quota's account differs from the expectation, as Expect.Compare does.
func (u *Usage) Compare(got *sim.Usage) []string {
	lines := amounts("used", u.Used, got.Used)
	for _, n := range slices.Sorted(maps.Keys(u.Namespaces)) {
		lines = append(lines, amounts("namespaces."+n, u.Namespaces[n], got.ByNamespace[n])...)
	}
	for _, w := range u.Conditions {
		w.Status = cmp.Or(w.Status, string(metav1.ConditionTrue))
		lines = append(lines, w.missing(got.Conditions)...)
	}
	for _, w := range u.NoConditions {
		w.Status = string(metav1.ConditionTrue)
		if found := w.find(got.Conditions); found != nil {
			lines = append(lines, fmt.Sprintf("+ condition %s %s, which must not be: %s", found.Type, found.Key, found.Message))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(u.Projection)) {
		lines = append(lines, projection(n, u.Projection[n], got)...)
	}
	return lines
}

// find returns the condition that is meant, nil when there is none.
func (w *Condition) find(conditions []v1alpha1.LedgerCondition) *v1alpha1.LedgerCondition {
	for i := range conditions {
		c := &conditions[i]
		if c.Type == w.Type && (w.Key == "" || c.Key == w.Key) && (w.Status == "" || string(c.Status) == w.Status) &&
			(w.Reason == "" || c.Reason == w.Reason) {
			return c
		}
	}
	return nil
}

func (w *Condition) missing(conditions []v1alpha1.LedgerCondition) []string {
	if w.find(conditions) != nil || w.Status == string(metav1.ConditionFalse) && (&Condition{Type: w.Type, Key: w.Key}).find(conditions) == nil {
		return nil
	}
	lines := []string{fmt.Sprintf("- condition %s %s %s %s", w.Type, w.Key, w.Status, w.Reason)}
	for i := range conditions {
		if c := &conditions[i]; w.Key == "" || c.Key == w.Key {
			lines = append(lines, fmt.Sprintf("+ condition %s %s %s %s", c.Type, c.Key, c.Status, c.Reason))
		}
	}
	return lines
}

// projection compares what a project is shown.
func projection(namespace string, want Projection, got *sim.Usage) []string {
	what := "projection." + namespace
	applied, ok := got.Projected(namespace)
	if !ok {
		return []string{"- " + what, "+ the quota does not cover the project"}
	}
	lines := amounts(what+".used", want.Used, applied.Status.Total.Used)
	if want.Namespaces == nil {
		return lines
	}
	shown := map[string]corev1.ResourceList{}
	for i := range applied.Status.Namespaces {
		shown[applied.Status.Namespaces[i].Namespace] = applied.Status.Namespaces[i].Status.Used
	}
	wanted, found := slices.Sorted(maps.Keys(want.Namespaces)), slices.Sorted(maps.Keys(shown))
	if !slices.Equal(wanted, found) {
		lines = append(lines, diff(what+".namespaces", strings.Join(wanted, ", "), strings.Join(found, ", "))...)
	}
	for _, n := range wanted {
		lines = append(lines, amounts(what+".namespaces."+n, want.Namespaces[n], shown[n])...)
	}
	return lines
}
