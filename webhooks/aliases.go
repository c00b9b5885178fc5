package webhooks

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/quota"
)

// deviceID names a published device.
type deviceID struct{ driver, pool, device string }

// maxAliases bounds how many other classes are looked at for one key.
const maxAliases = 64

// reachedBy returns the first class, by name, through which a device of the class can be had
// and which the quota does not limit; "" when there is none, or when it costs too much to tell.
func reachedBy(q *quota.Quota, class string, inventory quota.Inventory) string {
	var others []string
	for _, other := range inventory.DeviceClasses() {
		if other != class && !limitsClass(q, other, inventory) {
			others = append(others, other)
		}
	}
	if len(others) == 0 || len(others) > maxAliases {
		return ""
	}
	devices := map[deviceID]bool{}
	ok, err := inventory.Candidates(class, nil, func(driver, pool string, d *resourceapi.Device, _ []string) bool {
		devices[deviceID{driver, pool, d.Name}] = true
		return true
	})
	if !ok || err != nil || len(devices) == 0 {
		return ""
	}
	for _, other := range others {
		found := false
		ok, err := inventory.Candidates(other, nil, func(driver, pool string, d *resourceapi.Device, _ []string) bool {
			found = devices[deviceID{driver, pool, d.Name}]
			return !found
		})
		if ok && err == nil && found {
			return other
		}
	}
	return ""
}

// limitsClass tells whether one of the quota's keys limits what comes through the class.
func limitsClass(q *quota.Quota, class string, inventory quota.Inventory) bool {
	return limited([]*quota.Quota{q}, class, inventory)
}

// defaultsToZero tells whether some device of the key's class gives nothing of the capacity
// to claims that do not ask for it.
func defaultsToZero(key *quota.Key, inventory quota.Inventory) bool {
	if key.Subject != quota.SubjectClass {
		return false
	}
	found := false
	ok, err := inventory.Candidates(key.Class, nil, func(driver, _ string, d *resourceapi.Device, _ []string) bool {
		c := capacityOf(d, driver, key.Of)
		found = c != nil && c.RequestPolicy != nil && c.RequestPolicy.Default != nil && c.RequestPolicy.Default.IsZero()
		return !found
	})
	return ok && err == nil && found
}

// capacityOf returns the device's capacity; a name without a domain is in the driver's.
func capacityOf(d *resourceapi.Device, driver string, name resourceapi.QualifiedName) *resourceapi.DeviceCapacity {
	full, short := name, name
	if domain, id, qualified := strings.Cut(string(name), "/"); !qualified {
		full = resourceapi.QualifiedName(driver + "/" + string(name))
	} else if domain == driver {
		short = resourceapi.QualifiedName(id)
	}
	for _, n := range []resourceapi.QualifiedName{short, full} {
		if c, ok := d.Capacity[n]; ok {
			return &c
		}
	}
	return nil
}
