package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// reasons in the order in which they are looked at.
var reasons = []Reason{
	ReasonClass, ReasonSelector, ReasonError, ReasonNode, ReasonFeature, ReasonTaint, ReasonCapacity, ReasonAttribute,
	ReasonInUse, ReasonShared, ReasonCounter, ReasonGroup, ReasonConstraint, ReasonTaken,
}

// fitter tells whether the claims fit where the explanation is about, with what is in use or
// without. Not knowing counts as fitting.
type fitter func(ctx context.Context, claims []*resourceapi.ResourceClaim, empty bool) bool

// unfit explains why the search found nothing.
func (s *search) unfit(ctx context.Context) *Unfit {
	if s.o.NoExplanation {
		return &Unfit{Node: s.node.Name, Summary: "the claims do not fit on the node"}
	}
	u := &Unfit{Node: s.node.Name, Summary: fmt.Sprintf("the claims do not fit on node %q", s.node.Name)}
	s.undo(0)
	s.maxSteps = s.o.MaxSteps
	s.explain(ctx, u, s.allocator.fitsOn(s))
	return u
}

// fitsOn asks about the node of the search.
func (a *Allocator) fitsOn(s *search) fitter {
	return func(ctx context.Context, claims []*resourceapi.ResourceClaim, empty bool) bool {
		asked := &Allocator{inv: a.inv, state: a.state, o: a.o, plainSteps: a.plainSteps}
		asked.o.NoExplanation = true
		if empty {
			asked.state = State{features: a.state.features}
		}
		r, err := asked.Allocate(ctx, s.node, claims)
		return err != nil || r.Unfit == nil
	}
}

// explain fills in all but the summary's first part. Nothing is allocated by the search.
func (s *search) explain(ctx context.Context, u *Unfit, fits fitter) {
	s.cost = 0 // a budget of its own
	for _, pv := range s.view.pools {
		if pv.obstacle != "" {
			u.Pools = append(u.Pools, UnfitPool{Driver: pv.driver, Pool: pv.name, Invalid: pv.invalid, Why: pv.obstacle})
		}
	}
	u.Permanent = !s.hidden() && !fits(ctx, s.claims, true)
	var alone []bool
	for c := range s.claims {
		alone = append(alone, fits(ctx, s.claims[c:c+1], false))
	}
	every := !slices.Contains(alone, false)
	for c, claim := range s.claims {
		if !alone[c] || every {
			u.Claims = append(u.Claims, s.explainClaim(ctx, c, alone[c], fits))
			if len(u.Claims) == 1 {
				u.Summary += fmt.Sprintf(": claim \"%s/%s\": %s", claim.Namespace, claim.Name, briefly(&u.Claims[0]))
			}
		}
	}
}

// hidden tells whether a pool that cannot be used now may have devices for one of the claims.
func (s *search) hidden() bool {
	for _, pv := range s.view.pools {
		if pv.obstacle != "" && slices.ContainsFunc(s.alternatives, func(a *alternative) bool { return !a.excludes(pv.driver) }) {
			return true
		}
	}
	return false
}

// briefly says what is wrong with the first request that cannot be satisfied.
func briefly(c *UnfitClaim) string {
	for _, r := range c.Requests {
		if r.UnknownClass || int64(r.Usable) < max(r.Wanted, 1) || r.Wanted > resourceapi.AllocationResultsMaxSize {
			return fmt.Sprintf("request %q: %s", r.Request, r.String())
		}
	}
	return "there are devices for each request, but not for all requests together"
}

// explainClaim explains one claim. alone tells that it would fit without the others.
func (s *search) explainClaim(ctx context.Context, c int, alone bool, fits fitter) UnfitClaim {
	claim := s.claims[c]
	u := UnfitClaim{Namespace: claim.Namespace, Name: claim.Name}
	for _, r := range s.requests[c] {
		for _, a := range r.alternatives {
			u.Requests = append(u.Requests, s.explainRequest(ctx, a))
		}
	}
	if slices.ContainsFunc(u.Requests, func(r UnfitRequest) bool { return r.Usable > 0 }) {
		s.together(ctx, c, alone, fits, &u)
	}
	return u
}

// tally counts devices by reason and detail.
type tally map[Reason]map[string]*Obstacle

func (t tally) add(reason Reason, detail string, claims int) {
	if t[reason] == nil {
		t[reason] = map[string]*Obstacle{}
	}
	o := t[reason][detail]
	if o == nil {
		o = &Obstacle{Reason: reason, Detail: detail}
		t[reason][detail] = o
	}
	o.Devices++
	o.Claims += claims
}

// list returns the obstacles in the order of the reasons, the most frequent details first.
func (t tally) list() (list []Obstacle) {
	for _, reason := range reasons {
		var some []Obstacle
		for _, detail := range sortedKeys(t[reason]) {
			some = append(some, *t[reason][detail])
		}
		slices.SortStableFunc(some, func(a, b Obstacle) int { return b.Devices - a.Devices })
		list = append(list, some...)
	}
	return list
}

// explainRequest looks at all devices for one alternative.
func (s *search) explainRequest(ctx context.Context, a *alternative) UnfitRequest {
	u := UnfitRequest{Request: a.name, Class: a.className, UnknownClass: a.class == nil, Wanted: a.count, All: a.all}
	if a.class == nil {
		u.Permanent = true
		return u
	}
	if a.all {
		u.Wanted = int64(len(a.list))
	}
	t, ever := tally{}, 0
	for i := range s.view.slices {
		vs := &s.view.slices[i]
		for j := range vs.devices {
			d := &vs.devices[j]
			u.Devices++
			reason, detail := s.reason(ctx, a, vs, d)
			held := 0
			switch reason {
			case "":
				u.Usable++
				ever++
				continue
			case ReasonInUse:
				ever++
				held = s.use(vs).of(d.name).holders()
			case ReasonShared:
				ever++
				held = s.use(vs).of(d.name).shares
			case ReasonCounter, ReasonGroup:
				if s.everCounts(vs, d) {
					ever++
				}
			}
			t.add(reason, detail, held)
		}
	}
	u.Obstacles = t.list()
	if a.all && s.node == nil {
		u.Permanent = ever == 0 // "all" is about one node
	} else {
		u.Permanent = int64(ever) < max(u.Wanted, 1) || u.Wanted > resourceapi.AllocationResultsMaxSize
	}
	u.Miss = s.miss(ctx, a, &u)
	return u
}

func (u *deviceUse) holders() int {
	if u == nil {
		return 0
	}
	return u.exclusive + u.shares
}

// reason tells why the alternative cannot use the device, alone; "" if it can.
func (s *search) reason(ctx context.Context, a *alternative, vs *viewSlice, d *device) (reason Reason, detail string) {
	reason, detail, err := s.verdict(ctx, a, vs, d)
	if err != nil {
		return ReasonError, rootOf(err).Error()
	}
	if reason == ReasonCapacity {
		// Upstream looks at the capacity first; a taint or feature says more.
		if missing := s.missingFeature(d); missing != "" {
			return ReasonFeature, missing
		}
		if t := untolerated(d.taints, a.tolerations); t != nil && s.o.Features.DeviceTaints {
			return ReasonTaint, taintText(t)
		}
	}
	if reason != "" {
		return reason, detail
	}
	for _, c := range a.constraints {
		if _, found, err := s.attribute(ctx, c, a, d); err != nil {
			return ReasonError, rootOf(err).Error()
		} else if !found {
			return ReasonAttribute, string(c.name)
		}
	}
	return s.obstacleNow(a, vs, d)
}

// obstacleNow tells what is in the way of a device that could be used if nothing were in use.
func (s *search) obstacleNow(a *alternative, vs *viewSlice, d *device) (reason Reason, detail string) {
	sharing := d.shareable && s.o.Features.ConsumableCapacity
	if s.inUse(a, vs, d, sharing) {
		return ReasonInUse, ""
	}
	if !s.hasCapacity(a, vs, d) {
		return ReasonShared, s.shortCapacity(a, vs, d)
	}
	mark := s.mark()
	ok := s.takeCounters(a, vs, d, sharing)
	s.undo(mark)
	if ok {
		return "", ""
	}
	p := s.countersOf(vs)
	for _, u := range vs.pool.layout.of(d) {
		for _, c := range u.amounts {
			if p.counters[c.counter].cmp(c.amount) < 0 {
				return ReasonCounter, vs.pool.layout.names[c.counter]
			}
		}
	}
	for i, u := range vs.pool.layout.of(d) {
		if !p.groups[u.set].admits(u.groups) {
			return ReasonGroup, d.api.ConsumesCounters[i].CounterSet
		}
	}
	return ReasonCounter, d.api.ConsumesCounters[0].CounterSet // names a set twice
}

// shortCapacity names the first capacity of which too little is left.
func (s *search) shortCapacity(a *alternative, vs *viewSlice, d *device) string {
	n, u := a.need(vs.first+d.index), s.use(vs).of(d.name)
	for i := range n.amounts {
		if n.amounts[i].add(u.capacity[d.capacities[i].name]).cmp(d.capacities[i].value) > 0 {
			return string(d.capacities[i].name)
		}
	}
	return ""
}

// everCounts tells whether the device's counters would suffice if nothing were in use.
func (s *search) everCounts(vs *viewSlice, d *device) bool {
	for _, u := range vs.pool.layout.of(d) {
		for _, c := range u.amounts {
			if vs.pool.layout.totals[c.counter].cmp(c.amount) < 0 {
				return false
			}
		}
	}
	return true
}

// together adds, for requests that have enough devices each, why they do not get them together:
// a constraint, or other requests.
func (s *search) together(ctx context.Context, c int, alone bool, fits fitter, u *UnfitClaim) {
	reason, detail := ReasonTaken, ""
	if !alone && len(s.constraints[c]) > 0 {
		free := s.claims[c].DeepCopy()
		free.Spec.Devices.Constraints = nil
		if fits(ctx, []*resourceapi.ResourceClaim{free}, false) {
			reason, detail = ReasonConstraint, s.constraintText(ctx, c)
		}
	}
	if !alone && reason == ReasonTaken && slices.ContainsFunc(s.requests[c], func(r *request) bool { return !s.enough(r, u) }) {
		return // a request lacks devices whatever the others take
	}
	for i := range u.Requests {
		r := &u.Requests[i]
		if r.Usable > 0 && int64(r.Usable) >= r.Wanted {
			r.Obstacles = append(r.Obstacles, Obstacle{Reason: reason, Detail: detail, Devices: r.Usable})
		}
	}
}

// enough tells whether an alternative of the request has enough usable devices.
func (s *search) enough(r *request, u *UnfitClaim) bool {
	return slices.ContainsFunc(u.Requests, func(x UnfitRequest) bool {
		return slices.ContainsFunc(r.alternatives, func(a *alternative) bool { return a.name == x.Request }) &&
			x.Usable > 0 && int64(x.Usable) >= x.Wanted
	})
}

// constraintText says for each constraint of the claim how many usable devices have which value.
func (s *search) constraintText(ctx context.Context, c int) string {
	var texts []string
	for _, con := range s.constraints[c] {
		what := "matchAttribute"
		if con.distinct {
			what = "distinctAttribute"
		}
		var parts []string
		for _, a := range s.alternatives {
			if a.claim == c && slices.Contains(a.constraints, con) {
				parts = append(parts, fmt.Sprintf("%s has %s", a.name, s.valuesText(ctx, con, a)))
			}
		}
		texts = append(texts, fmt.Sprintf("%s %s: %s", what, con.name, strings.Join(parts, ", ")))
	}
	return strings.Join(texts, "; ")
}

// valuesText counts the usable devices by value.
func (s *search) valuesText(ctx context.Context, con *constraint, a *alternative) string {
	counts := map[string]int{}
	for i := range s.view.slices {
		vs := &s.view.slices[i]
		for j := range vs.devices {
			d := &vs.devices[j]
			if reason, _ := s.reason(ctx, a, vs, d); reason != "" {
				continue
			}
			if v, found, err := s.attribute(ctx, con, a, d); found && err == nil {
				counts[v.String()]++
			}
		}
	}
	const most = 8
	var parts []string
	for _, v := range sortedKeys(counts) {
		if len(parts) == most {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, fmt.Sprintf("%d × %s", counts[v], v))
	}
	return strings.Join(parts, " + ")
}

// String is the value as in CEL.
func (v value) String() string {
	var parts []string
	for _, e := range v.all() {
		switch v.kind {
		case kindInt:
			parts = append(parts, fmt.Sprint(e.number))
		case kindBool:
			parts = append(parts, fmt.Sprint(e.number != 0))
		case kindOther:
			parts = append(parts, "no comparable value")
		default:
			parts = append(parts, fmt.Sprintf("%q", e.text))
		}
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// rootOf returns the innermost error.
func rootOf(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
