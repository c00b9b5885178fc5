package differential

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Case is one complete input of an allocator: a cluster, what is allocated in it,
// and the claims that are to be allocated together.
type Case struct {
	// Seed generated the case; zero for cases written by hand.
	Seed uint64
	// Wild cases contain what the API server would reject.
	Wild bool
	// Features are the feature gates, by upstream's names.
	Features structured.Features
	// Classes are all device classes, sorted by name.
	Classes []*resourceapi.DeviceClass
	// Slices are all resource slices, sorted by name.
	Slices []*resourceapi.ResourceSlice
	// Nodes are all nodes; every one of them is asked about, in this order.
	Nodes []*corev1.Node
	// Allocated are claims with an allocation, the state of the cluster.
	Allocated []*resourceapi.ResourceClaim
	// Claims are to be allocated.
	Claims []*resourceapi.ResourceClaim
}

// deviceKey names a device.
type deviceKey struct {
	Driver, Pool, Device string
}

func (k deviceKey) String() string { return k.Driver + "/" + k.Pool + "/" + k.Device }

// class returns the class with the name, or nil.
func (c *Case) class(name string) *resourceapi.DeviceClass {
	for _, class := range c.Classes {
		if class.Name == name {
			return class
		}
	}
	return nil
}

// Clone returns a deep copy.
func (c *Case) Clone() *Case {
	out := &Case{Seed: c.Seed, Wild: c.Wild, Features: c.Features}
	for _, class := range c.Classes {
		out.Classes = append(out.Classes, class.DeepCopy())
	}
	for _, slice := range c.Slices {
		out.Slices = append(out.Slices, slice.DeepCopy())
	}
	for _, node := range c.Nodes {
		out.Nodes = append(out.Nodes, node.DeepCopy())
	}
	for _, claim := range c.Allocated {
		out.Allocated = append(out.Allocated, claim.DeepCopy())
	}
	for _, claim := range c.Claims {
		out.Claims = append(out.Claims, claim.DeepCopy())
	}
	return out
}

// usage is what the allocated claims hold, computed from their status alone.
type usage struct {
	exclusive map[deviceKey]bool
	shares    map[deviceKey][]share
}

// share is one share of a device that allows several allocations.
type share struct {
	id       types.UID
	consumed map[resourceapi.QualifiedName]quantity
}

// held reports whether the device is allocated in any way.
func (u *usage) held(k deviceKey) bool { return u.exclusive[k] || len(u.shares[k]) > 0 }

// usage reads the allocated claims: admin access holds nothing, a share ID makes
// a share if consumable capacity is on, all else is exclusive.
func (c *Case) usage() *usage {
	u := &usage{exclusive: map[deviceKey]bool{}, shares: map[deviceKey][]share{}}
	for _, claim := range c.Allocated {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			key := deviceKey{r.Driver, r.Pool, r.Device}
			if c.Features.ConsumableCapacity && r.ShareID != nil {
				s := share{id: *r.ShareID, consumed: map[resourceapi.QualifiedName]quantity{}}
				for name, q := range r.ConsumedCapacity {
					s.consumed[name] = q.DeepCopy()
				}
				u.shares[key] = append(u.shares[key], s)
				continue
			}
			u.exclusive[key] = true
		}
	}
	return u
}

// AllowAll has every feature on.
func AllowAll() structured.Features {
	return structured.Features{
		AdminAccess: true, CompatibilityGroups: true, ConsumableCapacity: true, DerivedAttributes: true,
		DeviceBindingAndStatus: true, DeviceTaints: true, FractionalCapacityRange: true, ListTypeAttributes: true,
		OptionalNodeOperations: true, PartitionableDevices: true, PrioritizedList: true,
	}
}

// Default137 has the features that kube-scheduler 1.37 passes by default.
func Default137() structured.Features {
	return structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		FractionalCapacityRange: true, PartitionableDevices: true, PrioritizedList: true,
	}
}

func (c *Case) String() string {
	return fmt.Sprintf("case %d: %d nodes, %d slices, %d claims, %d allocated", c.Seed, len(c.Nodes), len(c.Slices), len(c.Claims), len(c.Allocated))
}
