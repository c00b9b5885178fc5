package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Denial says that a request does not fit one quota. The lists hold the failing keys only.
type Denial struct {
	Quota                    string
	Requested, Used, Limited corev1.ResourceList
	// Rules say how the failing keys were charged.
	Rules []Rule
	// Here is what this project uses, Elsewhere what the other projects use together.
	Here, Elsewhere corev1.ResourceList
	// Unknown are the keys that the charge is unknown for; then the lists may be empty.
	Unknown []UnknownCharge
}

// Error returns the denial as people and tools read it. It begins as Kubernetes' own quota
// messages do, since tools match them, and names no foreign project or object.
// Source: k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go (v0.37).
func (d Denial) Error() string {
	var b strings.Builder
	if len(d.Requested) > 0 || len(d.Unknown) == 0 {
		b.WriteString("exceeded quota: " + d.Quota + ", requested: " + Format(d.Requested) +
			", used: " + Format(d.Used) + ", limited: " + Format(d.Limited))
		if rules := d.rules(); rules != "" {
			b.WriteString("; charged: " + rules)
		}
		if len(d.Here)+len(d.Elsewhere) > 0 {
			b.WriteString("; used by this project: " + Format(d.Here) + ", by the others together: " + Format(d.Elsewhere))
		}
	}
	if len(d.Unknown) > 0 {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(d.unknown())
	}
	return b.String()
}

// rules returns how the failing keys were charged, by key.
func (d Denial) rules() string {
	var parts []string
	for _, k := range SortedKeys(d.Requested) {
		for _, r := range d.Rules {
			if r.Key != k {
				continue
			}
			text := string(k) + ": "
			if r.Request != "" {
				text += "request " + quoted(r.Request) + ": "
			}
			parts = append(parts, text+r.Text)
		}
	}
	return strings.Join(parts, ", ")
}

// unknown returns the keys that nobody knows the charge for, and why.
func (d Denial) unknown() string {
	var keys, why []string
	for _, u := range d.Unknown {
		keys = append(keys, string(u.Key))
		text := string(u.Key) + ": "
		if u.Request != "" {
			text += "request " + quoted(u.Request) + ": "
		}
		why = append(why, text+u.Why)
	}
	return "status unknown for quota: " + d.Quota + ", resources: " + strings.Join(sortedUnique(keys), ",") +
		"; FootprintUnknown: " + strings.Join(why, ", ")
}

// Deny returns the denial of a charge whose keys exceed the quota. used is what counts
// already, limited what the quota allows; here and all are what this project and all
// projects together use, both nil when that is not known.
func Deny(name string, exceeded []corev1.ResourceName, charge Charge, used, limited, here, all corev1.ResourceList) Denial {
	d := Denial{
		Quota: name, Requested: Only(charge.Amounts, exceeded), Used: Only(used, exceeded), Limited: Only(limited, exceeded),
	}
	for _, r := range charge.Rules {
		if slices.Contains(exceeded, r.Key) {
			d.Rules = append(d.Rules, r)
		}
	}
	if all != nil {
		d.Here = Only(here, exceeded)
		d.Elsewhere = Sub(Only(all, exceeded), d.Here)
	}
	return d
}

// named identifies the one object that can exist under a name.
type named struct {
	kind            v1alpha1.HoldKind
	namespace, name string
}

// HoldSum returns what the holds count for together, with add (nil: none) and without the
// hold of the UID skip (empty: none). Holds of claims with one namespace and name count as
// their maximum, since only one of these objects can exist. Holds of pods are not merged: a
// pod's charge may live on in its claim. Advisory holds count only if advisory is true.
func HoldSum(holds []v1alpha1.Hold, skip types.UID, add *v1alpha1.Hold, advisory bool) corev1.ResourceList {
	sum := corev1.ResourceList{}
	largest := make(map[named]corev1.ResourceList, len(holds)+1)
	count := func(h *v1alpha1.Hold) {
		switch {
		case h.Advisory && !advisory:
		case h.Kind == v1alpha1.HoldPod:
			AddTo(sum, h.Charge)
		default:
			n := named{h.Kind, h.Namespace, h.Name}
			if other, ok := largest[n]; ok {
				largest[n] = Max(other, h.Charge)
			} else {
				largest[n] = h.Charge
			}
		}
	}
	for i := range holds {
		if skip == "" || holds[i].UID != skip {
			count(&holds[i])
		}
	}
	if add != nil {
		count(add)
	}
	for _, c := range largest {
		AddTo(sum, c)
	}
	return sum
}

// Fits returns the keys on which the hold would exceed the ledger's limits, sorted; none if it
// fits. It takes the place of the ledger's hold of the same UID. Only keys that it charges are
// looked at: what costs nothing fits a quota that is over its limit.
func Fits(l *v1alpha1.DeviceLedgerStatus, h v1alpha1.Hold, advisory bool) (exceeded []corev1.ResourceName) {
	charged := Positive(h.Charge)
	if len(charged) == 0 {
		return nil
	}
	sum := Add(l.Used, HoldSum(l.Holds, h.UID, &h, advisory))
	limits := corev1.ResourceList{}
	for k := range charged {
		if limit, ok := l.Hard[k]; ok {
			limits[k] = limit
		}
	}
	return Exceeding(sum, limits)
}
