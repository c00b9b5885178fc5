package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// asObject turns a typed result into a client.Object without managed fields.
func asObject[T client.Object](o T, err error) (client.Object, error) {
	if err != nil {
		return nil, err
	}
	o.SetManagedFields(nil)
	return o, nil
}

func errNoObject(obj runtime.Object) error { return fmt.Errorf("received a %T", obj) }

func parseVersion(obj client.Object) (uint64, error) {
	return strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
