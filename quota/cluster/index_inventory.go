package cluster

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// inventoryAt is an inventory with the versions that it was made from.
type inventoryAt struct {
	inventory         quota.Inventory
	version, recorded quota.Vector
}

// seedKey names one object's charge to one quota.
type seedKey struct {
	quota string
	uid   types.UID
}

// setInventory makes all charges follow the inventory, and returns how long that took: 0 when
// nothing had to be charged anew. Charges are computed without the lock; until they are put
// in, all at once, the index keeps its old versions.
func (x *index) setInventory(at inventoryAt) time.Duration {
	x.mu.Lock()
	if x.charger != nil && x.revision == at.inventory.Revision() {
		x.setInventoryVersionLocked(at)
		x.mu.Unlock()
		return 0
	}
	jobs := x.jobsLocked()
	x.mu.Unlock()
	begun := x.clock.Now()

	charger := quota.NewCharger(at.inventory)
	for i := range jobs {
		for k, c := range jobs[i].costs {
			jobs[i].costs[k] = computeFor(charger, jobs[i].object, jobs[i].quotas[k], c)
		}
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	x.charger, x.revision = charger, at.inventory.Revision()
	x.setInventoryVersionLocked(at)
	done := make(map[*object]job, len(jobs))
	for _, j := range jobs {
		done[j.object] = j
	}
	for _, o := range x.objects {
		x.putLocked(o, done[o])
	}
	for name := range x.accounts {
		x.changed(Change{Quota: name})
	}
	x.recount = x.clock.Since(begun)
	return x.recount
}

// size returns how many claims and pods are counted, and how long the last recount took.
func (x *index) size() (claims, pods int, recount time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.objects {
		if o.claim != nil {
			claims++
		}
	}
	return claims, len(x.objects) - claims, x.recount
}

func (x *index) setInventoryVersionLocked(at inventoryAt) {
	for _, c := range []quota.Component{quota.Slices, quota.Classes, quota.Nodes} {
		x.version[c] = max(x.version[c], at.version[c])
		x.recorded[c] = max(x.recorded[c], at.recorded[c])
	}
}

// job is one object to be charged by a new inventory. Objects are replaced when they change,
// so the same object is the same content.
type job struct {
	object *object
	costs  []cost
	quotas []*quota.Quota
}

func (x *index) jobsLocked() []job {
	jobs := make([]job, 0, len(x.objects))
	for _, o := range x.objects {
		if len(o.costs) == 0 {
			continue
		}
		j := job{object: o, costs: append([]cost(nil), o.costs...)}
		for _, c := range o.costs {
			j.quotas = append(j.quotas, c.account.quota)
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// putLocked takes over the computed costs where they are still those of the object's quotas,
// and computes the others.
func (x *index) putLocked(o *object, j job) {
	costs := make([]cost, 0, len(o.project.covering))
	for _, a := range o.project.covering {
		var found bool
		for k, c := range j.costs {
			if c.account == a && sameCharging(j.quotas[k], a.quota) {
				costs, found = append(costs, x.withSeed(o, c)), true
			}
		}
		if !found {
			last, _ := x.lastCost(o, a)
			costs = append(costs, x.compute(o, last))
		}
	}
	x.setCosts(o, costs)
}

// seed takes over what a ledger remembers, for objects of which this replica never computed
// a charge: after a restart the inventory may be gone that the charge came from.
func (x *index) seed(name string, remembered []v1alpha1.RememberedCharge) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.seeds {
		if k.quota == name {
			delete(x.seeds, k)
		}
	}
	a := x.accounts[name]
	for _, r := range remembered {
		x.seeds[seedKey{name, r.UID}] = r.Charge
		if o := x.objects[r.UID]; o != nil && a != nil {
			costs := append([]cost(nil), o.costs...)
			for i, c := range costs {
				if c.account == a {
					costs[i] = x.withSeed(o, c)
				}
			}
			x.setCosts(o, costs)
		}
	}
}

// withSeed charges an uncomputable object by what a ledger remembers if no charge was known.
func (x *index) withSeed(o *object, c cost) cost {
	charge, ok := x.seeds[seedKey{c.account.quota.Name, o.uid}]
	if c.computed || c.known != nil || !ok {
		return c
	}
	c.known = charge
	return x.compute(o, c)
}
