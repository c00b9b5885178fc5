package cluster

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

func TestAnswersOfTheAPIServerAreTheStoresErrors(t *testing.T) {
	resource := v1alpha1.Resource("deviceledgers")
	known := []error{ledger.ErrNotFound, ledger.ErrConflict, ledger.ErrThrottled}
	for _, c := range []struct {
		name string
		err  error
		want error // nil: none of the known ones, an outage
	}{
		{"gone", apierrors.NewNotFound(resource, "q"), ledger.ErrNotFound},
		{"changed since", apierrors.NewConflict(resource, "q", errors.New("changed")), ledger.ErrConflict},
		{"exists already", apierrors.NewAlreadyExists(resource, "q"), ledger.ErrConflict},
		{"priority and fairness rejects", apierrors.NewTooManyRequests("busy", 1), ledger.ErrThrottled},
		{"not allowed is an outage", apierrors.NewForbidden(resource, "q", errors.New("no role")), nil},
		{"broken is an outage", apierrors.NewInternalError(errors.New("etcd")), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := mapError(c.err, "q", "update")
			for _, k := range known {
				if errors.Is(got, k) != (k == c.want) {
					t.Errorf("errors.Is(%v, %v) is %v", got, k, errors.Is(got, k))
				}
			}
			if c.want == nil && !errors.Is(got, c.err) {
				t.Errorf("%v lost its cause", got)
			}
		})
	}
}
