package quota

import "k8s.io/apimachinery/pkg/labels"

// Selector selects projects by labels and annotations of their Namespace; both must match.
type Selector struct {
	labels      labels.Selector
	annotations map[string]string
}
