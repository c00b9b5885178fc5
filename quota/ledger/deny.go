package ledger

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
)

// hopeless finds the quotas that the request can never fit: its charge alone exceeds hard, or
// nobody tells the charge. It is denied only as a live read of the quota and the namespace has
// it. again is true when the live read shows another quota or coverage.
func (a *admission) hopeless(ctx context.Context) (denials []quota.Denial, again bool, err error) {
	var suspects []*cover
	for _, c := range a.covers {
		if c.enforced() && c.hopeless() {
			suspects = append(suspects, c)
		}
	}
	if len(suspects) == 0 {
		return nil, false, nil
	}
	covering, _, known, err := a.l.view.Namespace(ctx, a.r.Namespace)
	if err != nil {
		return nil, false, err
	}
	for _, c := range suspects {
		q, err := a.l.view.Quota(ctx, c.quota.Name)
		if err != nil {
			return nil, false, err
		}
		covered := !known || slices.ContainsFunc(covering, func(x *quota.Quota) bool { return x.Name == c.quota.Name })
		switch {
		case q == nil || !covered:
			a.remove(c)
			again = true
		case differ(q, c.quota):
			c.quota = q
			again = true
		default:
			denials = append(denials, c.never())
		}
	}
	return denials, again, nil
}

// differ returns true if the two versions of a quota may charge or limit differently.
func differ(a, b *quota.Quota) bool {
	return a.UID != b.UID || a.Enforcement != b.Enforcement || a.UnknownFootprint != b.UnknownFootprint ||
		len(a.Hard) != len(b.Hard) || !quota.Equal(a.Hard, b.Hard) || !sameSelectors(a.Selectors, b.Selectors)
}

func sameSelectors(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name, expression := range a {
		if b[name] != expression {
			return false
		}
	}
	return true
}

func (c *cover) hopeless() bool {
	return c.deniesUnknown() || len(quota.Exceeding(c.charge.Amounts, c.quota.Hard)) > 0
}

func (c *cover) deniesUnknown() bool {
	return len(c.charge.Unknown) > 0 && c.quota.UnknownFootprint != quota.AllowUnknown
}

// never is the denial of a hopeless request. What is used is only told, it decides nothing.
func (c *cover) never() quota.Denial {
	if c.deniesUnknown() {
		return c.unknown()
	}
	var used corev1.ResourceList
	if l := c.account.latest(); l != nil {
		used = l.Status.Used
	}
	return quota.Deny(c.quota.Name, quota.Exceeding(c.charge.Amounts, c.quota.Hard), c.charge, used, c.quota.Hard, nil, nil)
}

func (c *cover) unknown() quota.Denial {
	return quota.Denial{Quota: c.quota.Name, Unknown: c.charge.Unknown}
}

// prove returns the denials that the request's own live observation proves: what it saw to
// exist, plus the charge, exceeds hard.
func (a *admission) prove() []quota.Denial {
	var denials []quota.Denial
	for _, c := range a.covers {
		if c.done || !c.enforced() || !c.holds() || c.out.result != short {
			continue
		}
		h := a.hold(c)
		o := a.sight.account(c.quota.Name)
		if h.PodUID != "" {
			o = a.sight.Observe(c.quota.Name, nil, wanted(c.out.ledger.Status.Holds, nil, []*entry{{hold: h}}))
		}
		if o.Quota == nil {
			continue // gone
		}
		// What the pod of a scheduler's claim is charged pays for the claim too.
		amounts := quota.Positive(quota.Counted(h, nil, c.out.ledger.Status.Holds, o).Charge)
		hard := c.newestHard(&o)
		keys := quota.Exceeding(quota.Add(quota.Only(o.Used, quota.SortedKeys(amounts)), amounts), hard)
		if len(keys) > 0 {
			denials = append(denials, quota.Deny(c.quota.Name, keys, c.charge, o.Used, hard, o.ByNamespace[a.r.Namespace], o.Used))
		}
	}
	return denials
}

// newestHard returns the limits of the newest quota known: observed, in the ledger, or charged for.
func (c *cover) newestHard(o *quota.Observed) corev1.ResourceList {
	hard, version := o.Quota.Hard, o.Quota.ResourceVersion
	if l := c.out.ledger; l != nil && termsVersion(&l.Status) > version {
		hard, version = l.Status.Hard, termsVersion(&l.Status)
	}
	if c.quota.ResourceVersion > version {
		hard = c.quota.Hard
	}
	return hard
}

// likely returns true if the caches tell that a new live observation would prove a denial.
func (a *admission) likely() bool {
	cached := a.l.view.Cached()
	for _, c := range a.covers {
		if c.done || !c.enforced() || c.out.result != short {
			continue
		}
		o := cached.Observe(c.quota.Name, nil, nil)
		if o.Quota == nil {
			continue
		}
		sum := quota.Add(quota.Only(o.Used, quota.SortedKeys(c.charge.Amounts)), c.charge.Amounts)
		if len(quota.Exceeding(sum, o.Quota.Hard)) > 0 {
			return true
		}
	}
	return false
}
