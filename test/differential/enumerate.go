package differential

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Reference enumerates all assignments of devices in upstream's order: claims,
// requests, alternatives and devices as they come, combinations within one
// request. It has no shortcut but the limit of results per claim, so "does not fit"
// is proven. With bugs it behaves as upstream does because of them.
type Reference struct {
	c      *Case
	bugs   Bugs
	budget int64
	// lenient passes over devices on which an expression fails, instead of ending the search.
	lenient bool
	// counters is what CounterCache remembers across nodes.
	counters map[string]map[string]map[string]quantity
	groups   map[string]map[string]groupState
}

// NewReference prepares an enumeration of the case, of at most budget steps per node.
func NewReference(c *Case, bugs Bugs, budget int64) *Reference {
	return &Reference{c: c, bugs: bugs, budget: budget, counters: map[string]map[string]map[string]quantity{}, groups: map[string]map[string]groupState{}}
}

// Lenient makes an error that the search meets on a device a reason not to take the
// device, and returns the enumeration.
func (r *Reference) Lenient() *Reference {
	r.lenient = true
	return r
}

var (
	errTooMany = errors.New("more results than a claim can have")
	errBudget  = errors.New("enumeration budget used up")
)

// Allocate returns the first solution for the node.
func (r *Reference) Allocate(node *corev1.Node) Answer {
	e := r.enumerationFor(node)
	answer := e.answer()
	answer.Steps = r.budget - e.left
	return answer
}

func (r *Reference) enumerationFor(node *corev1.Node) *enumeration {
	return &enumeration{
		Reference: r, node: node, left: r.budget, use: r.c.usage(), inflight: map[deviceKey][]chosen{},
		shared: map[deviceKey]map[resourceapi.QualifiedName]quantity{}, selection: map[selectionKey]bool{},
		used: map[string]map[string]map[string]quantity{}, rolling: map[string]map[string]groupState{},
	}
}

type selectionKey struct {
	alt *alternative
	d   *deviceView
}

// enumeration is one depth-first search.
type enumeration struct {
	*Reference
	node   *corev1.Node
	pools  []*poolView
	usable []*deviceView
	alts   [][][]*alternative // claim, request, alternative
	left   int64
	use    *usage

	results  [][]chosen
	served   [][]*alternative // who serves each request of the solution
	inflight map[deviceKey][]chosen
	shared   map[deviceKey]map[resourceapi.QualifiedName]quantity
	used     map[string]map[string]map[string]quantity
	rolling  map[string]map[string]groupState

	selection map[selectionKey]bool
}

func (e *enumeration) answer() Answer {
	unfit, err := e.prepare()
	if err != nil {
		return Answer{Verdict: Fails, Err: err}
	}
	if unfit {
		return Answer{Verdict: DoesNotFit}
	}
	e.reset()
	ok, err := e.search(0, 0)
	switch {
	case errors.Is(err, errBudget):
		return Answer{Verdict: GivesUp}
	case errors.Is(err, errTooMany):
		return Answer{Verdict: DoesNotFit}
	case err != nil:
		return Answer{Verdict: Fails, Err: err, OnTheWay: true}
	case !ok:
		return Answer{Verdict: DoesNotFit}
	}
	results, err := e.c.build(e.node, e.results, e.served, e.bugs)
	if err != nil {
		return Answer{Verdict: Fails, Err: err}
	}
	return Answer{Verdict: Fits, Results: results}
}

// reset starts with no device chosen, and the first alternative of each request.
func (e *enumeration) reset() {
	e.results, e.served = make([][]chosen, len(e.alts)), make([][]*alternative, len(e.alts))
	for i, requests := range e.alts {
		for _, alts := range requests {
			e.served[i] = append(e.served[i], alts[0])
		}
	}
}

// prepare validates the requests and lists the devices of "All" requests.
func (e *enumeration) prepare() (unfit bool, err error) {
	if e.pools, err = e.c.pools(e.node, e.bugs); err != nil {
		return false, err
	}
	if !e.bugs.Has(LateValidation) {
		if err := e.c.malformed(e.bugs); err != nil {
			return false, err
		}
	}
	for _, p := range e.pools {
		if p.usable() {
			e.usable = append(e.usable, p.devices...)
		}
	}
	for i, claim := range e.c.Claims {
		e.alts = append(e.alts, alternatives(i, claim))
		least := int64(0)
		for _, alts := range e.alts[i] {
			n, err := e.prepareRequest(alts)
			if err != nil {
				return false, err
			}
			if n > maxResults-least {
				if e.bugs.Has(P15) {
					return false, fmt.Errorf("claim %d wants %d and more: exceeds the claim limit", i, maxResults)
				}
				unfit = true
				n = 0
			}
			least += n
		}
		for _, c := range claim.Spec.Devices.Constraints {
			if c.MatchAttribute == nil && c.DistinctAttribute == nil {
				return false, errors.New("empty constraint")
			}
		}
	}
	return unfit, nil
}

// prepareRequest returns the least number of devices that the request needs.
func (e *enumeration) prepareRequest(alts []*alternative) (int64, error) {
	if len(alts) == 0 {
		return 0, errors.New("neither exactly nor firstAvailable")
	}
	f := e.c.Features
	for _, a := range alts {
		if a.parent != "" && !f.PrioritizedList {
			return 0, errors.New("prioritized list is off")
		}
		if a.capacity != nil && !f.ConsumableCapacity {
			return 0, errors.New("consumable capacity is off")
		}
	}
	least := int64(-1)
	for _, a := range alts {
		if err := e.prepareAlternative(a); err != nil {
			return 0, err
		}
		if !a.dead && (least < 0 || a.n < least) {
			least = a.n
		}
	}
	return max(least, 0), nil
}

func (e *enumeration) prepareAlternative(a *alternative) error {
	if len(a.derived) > 0 && !e.c.Features.DerivedAttributes {
		return errors.New("derived attributes are off")
	}
	for _, s := range a.selectors {
		if s.CEL == nil {
			return errors.New("selector without expression")
		}
	}
	if a.hasAdmin && !e.c.Features.AdminAccess {
		return errors.New("admin access is off")
	}
	if a.className == "" {
		return errors.New("class name is empty")
	}
	if a.class = e.c.class(a.className); a.class == nil {
		if e.bugs.Has(P9) {
			return fmt.Errorf("could not retrieve device class %s", a.className)
		}
		a.dead = true
	} else if !e.bugs.Has(ClassWithoutCEL) {
		for _, s := range a.class.Spec.Selectors {
			if s.CEL == nil {
				return errors.New("class selector without expression")
			}
		}
	}
	switch a.mode {
	case resourceapi.DeviceAllocationModeExactCount:
		if a.n = a.count; a.count < 1 && !e.bugs.Has(CountZero) {
			return errors.New("count below one")
		}
		return nil
	case resourceapi.DeviceAllocationModeAll:
		if a.dead {
			return nil
		}
		return e.prepareAll(a)
	default:
		return fmt.Errorf("allocation mode %q", a.mode)
	}
}

// prepareAll lists the devices of an "All" request: everything that matches, whether in use or not.
func (e *enumeration) prepareAll(a *alternative) error {
	for _, p := range e.pools {
		if !p.usable() {
			if e.bugs.Has(P8) {
				return fmt.Errorf("pool %s/%s is currently being updated, or is currently invalid", p.driver, p.pool)
			}
			if e.c.mayServe(a, p) {
				a.dead = true
			}
			continue
		}
		for _, d := range p.devices {
			ok, err := e.selects(a, d)
			if err != nil {
				return err
			}
			if ok && e.c.Features.ConsumableCapacity {
				if _, ok, err = amounts(a.capacity, d.dev, e.c.Features.FractionalCapacityRange); err != nil {
					return err
				}
			}
			if ok && (e.bugs.Has(I141091) || featuresAllow(e.c, e.node, d)) {
				a.all = append(a.all, d)
			}
		}
	}
	a.n = int64(len(a.all))
	return nil
}

func (e *enumeration) selects(a *alternative, d *deviceView) (bool, error) {
	key := selectionKey{a, d}
	if ok, known := e.selection[key]; known {
		return ok, nil
	}
	ok, err := a.selectable(e.c, e.node, d)
	if err == nil {
		e.selection[key] = ok
	}
	return ok, err
}

// search goes on with a request, all before it being served.
func (e *enumeration) search(claim, request int) (bool, error) {
	if claim == len(e.alts) {
		return true, nil
	}
	if request == len(e.alts[claim]) {
		ok, err := e.search(claim+1, 0)
		if errors.Is(err, errTooMany) {
			return false, nil // other alternatives of this claim change nothing, others may
		}
		return ok, err
	}
	alts := e.alts[claim][request]
	if alts[0].parent == "" {
		return e.fill(alts[0], 0, 0)
	}
	tooMany := true
	for _, a := range alts {
		ok, err := e.fill(a, 0, 0)
		if errors.Is(err, errTooMany) {
			continue
		}
		if ok || err != nil {
			e.served[claim][request] = a
			return ok, err
		}
		tooMany = false
	}
	if tooMany {
		return false, errTooMany
	}
	return false, nil
}

// fill chooses the k-th device of the alternative among the devices from start on.
func (e *enumeration) fill(a *alternative, k int64, start int) (bool, error) {
	if e.left--; e.left < 0 {
		return false, errBudget
	}
	all := a.mode == resourceapi.DeviceAllocationModeAll
	if a.dead || all && len(a.all) == 0 {
		return false, nil
	}
	if k >= a.n {
		return e.search(a.claim, a.request+1)
	}
	if a.n-k > int64(maxResults-len(e.results[a.claim])) {
		return false, errTooMany
	}
	if all {
		return e.try(a, a.all[k], k, 0)
	}
	for i := start; i < len(e.usable); i++ {
		d := e.usable[i]
		if e.taken(a, d) {
			continue
		}
		ok, err := e.selects(a, d)
		if ok && err == nil {
			ok, err = e.roomFor(a, d)
		}
		if err != nil && !e.lenient {
			return false, err
		}
		if !ok || err != nil {
			continue
		}
		if ok, err = e.try(a, d, k, i+1); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// try takes the device, goes on, and gives it back if that leads nowhere.
func (e *enumeration) try(a *alternative, d *deviceView, k int64, next int) (bool, error) {
	ok, undo, err := e.place(a, d)
	if e.lenient && err != nil {
		return false, nil
	}
	if !ok || err != nil {
		return false, err
	}
	if ok, err = e.fill(a, k+1, next); ok && err == nil {
		return true, nil
	}
	undo()
	return false, err
}

// taken reports whether the device is out of the question because of who holds it.
func (e *enumeration) taken(a *alternative, d *deviceView) bool {
	for _, x := range e.inflight[d.key] {
		switch {
		case x.alt.claim == a.claim:
			return true
		case !a.admin && (!x.alt.admin || e.bugs.Has(P3)):
			return true
		}
	}
	if a.admin {
		return false
	}
	if e.use.exclusive[d.key] {
		return true
	}
	return !e.bugs.Has(P13) && !multiple(e.c, d) && len(e.use.shares[d.key]) > 0
}
