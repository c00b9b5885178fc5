package allocator

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// State tells which devices, shares and capacity are in use. The zero value is nothing in
// use, ready for Add. Copies of a State share their content; Clone makes an independent one.
// Not safe for concurrent use while it is changed.
type State struct {
	features Features
	content  *stateContent
}

type stateContent struct {
	pools map[string]*poolUse // key: poolKey
}

// poolUse is what is in use of one pool.
type poolUse struct {
	owner   *stateContent         // whoever may modify it; others copy it first
	devices map[string]*deviceUse // key: device name
}

// deviceUse is immutable: a change replaces it.
type deviceUse struct {
	exclusive int // allocations of the whole device
	shares    int
	capacity  map[resourceapi.QualifiedName]amount // consumed by the shares
}

// StateOf returns what the allocated ones among the claims use. Results with adminAccess use
// nothing. A share of a device (a result with shareID) leaves the rest of the device usable if
// features.ConsumableCapacity is set, else it counts as the whole device.
//
// Source: kubernetes pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go (v1.37).
func StateOf(claims []*resourceapi.ResourceClaim, features Features) State {
	s := State{features: features}
	for _, claim := range claims {
		s.Add(claim)
	}
	return s
}

// Add counts what the claim has allocated. A claim without allocation changes nothing. The
// caller adds each claim once; several claims that hold the same device are counted.
func (s *State) Add(claim *resourceapi.ResourceClaim) { s.change(claim, 1) }

// Remove takes back one Add of a claim with the same allocation.
func (s *State) Remove(claim *resourceapi.ResourceClaim) { s.change(claim, -1) }

// Clone returns an independent copy, in time proportional to the number of pools in use.
func (s *State) Clone() State {
	if s.content == nil {
		return *s
	}
	// Neither of the two owns the shared poolUses any more.
	pools := s.content.pools
	s.content = &stateContent{pools: pools}
	return State{features: s.features, content: &stateContent{pools: maps.Clone(pools)}}
}

func (s *State) change(claim *resourceapi.ResourceClaim, by int) {
	if claim == nil || claim.Status.Allocation == nil {
		return
	}
	if s.content == nil {
		s.content = &stateContent{pools: map[string]*poolUse{}}
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		pool := s.content.writable(poolKey(r.Driver, r.Pool))
		next := pool.devices[r.Device].with(r, by, s.features.ConsumableCapacity)
		if next.exclusive <= 0 && next.shares <= 0 {
			delete(pool.devices, r.Device)
		} else {
			pool.devices[r.Device] = next
		}
	}
}

// writable returns the pool's entry, copied first if somebody else may read it.
func (c *stateContent) writable(key string) *poolUse {
	pool := c.pools[key]
	switch {
	case pool == nil:
		pool = &poolUse{owner: c, devices: map[string]*deviceUse{}}
	case pool.owner != c:
		pool = &poolUse{owner: c, devices: maps.Clone(pool.devices)}
	default:
		return pool
	}
	c.pools[key] = pool
	return pool
}

// with returns the use after adding (by 1) or removing (by -1) one result. u may be nil.
func (u *deviceUse) with(r *resourceapi.DeviceRequestAllocationResult, by int, sharing bool) *deviceUse {
	next := deviceUse{}
	if u != nil {
		next = *u
	}
	if r.ShareID == nil || !sharing {
		next.exclusive += by
		return &next
	}
	next.shares += by
	if len(r.ConsumedCapacity) == 0 {
		return &next
	}
	next.capacity = maps.Clone(next.capacity)
	if next.capacity == nil {
		next.capacity = map[resourceapi.QualifiedName]amount{}
	}
	for name, q := range r.ConsumedCapacity {
		if by > 0 {
			next.capacity[name] = next.capacity[name].add(amountOf(q))
		} else {
			next.capacity[name] = next.capacity[name].sub(amountOf(q))
		}
	}
	return &next
}

// pool returns what is in use of the pool, nil for nothing.
func (s *State) pool(key string) *poolUse {
	if s.content == nil {
		return nil
	}
	return s.content.pools[key]
}

// of returns what is in use of the device, nil for nothing.
func (p *poolUse) of(device string) *deviceUse {
	if p == nil {
		return nil
	}
	return p.devices[device]
}

// allocated tells whether anything of the device is in use.
func (u *deviceUse) allocated() bool { return u != nil }
