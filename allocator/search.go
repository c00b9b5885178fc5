package allocator

import (
	"context"
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// search is one search for one node. Only one goroutine works with it. Its memory is used
// again for other searches, so nothing that outlives a search may point into it.
type search struct {
	allocator *Allocator
	inv       *Inventory
	state     *State
	o         *Options
	node      *corev1.Node
	view      *nodeView
	claims    []*resourceapi.ResourceClaim

	requests     [][]*request // per claim
	alternatives []*alternative
	constraints  [][]*constraint // per claim

	requestMemory     recycled[request]
	alternativeMemory recycled[alternative]
	constraintMemory  recycled[constraint]
	needMemory        recycled[need]

	flight
	derivedValues map[derivedKey]*resourceapi.DeviceAttribute

	steps, maxSteps int64
	cost            uint64 // of CEL
	deep            *deep  // nil in the plain search
}

// begin prepares the search for the claims: enter has to follow.
func (s *search) begin(a *Allocator, claims []*resourceapi.ResourceClaim) error {
	s.allocator, s.inv, s.state, s.o = a, a.inv, &a.state, &a.o
	s.claims = claims
	return s.claimRequests()
}

// enter turns to the node, with nothing allocated.
func (s *search) enter(node *corev1.Node) error {
	view, err := s.inv.view(node, s.o.Features.poolFilter())
	if err != nil {
		return err
	}
	s.enterView(node, view)
	return nil
}

func (s *search) enterView(node *corev1.Node, view *nodeView) {
	s.node, s.view = node, view
	s.steps, s.maxSteps, s.cost, s.deep = 0, s.o.MaxSteps, 0, nil
	clear(s.derivedValues)
	s.needMemory.giveBack()
	s.flight.init(view, s.claims)
	for _, a := range s.alternatives {
		a.status = cleared(a.status, view.devices)
		a.needs = a.needs[:0]
		a.list = a.list[:0]
		a.impossible = impossible{}
	}
	for _, list := range s.constraints {
		for _, c := range list {
			c.devices, c.common, c.seen = 0, value{}, c.seen[:0]
		}
	}
}

// solve searches. found is false when the claims do not fit.
//
// A plain search in upstream's order comes first: most calls end within a few steps per
// device. If it takes longer, the search begins anew with all that deep knows.
func (s *search) solve(ctx context.Context) (found bool, err error) {
	if err := s.listAll(ctx); err != nil || s.tooMany() {
		return false, err
	}
	if s.allocator.plainSteps >= 0 {
		s.maxSteps = min(s.steps+s.allocator.plainSteps+int64(2*s.view.devices*len(s.alternatives)), s.o.MaxSteps)
		found, err = s.fillClaim(ctx, 0)
		if !errors.Is(err, ErrSteps) || s.maxSteps == s.o.MaxSteps || s.cost > s.o.MaxCost {
			return found, err
		}
	}
	s.maxSteps = s.o.MaxSteps
	s.undo(0)
	if s.deep, err = newDeep(ctx, s); err != nil {
		return false, err
	}
	return s.fillClaim(ctx, 0)
}

// step counts one unit of work.
func (s *search) step(ctx context.Context) error {
	const often = 128
	s.steps++
	if s.steps > s.maxSteps {
		return ErrSteps
	}
	if s.steps%often == 0 && ctx.Err() != nil {
		return fmt.Errorf("search aborted: %w", context.Cause(ctx))
	}
	return nil
}

// listAll determines the devices of the requests with allocation mode All. As upstream, an
// error on any device of the node is fatal. A pool of which not all devices are known makes the
// request impossible, unless the class and request selectors rule out the pool's driver.
func (s *search) listAll(ctx context.Context) error {
	for _, a := range s.alternatives {
		if !a.all || a.class == nil {
			continue
		}
		for _, pv := range s.view.pools {
			if pv.obstacle != "" && !a.excludes(pv.driver) {
				a.impossible = impossible{why: fmt.Sprintf("not all devices of pool \"%s/%s\" are known: %s", pv.driver, pv.name, pv.obstacle), pool: pv}
				break
			}
		}
		for i := range s.view.slices {
			vs := &s.view.slices[i]
			for j := range vs.devices {
				if err := s.step(ctx); err != nil {
					return err
				}
				listed, err := s.listed(ctx, a, vs, &vs.devices[j])
				if err != nil {
					return err
				}
				if listed {
					a.list = append(a.list, place{slice: i, device: j})
				}
			}
		}
	}
	return nil
}

// tooMany tells whether a claim needs more than 32 results whatever is chosen. As upstream, no
// device is looked at then.
func (s *search) tooMany() bool {
	for _, requests := range s.requests {
		left := int64(resourceapi.AllocationResultsMaxSize)
		for _, r := range requests {
			least, possible := int64(math.MaxInt64), false
			for _, a := range r.alternatives {
				if a.class != nil && a.impossible.why == "" {
					least, possible = min(least, a.wants()), true
				}
			}
			if !possible {
				least = 0 // the search finds out
			}
			if least > left {
				return true
			}
			left -= least
		}
	}
	return false
}

// listed tells whether the device is one of "all": the selectors match, it is for the node, has
// the capacity and needs no feature that is missing. Whether it is free is of no matter.
func (s *search) listed(ctx context.Context, a *alternative, vs *viewSlice, d *device) (bool, error) {
	reason, _, err := s.verdict(ctx, a, vs, d)
	if err != nil {
		return false, err
	}
	a.remember(vs.first+d.index, reason)
	switch reason {
	case ReasonClass, ReasonSelector, ReasonNode, ReasonCapacity, ReasonFeature:
		return false, nil
	}
	return true, nil
}

// fillClaim allocates the claim and all after it.
func (s *search) fillClaim(ctx context.Context, c int) (bool, error) {
	if c == len(s.claims) {
		return true, nil
	}
	return s.fillRequest(ctx, c, 0)
}

// fillRequest allocates the request of the claim and all after it: the first alternative with
// which that succeeds.
func (s *search) fillRequest(ctx context.Context, c, r int) (bool, error) {
	if r == len(s.requests[c]) {
		return s.fillClaim(ctx, c+1)
	}
	level, ok := s.deep.open(c, r, nil, 0, 0)
	if !ok {
		return false, nil
	}
	for _, a := range s.requests[c][r].alternatives {
		if err := s.step(ctx); err != nil {
			return false, err
		}
		if !s.canBegin(a) {
			continue
		}
		s.chosen[c][r] = a
		done, err := s.fill(ctx, a, 0, place{})
		if done || err != nil {
			return done, err
		}
	}
	s.deep.close(level)
	return false, nil
}

// canBegin tells whether the alternative can be tried at this point: it is possible, and its
// devices are within what is left of the 32 results of the claim.
func (s *search) canBegin(a *alternative) bool {
	left := int64(resourceapi.AllocationResultsMaxSize - len(s.placed[a.claim]))
	wants := a.wants()
	return a.class != nil && a.impossible.why == "" && wants > 0 && wants <= left
}

// fill allocates the k-th device of the alternative and all after it, trying the devices from
// the given place on: the devices of one request are a combination, so they go in one order
// only.
func (s *search) fill(ctx context.Context, a *alternative, k int, from place) (bool, error) {
	switch {
	case int64(k) == a.wants():
		return s.fillRequest(ctx, a.claim, a.request+1)
	case a.all:
		// There is no choice.
		return s.tryAt(ctx, a, k, a.list[k])
	}
	level, ok := s.deep.open(a.claim, a.request, a, k, s.view.position(from))
	if !ok {
		return false, nil
	}
	for i := from.slice; i < len(s.view.slices); i++ {
		vs := &s.view.slices[i]
		if vs.noneFor(a) {
			from.device = 0
			continue
		}
		for j := from.device; j < len(vs.devices); j++ {
			if level.skips(vs.first + j) {
				continue
			}
			done, err := s.tryAt(ctx, a, k, place{slice: i, device: j})
			if done || err != nil {
				return done, err
			}
		}
		from.device = 0
	}
	s.deep.close(level)
	return false, nil
}

// tryAt allocates the device at the place as the k-th of the alternative and all that comes
// after it. If that does not succeed all is as before.
func (s *search) tryAt(ctx context.Context, a *alternative, k int, at place) (bool, error) {
	if err := s.step(ctx); err != nil {
		return false, err
	}
	mark := s.mark()
	ok, err := s.take(ctx, a, at)
	if err != nil {
		return false, err
	}
	if !ok {
		s.undo(mark)
		return false, nil
	}
	done, err := s.fill(ctx, a, k+1, place{slice: at.slice, device: at.device + 1})
	if done || err != nil {
		return done, err
	}
	s.undo(mark)
	return false, nil
}
