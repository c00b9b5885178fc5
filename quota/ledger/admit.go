package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

const (
	// answerMargin is what is left of a request's time to answer it.
	answerMargin = 200 * time.Millisecond
	// pollInterval is how often a request that waits for holds looks again.
	pollInterval = 50 * time.Millisecond
	// retrySoon is when to ask again after a request had to wait for others.
	retrySoon = time.Second
	// retryRebuilding bounds the time after which to ask again while a ledger is rebuilt.
	retryRebuilding = 10 * time.Second
)

// Admit decides a request and, when it is allowed and no dry run, has written a hold into the
// ledger of every covering quota before it returns. Contention and overload are Busy, also
// when ctx's deadline comes near. The error is an outage, or that ctx was cancelled, or the one
// that Request.Charge returned.
func (l *Ledger) Admit(ctx context.Context, r Request) (Decision, error) {
	a := &admission{l: l, r: r}
	within, cancel := leaveMargin(ctx)
	defer cancel()
	d, err := a.run(within)
	switch {
	case err == nil:
		return d, nil
	case within.Err() != nil && !errors.Is(ctx.Err(), context.Canceled):
		return a.busy("the quota's ledger is busy", retrySoon), nil
	default:
		return Decision{}, err
	}
}

// leaveMargin returns a context that ends early enough before ctx's deadline to answer.
func leaveMargin(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	margin := min(answerMargin, time.Until(deadline)/4)
	return context.WithDeadline(ctx, deadline.Add(-margin))
}

// admission is one request on its way through the accounts of its quotas.
type admission struct {
	l *Ledger
	r Request
	// covers are the quotas that cover the request, sorted by name.
	covers []*cover
	// sight is the newest live observation this request waited for, begun after it arrived.
	sight *sight
	// patience is until when the request waits for others; zero while it has not.
	patience time.Time
}

// cover is one covering quota.
type cover struct {
	quota *quota.Quota
	// charge is what the request costs the quota, charged the quota that it was computed for.
	charge  quota.Charge
	charged *quota.Quota
	account *account
	// done is true once the hold is written, or for a dry run once it would fit.
	done bool
	out  outcome
}

func (c *cover) enforced() bool {
	return c.quota.Enforcement == quota.Enforce || c.quota.Enforcement == ""
}

// run tries until the request is decided: it fits, or it is proven not to, or patience ends.
func (a *admission) run(ctx context.Context) (Decision, error) {
	if err := a.cover(ctx); err != nil {
		return Decision{}, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return Decision{}, err
		}
		if err := a.charge(); err != nil {
			return Decision{}, err
		}
		denials, again, err := a.hopeless(ctx)
		switch {
		case err != nil:
			return Decision{}, err
		case again:
			continue
		case len(denials) > 0:
			return a.denied(denials), nil
		}
		if err := a.try(ctx); err != nil {
			return Decision{}, err
		}
		d, err := a.judge(ctx)
		if d != nil || err != nil {
			return deref(d), err
		}
	}
}

func deref(d *Decision) Decision {
	if d == nil {
		return Decision{}
	}
	return *d
}

// charge computes what is not yet computed for the newest quotas.
func (a *admission) charge() error {
	for _, c := range a.covers {
		if c.charged == c.quota {
			continue
		}
		charge, err := a.r.Charge(c.quota)
		if err != nil {
			return err
		}
		c.charge, c.charged = charge, c.quota
	}
	return nil
}

// try takes the request to the accounts that have not taken it yet, to all at the same time: as
// many quotas as there are would else be as many writes one after the other. Of several quotas
// all are asked first, read-only, so that a request that does not fit leaves no hold in the others.
func (a *admission) try(ctx context.Context) error {
	var open []*cover
	for _, c := range a.covers {
		if !c.done && c.holds() {
			open = append(open, c)
		}
	}
	if len(open) > 1 || a.r.DryRun {
		fits := true
		for _, c := range open {
			out, err := c.account.trial(ctx, a.entry(ctx, c))
			if err := c.take(out, err); err != nil {
				return err
			}
			c.done = c.done && a.r.DryRun
			fits = fits && out.result == held
		}
		if !fits || a.r.DryRun {
			return nil
		}
	}
	entries := make([]*entry, len(open))
	for i, c := range open {
		entries[i] = a.entry(ctx, c)
		c.account.enqueue(entries[i])
	}
	var first error
	for i, c := range open {
		out, err := entries[i].wait()
		if err := c.take(out, err); first == nil {
			first = err
		}
	}
	return first
}

// holds returns true if the quota takes a hold for the request. What costs it nothing touches
// nothing; the scheduler's claim costs its full charge until its pod is known to be counted.
func (c *cover) holds() bool { return len(quota.Positive(c.charge.Amounts)) > 0 }

// take keeps the account's answer. A quota that does not enforce blocks nothing.
func (c *cover) take(out outcome, err error) error {
	if err != nil && c.enforced() {
		return err
	}
	c.out = out
	c.done = err != nil || out.result == held || !c.enforced()
	return nil
}

// entry is the request as the committer of one quota sees it.
func (a *admission) entry(ctx context.Context, c *cover) *entry {
	return &entry{ctx: ctx, arrived: a.r.Arrived, sight: a.sight, request: &a.r, quota: c.quota, hold: a.hold(c)}
}

func (a *admission) hold(c *cover) v1alpha1.Hold {
	return v1alpha1.Hold{
		UID: a.r.UID, Kind: a.r.Kind, Namespace: a.r.Namespace, Name: a.r.Name,
		Charge: quota.Positive(c.charge.Amounts), Advisory: a.r.Advisory, PodUID: a.r.PodUID,
	}
}

// judge decides after a try, or makes ready for the next one and returns nil.
func (a *admission) judge(ctx context.Context) (*Decision, error) {
	worst := a.worst()
	if worst == nil {
		d := a.decision(Allowed)
		return &d, nil
	}
	switch worst.out.result {
	case gone:
		a.remove(worst)
		a.l.Forget(worst.quota.Name)
		return nil, nil
	case outdated:
		return a.refresh(ctx, worst)
	case behind:
		return a.wait(ctx, worst, a.look(ctx, a.l.o.Clock.Now()))
	case rebuilding:
		return a.rebuild(ctx, worst)
	case full:
		if a.sight == nil {
			return nil, a.look(ctx, a.r.Arrived) // it may show what the caches do not: holds that ended
		}
		return a.wait(ctx, worst, nil)
	default:
		return a.short(ctx, worst)
	}
}

// worst returns the cover that stands most in the way: what can be repaired comes before what
// must be waited for. nil when none does.
func (a *admission) worst() *cover {
	order := map[result]int{gone: 6, outdated: 5, behind: 4, rebuilding: 3, short: 2, full: 1}
	var worst *cover
	for _, c := range a.covers {
		if c.done || !c.holds() || c.out.result == held {
			continue
		}
		if worst == nil || order[c.out.result] > order[worst.out.result] {
			worst = c
		}
	}
	return worst
}

// short: the request does not fit one of its quotas. An observation begun after it arrived
// tells whether what exists leaves no room (denied) or holds stand in the way (wait).
func (a *admission) short(ctx context.Context, c *cover) (*Decision, error) {
	if a.sight == nil {
		return nil, a.look(ctx, a.r.Arrived)
	}
	if denials := a.prove(); len(denials) > 0 {
		d := a.denied(denials)
		return &d, nil
	}
	var err error
	if a.patient() && a.likely() {
		err = a.look(ctx, a.l.o.Clock.Now())
	}
	return a.wait(ctx, c, err)
}

// rebuild: nothing is admitted until the mark ends. That of a quota's first ledger is ended by
// its creator's next write, within a moment; else, when this replica has known it for long
// enough, a live observation ends it.
func (a *admission) rebuild(ctx context.Context, c *cover) (*Decision, error) {
	now := a.l.o.Clock.Now()
	due := c.account.markDue(c.out.ledger.UID)
	if first(c.out.ledger, c.quota, a.l.o.HoldAge) && now.Before(due) {
		return a.wait(ctx, c, nil)
	}
	if due.IsZero() || now.Before(due) || a.sight != nil && !a.sight.begun.Before(due) {
		d := a.busy(fmt.Sprintf("the ledger of quota %q is being rebuilt", c.quota.Name),
			min(max(due.Sub(now), retrySoon), retryRebuilding))
		return &d, nil
	}
	return nil, a.look(ctx, due)
}

// patient returns true while the request may wait for others.
func (a *admission) patient() bool {
	now := a.l.o.Clock.Now()
	if a.patience.IsZero() {
		a.patience = now.Add(a.l.o.Wait)
	}
	return now.Before(a.patience)
}

// wait lets a moment pass, or ends the request's patience.
func (a *admission) wait(ctx context.Context, c *cover, err error) (*Decision, error) {
	if err != nil {
		return nil, err
	}
	if !a.patient() {
		d := a.busy(reasonFor(c), retrySoon)
		return &d, nil
	}
	sleep(ctx, a.l.o.Clock, pollInterval+a.l.jitter(pollInterval))
	return nil, nil
}

// look makes a live observation begun at t or later the request's own, with the coverage that
// it shows.
func (a *admission) look(ctx context.Context, t time.Time) error {
	s, err := a.l.live.after(ctx, t)
	if err != nil {
		return err
	}
	a.sight = s
	a.recover(s)
	return nil
}

// refresh gets the quota that the ledger was made by, which is newer than the one charged for.
func (a *admission) refresh(ctx context.Context, c *cover) (*Decision, error) {
	q := a.l.view.Cached().Observe(c.quota.Name, nil, nil).Quota
	if q == nil || q.ResourceVersion < termsVersion(&c.out.ledger.Status) {
		var err error
		if q, err = a.l.view.Quota(ctx, c.quota.Name); err != nil {
			return nil, err
		}
	}
	switch {
	case q == nil:
		a.remove(c)
		return nil, nil
	case q.ResourceVersion <= c.quota.ResourceVersion:
		// No quota is as new as the ledger tells: a settle has to put it right.
		return a.wait(ctx, c, a.look(ctx, a.l.o.Clock.Now()))
	default:
		c.quota = q
		return nil, nil
	}
}

func (a *admission) remove(c *cover) {
	for i := range a.covers {
		if a.covers[i] == c {
			a.covers = append(a.covers[:i:i], a.covers[i+1:]...)
			return
		}
	}
}

func (a *admission) denied(denials []quota.Denial) Decision {
	d := a.decision(Denied)
	d.Denials = denials
	return d
}

func (a *admission) busy(why string, after time.Duration) Decision {
	d := a.decision(Busy)
	d.Busy, d.RetryAfter = why, after
	return d
}

func (a *admission) decision(v Verdict) Decision {
	d := Decision{Verdict: v, Charges: map[string]quota.Charge{}}
	for _, c := range a.covers {
		d.Charges[c.quota.Name] = c.charge
		if c.enforced() {
			continue
		}
		denial, ok := c.soft()
		if !ok {
			continue
		}
		if c.quota.Enforcement == quota.Warn {
			d.Warned = append(d.Warned, denial)
		} else {
			d.Audited = append(d.Audited, denial)
		}
	}
	return d
}

// soft is what a quota that does not enforce would have said.
func (c *cover) soft() (quota.Denial, bool) {
	if len(c.charge.Unknown) > 0 && c.quota.UnknownFootprint != quota.AllowUnknown {
		return c.unknown(), true
	}
	keys := quota.Exceeding(c.charge.Amounts, c.quota.Hard)
	if len(keys) == 0 {
		keys = c.out.exceeded
	}
	if len(keys) == 0 {
		return quota.Denial{}, false
	}
	var used corev1.ResourceList
	if c.out.ledger != nil {
		used = c.out.ledger.Status.Used
	}
	return quota.Deny(c.quota.Name, keys, c.charge, used, c.quota.Hard, nil, nil), true
}
