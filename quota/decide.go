package quota

import corev1 "k8s.io/api/core/v1"

// Denial says that a request does not fit one quota. The lists hold the failing keys only.
type Denial struct {
	Quota                    string
	Requested, Used, Limited corev1.ResourceList
	// Rules say how the failing keys were charged.
	Rules []Rule
	// Here is what this project uses, Elsewhere what the other projects use together.
	Here, Elsewhere corev1.ResourceList
	// Unknown are the keys that the charge is unknown for; then the lists may be empty.
	Unknown []UnknownCharge
}
