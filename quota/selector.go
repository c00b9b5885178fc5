package quota

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Selector selects projects by labels and annotations of their Namespace; both must match.
// The zero Selector, like an empty one, matches every project.
// Source: GetObjectMatcher in openshift/library-go pkg/quota/clusterquotamapping/helpers.go.
type Selector struct {
	labels      labels.Selector // nil: no restriction
	annotations map[string]string
	ledger      v1alpha1.LedgerSelector
}

// SelectorOf returns the selector as a ledger stores it. With an error (malformed labels) the
// returned selector matches nothing.
func SelectorOf(l v1alpha1.LedgerSelector) (Selector, error) {
	s := Selector{ledger: *l.DeepCopy()}
	s.annotations = s.ledger.Annotations
	if l.Labels == nil {
		return s, nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(s.ledger.Labels)
	if err != nil {
		s.labels = labels.Nothing()
		return s, fmt.Errorf("labels: %w", err)
	}
	if !parsed.Empty() {
		s.labels = parsed
	}
	return s, nil
}

// Matches returns true if a namespace with these labels and annotations is selected.
func (s Selector) Matches(nsLabels, nsAnnotations map[string]string) bool {
	if s.labels != nil && !s.labels.Matches(labels.Set(nsLabels)) {
		return false
	}
	for k, v := range s.annotations {
		if got, ok := nsAnnotations[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Empty returns true if the selector does not restrict the selected projects.
func (s Selector) Empty() bool {
	return s.labels == nil && len(s.annotations) == 0
}

// Ledger returns the selector as a ledger stores it, the caller's own.
func (s Selector) Ledger() v1alpha1.LedgerSelector {
	return *s.ledger.DeepCopy()
}
