package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// conditionKey names one condition of a ledger.
type conditionKey struct{ kind, key string }

// conditions are a ledger's conditions for what it was settled by.
func (u *Usage) conditions(o quota.Observed, l v1alpha1.DeviceLedgerStatus) []v1alpha1.LedgerCondition {
	charger := u.o.View.Charger()
	if o.Quota == nil || charger == nil {
		return l.Conditions
	}
	out := append(charger.Conditions(o.Quota, o, l.Conditions), u.staleness()...)
	slices.SortStableFunc(out, compareConditions)
	return out
}

// staleness is a condition while nothing is heard of a watched resource.
func (u *Usage) staleness() []v1alpha1.LedgerCondition {
	names := u.staleNames()
	if names == "" {
		return nil
	}
	return []v1alpha1.LedgerCondition{{
		Type: v1alpha1.ConditionStale, Status: metav1.ConditionTrue, Reason: "NothingHeard",
		Message: "the API server was not heard of: " + names,
	}}
}

// staleNames are the resources of which nothing was heard, as text.
func (u *Usage) staleNames() string {
	var names []string
	for _, s := range u.o.View.Stale() {
		names = append(names, s.Resource)
	}
	return strings.Join(names, ", ")
}

// tell sends an Event for each condition whose status or reason changed since it was told.
func (u *Usage) tell(name string, conditions []v1alpha1.LedgerCondition) {
	now := map[conditionKey]string{}
	for _, c := range conditions {
		now[conditionKey{c.Type, c.Key}] = string(c.Status) + "/" + c.Reason
	}
	u.mu.Lock()
	before, known := u.told[name]
	u.told[name] = now
	u.mu.Unlock()
	crq := u.o.View.ClusterResourceQuota(name)
	if !known || u.o.Recorder == nil || crq == nil {
		return // what was there when this replica began to lead was told by another
	}
	for _, c := range conditions {
		if before[conditionKey{c.Type, c.Key}] == now[conditionKey{c.Type, c.Key}] {
			continue
		}
		u.o.Recorder.Eventf(crq, nil, eventType(c), c.Type, "Settle", "%s", describe(c))
	}
	for key := range before {
		if _, still := now[key]; !still {
			u.o.Recorder.Eventf(crq, nil, corev1.EventTypeNormal, key.kind, "Settle", "%s: no longer", describe(v1alpha1.LedgerCondition{Type: key.kind, Key: key.key}))
		}
	}
}

// eventType is a warning for what an admin should look at.
func eventType(c v1alpha1.LedgerCondition) string {
	if c.Type == v1alpha1.ConditionEnforced || c.Status != metav1.ConditionTrue {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

func describe(c v1alpha1.LedgerCondition) string {
	s := c.Type
	if c.Key != "" {
		s = fmt.Sprintf("%s: %s", c.Key, c.Type)
	}
	if c.Status != "" && c.Status != metav1.ConditionTrue {
		s += " is " + string(c.Status)
	}
	if c.Message != "" {
		s += ": " + c.Message
	}
	return s
}

func compareConditions(a, b v1alpha1.LedgerCondition) int {
	return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Type, b.Type))
}
