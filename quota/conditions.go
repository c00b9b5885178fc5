package quota

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Reasons of conditions.
const (
	// ReasonLimited: devicequota enforces the key.
	ReasonLimited = "Limited"
	// ReasonReportOnly: the quota's enforcement is Warn or Audit.
	ReasonReportOnly = "ReportOnly"
	// ReasonPlatform: the platform enforces the key.
	ReasonPlatform = "Platform"
	// ReasonNotADeviceKey: the key is not about devices, or is malformed, or lacks its selector.
	ReasonNotADeviceKey = "NotADeviceKey"
	// ReasonScoped: the quota has scopes, which never match claims.
	ReasonScoped = "Scoped"
	// ReasonNoDeviceClass: no DeviceClass serves the extended resource.
	ReasonNoDeviceClass = "NoDeviceClass"
	// ReasonNoDevices: no device is published that tells the amount.
	ReasonNoDevices = "NoDevices"
	// ReasonNothingPublished: devices are published that do not tell the amount.
	ReasonNothingPublished = "NothingPublished"
	// ReasonNotEvaluable: a selector does not compile, or costs too much to evaluate.
	ReasonNotEvaluable = "NotEvaluable"
	// ReasonDefaultsToZero: claims that do not ask for the capacity consume none of it.
	ReasonDefaultsToZero = "DefaultsToZero"
	// ReasonSharedDevices: other classes reach the same devices.
	ReasonSharedDevices = "SharedDevices"
	// ReasonLimitLowered: the limit was lowered below what was used.
	ReasonLimitLowered = "LimitLowered"
	// ReasonLimitNew: what was used already when the limit was set exceeds it.
	ReasonLimitNew = "LimitNew"
	// ReasonUseGrew: more counts than was admitted under the limit: projects joined, claims
	// hold more than they were charged for, or devices are published differently.
	ReasonUseGrew = "UseGrew"
)

// Conditions returns what can be said about the quota and each of its keys, sorted by key and
// type; only what is the case. previous are the conditions before: they tell why use exceeds
// a limit. Transition times are the caller's.
func (c *Charger) Conditions(q *Quota, o Observed, previous []v1alpha1.LedgerCondition) []v1alpha1.LedgerCondition {
	var out []v1alpha1.LedgerCondition
	add := func(kind string, key corev1.ResourceName, reason, message string) {
		out = append(out, v1alpha1.LedgerCondition{Type: kind, Key: string(key), Status: metav1.ConditionTrue, Reason: reason, Message: message})
	}
	for _, name := range q.NotEnforced {
		reason, message := notEnforced(q, name)
		add(v1alpha1.ConditionNotEnforced, name, reason, message)
	}
	for _, name := range q.PlatformKeys {
		add(v1alpha1.ConditionEnforced, name, ReasonPlatform, "the platform enforces this key")
	}
	for i := range q.Keys {
		k := &q.Keys[i]
		if k.Subject == SubjectExtendedResource && len(c.serving(k)) == 0 {
			add(v1alpha1.ConditionNotEnforced, k.Name, ReasonNoDeviceClass,
				"no device class serves "+string(k.ExtendedResource)+"; what device plugins serve is not limited")
			continue
		}
		add(v1alpha1.ConditionEnforced, k.Name, enforcementReason(q), limitText(q.Hard[k.Name]))
		if reason, message := c.unknown(q, k); reason != "" {
			add(v1alpha1.ConditionFootprintUnknown, k.Name, reason, message)
		}
		if message := c.zeroDefault(q, k); message != "" {
			add(v1alpha1.ConditionZeroDefault, k.Name, ReasonDefaultsToZero, message)
		}
		if others := c.keyAliases(k); len(others) > 0 {
			add(v1alpha1.ConditionAliasedKey, k.Name, ReasonSharedDevices,
				"its devices can be claimed through other classes, too: "+strings.Join(others, ", ")+"; a selector key limits devices whatever class they come through")
		}
		if reason, message := overLimit(q, k.Name, o, previous); reason != "" {
			add(v1alpha1.ConditionOverLimit, k.Name, reason, message)
		}
	}
	slices.SortStableFunc(out, func(a, b v1alpha1.LedgerCondition) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Type, b.Type))
	})
	return out
}

func notEnforced(q *Quota, name corev1.ResourceName) (reason, message string) {
	_, ours, err := ParseKey(name)
	switch {
	case err != nil:
		return ReasonNotADeviceKey, "malformed key: " + err.Error()
	case !ours:
		return ReasonNotADeviceKey, "the key is not about devices: devicequota does not enforce it"
	case q.Scoped:
		return ReasonScoped, "a quota with scopes never matches claims"
	}
	return ReasonNotADeviceKey, "the quota has no usable selector annotation for the key"
}

func enforcementReason(q *Quota) string {
	if q.Enforcement == Enforce || q.Enforcement == "" {
		return ReasonLimited
	}
	return ReasonReportOnly
}

const limitPrefix = "limited to "

func limitText(q resource.Quantity) string { return limitPrefix + q.String() }

// serving returns the classes that count for a class or extended resource key, sorted.
func (c *Charger) serving(k *Key) []string {
	var out []string
	for _, name := range c.inv.DeviceClasses() {
		if serves, _ := servesKey(k, name, c.inv.DeviceClass(name)); serves {
			out = append(out, name)
		}
	}
	return out
}

// surveys returns the footprints that tell about a key: one per class that may count for it.
func (c *Charger) surveys(q *Quota, k *Key) map[string]*footprint {
	m := q.measureOf(k)
	classes := []string{k.Class}
	switch k.Subject {
	case SubjectSelector:
		classes = c.inv.DeviceClasses()
	case SubjectExtendedResource:
		classes = c.serving(k)
	case SubjectClaims:
		return nil
	}
	out := make(map[string]*footprint, len(classes))
	for _, class := range classes {
		out[class] = c.footprint(&alternative{class: class, count: 1}, m)
	}
	return out
}

// unknown returns why nothing tells what claims cost the key.
func (c *Charger) unknown(q *Quota, k *Key) (reason, message string) {
	if k.Subject != SubjectSelector && k.Measure != MeasureCapacity && k.Measure != MeasureCounter {
		return "", ""
	}
	devices, broken := 0, ""
	surveys := c.surveys(q, k)
	for _, class := range sortedStrings(surveys) {
		f := surveys[class]
		if f.broken == "" && f.told || f.matching == 0 && f.declared && (k.Measure == MeasureDevices || f.floor.Sign() > 0) {
			return "", ""
		}
		devices += f.matching
		broken = cmp.Or(broken, f.broken)
	}
	what := q.measureOf(k).String()
	if broken != "" {
		return ReasonNotEvaluable, broken
	}
	if devices == 0 {
		return ReasonNoDevices, "no published device tells its " + what + "; the class's annotation " + FootprintAnnotation + " may"
	}
	return ReasonNothingPublished, fmt.Sprintf("%d devices are published, none tells its %s", devices, what)
}

// zeroDefault says that claims which do not ask for the capacity consume nothing.
func (c *Charger) zeroDefault(q *Quota, k *Key) string {
	if k.Measure != MeasureCapacity {
		return ""
	}
	surveys := c.surveys(q, k)
	for _, class := range sortedStrings(surveys) {
		if surveys[class].zeroDefault {
			return "devices of class " + class + " can be shared and default to 0 of " + q.measureOf(k).String() +
				": claims that do not ask for it cost nothing; limit the devices or another capacity, too"
		}
	}
	return ""
}

// overLimit says that more counts than the limit allows, and why.
func overLimit(q *Quota, name corev1.ResourceName, o Observed, previous []v1alpha1.LedgerCondition) (reason, message string) {
	used, limit := o.Used[name], q.Hard[name]
	if used.Cmp(limit) <= 0 {
		return "", ""
	}
	message = fmt.Sprintf("used %s, limited to %s", used.String(), limit.String())
	if top := largestProjects(name, o); top != "" {
		message += "; most by " + top
	}
	return overLimitCause(name, used, limit, previous), message
}

// overLimitCause returns the cause as it was when the limit was first exceeded.
func overLimitCause(name corev1.ResourceName, used, limit resource.Quantity, previous []v1alpha1.LedgerCondition) string {
	cause := ReasonLimitNew
	for i := range previous {
		p := &previous[i]
		if p.Key != string(name) {
			continue
		}
		switch p.Type {
		case v1alpha1.ConditionOverLimit:
			return p.Reason
		case v1alpha1.ConditionEnforced:
			cause = ReasonUseGrew
			before, err := resource.ParseQuantity(strings.TrimPrefix(p.Message, limitPrefix))
			if err == nil && before.Cmp(limit) > 0 && used.Cmp(before) <= 0 {
				return ReasonLimitLowered
			}
		}
	}
	return cause
}

// largestProjects returns the three projects that use most.
func largestProjects(name corev1.ResourceName, o Observed) string {
	projects := sortedStrings(o.ByNamespace)
	slices.SortStableFunc(projects, func(a, b string) int {
		x, y := o.ByNamespace[a][name], o.ByNamespace[b][name]
		return y.Cmp(x)
	})
	var parts []string
	for _, p := range projects[:min(3, len(projects))] {
		if v := o.ByNamespace[p][name]; v.Sign() > 0 {
			parts = append(parts, p+" ("+v.String()+")")
		}
	}
	return strings.Join(parts, ", ")
}

// keyAliases returns the classes that reach devices of a key's classes without counting for it.
func (c *Charger) keyAliases(k *Key) []string {
	if k.Subject != SubjectClass && k.Subject != SubjectExtendedResource {
		return nil
	}
	serving := c.serving(k)
	var out []string
	for _, class := range serving {
		for _, other := range c.Aliases(class) {
			if !slices.Contains(serving, other) {
				out = append(out, other)
			}
		}
	}
	return sortedUnique(out)
}

// Aliases returns the other classes through which devices of the class can be claimed, sorted.
func (c *Charger) Aliases(class string) []string {
	c.aliasesOnce.Do(func() { c.aliases = findAliases(c.inv) })
	return c.aliases[class]
}

type deviceID struct{ driver, pool, name string }

// findAliases looks at all devices of all classes once. Classes whose selectors cost too much
// or do not compile have no aliases.
func findAliases(inv Inventory) map[string][]string {
	classes := inv.DeviceClasses()
	reached := map[deviceID][]int{} // device -> classes so far
	pairs := map[[2]int]bool{}
	for i, class := range classes {
		var ids []deviceID
		within, err := inv.Candidates(class, nil, func(driver, pool string, d *resourceapi.Device, _ []string) bool {
			ids = append(ids, deviceID{driver, pool, d.Name})
			return true
		})
		if err != nil || !within {
			continue
		}
		for _, id := range ids {
			for _, j := range reached[id] {
				pairs[[2]int{j, i}] = true
			}
			reached[id] = append(reached[id], i)
		}
	}
	out := map[string][]string{}
	for p := range pairs {
		a, b := classes[p[0]], classes[p[1]]
		out[a], out[b] = append(out[a], b), append(out[b], a)
	}
	for class := range out {
		slices.Sort(out[class])
	}
	return out
}
