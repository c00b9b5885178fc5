package quota

import (
	corev1 "k8s.io/api/core/v1"
)

// Charge is what one object costs one quota.
type Charge struct {
	// Amounts are the costs by key, only keys that the quota limits; zero amounts are omitted.
	Amounts corev1.ResourceList
	// Unknown are the keys whose amount nobody tells.
	Unknown []UnknownCharge
	// Rules say how each amount came about, in the order of the claim's requests.
	Rules []Rule
	// UnknownClasses are the requested classes that do not exist, sorted.
	UnknownClasses []string
}

// UnknownCharge is a limited key whose amount no published device and no declared footprint tells.
type UnknownCharge struct {
	Key     corev1.ResourceName
	Request string
	Why     string
}

// Rule says how one request was charged for one key.
type Rule struct {
	Key     corev1.ResourceName
	Request string
	Text    string
}
