package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/devicequota/devicequota/quota"
)

// cover finds the quotas that cover the request: as this replica's caches have the namespace,
// live when they do not know it.
func (a *admission) cover(ctx context.Context) error {
	quotas, _, known := a.l.view.Cached().Covering(a.r.Namespace)
	if !known {
		var err error
		if quotas, _, _, err = a.l.view.Namespace(ctx, a.r.Namespace); err != nil {
			return err
		}
	}
	a.setCovers(quotas)
	return nil
}

// setCovers makes quotas the covering ones and keeps what is known of those that were before.
func (a *admission) setCovers(quotas []*quota.Quota) {
	was := a.covers
	a.covers = nil
	for _, q := range quotas {
		i := slices.IndexFunc(was, func(c *cover) bool { return c.quota.Name == q.Name })
		if i < 0 {
			a.covers = append(a.covers, &cover{quota: q, account: a.l.account(q.Name)})
			continue
		}
		c := was[i]
		if !c.done && q.ResourceVersion > c.quota.ResourceVersion {
			c.quota = q
		}
		a.covers = append(a.covers, c)
	}
}

// recover sets the coverage as the live observation has it, and as the caches have it where
// they are newer.
func (a *admission) recover(s *sight) {
	live, liveVersion, liveKnown := s.Covering(a.r.Namespace)
	cached, cachedVersion, cachedKnown := a.l.view.Cached().Covering(a.r.Namespace)
	if !liveKnown {
		// The namespace is newer than the observation, or gone: then the create fails anyway.
		return
	}
	byName := map[string]*quota.Quota{}
	for _, q := range live {
		byName[q.Name] = q
	}
	if cachedKnown {
		for _, q := range cached {
			old := byName[q.Name]
			newQuota := q.ResourceVersion > s.versions[quota.Quotas]
			if old == nil && (newQuota || cachedVersion > liveVersion) || old != nil && q.ResourceVersion > old.ResourceVersion {
				byName[q.Name] = q
			}
		}
	}
	quotas := make([]*quota.Quota, 0, len(byName))
	for _, q := range byName {
		quotas = append(quotas, q)
	}
	slices.SortFunc(quotas, func(x, y *quota.Quota) int { return strings.Compare(x.Name, y.Name) })
	a.setCovers(quotas)
}
