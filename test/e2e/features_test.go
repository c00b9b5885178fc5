//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/devicequota/devicequota/test/harness"
)

// What scenarios need beyond the first version of resource.k8s.io/v1.
var (
	prioritizedList    = harness.Feature{Name: "prioritized list", Gate: "DRAPrioritizedList", Since: 33}
	partitions         = harness.Feature{Name: "partitionable devices", Gate: "DRAPartitionableDevices", Since: 33}
	taints             = harness.Feature{Name: "device taints", Gate: "DRADeviceTaints", Since: 33}
	taintRules         = harness.Feature{Name: "device taint rules", Gate: "DRADeviceTaintRules", Since: 35}
	consumableCapacity = harness.Feature{Name: "consumable capacity", Gate: "DRAConsumableCapacity", Since: 34}
	extendedResources  = harness.Feature{Name: "extended resources", Gate: "DRAExtendedResource", Since: 34}
)

// gates switches on what is off by default in all components.
func gates() string {
	return kube.SwitchOn(prioritizedList, partitions, taints, taintRules, consumableCapacity, extendedResources)
}

// leftOut is what was not shown, and why.
var leftOut []string

// leaveOut notes that something is not shown here.
func leaveOut(t *testing.T, what string) {
	t.Helper()
	leftOut = append(leftOut, fmt.Sprintf("%s: Kubernetes %s: %s", t.Name(), kube.Version, what))
}

// needs leaves out the scenario where Kubernetes lacks a feature.
func needs(t *testing.T, features ...harness.Feature) {
	t.Helper()
	for _, f := range features {
		if !kube.Has(f) {
			leaveOut(t, fmt.Sprintf("has no %s (%s, since 1.%d)", f.Name, f.Gate, f.Since))
			kube.LeaveOut(t, leftOut[len(leftOut)-1])
		}
	}
}

// firstSeparateCounters is the minor version that wants counter sets in slices of their own.
const firstSeparateCounters = 35

// asThisVersionWants moves counter sets beside the devices that consume them, into the slice of
// the same pool, where Kubernetes wants them there.
func asThisVersionWants(objs []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	if kube.Minor >= firstSeparateCounters {
		return objs, nil
	}
	counters := map[string][]resourceapi.CounterSet{} // by node
	read := func(u *unstructured.Unstructured) (*resourceapi.ResourceSlice, error) {
		s := &resourceapi.ResourceSlice{}
		return s, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s)
	}
	var out []*unstructured.Unstructured
	for _, u := range objs {
		if u.GetKind() == "ResourceSlice" {
			s, err := read(u)
			if err != nil {
				return nil, err
			}
			if len(s.Spec.SharedCounters) > 0 {
				counters[*s.Spec.NodeName] = s.Spec.SharedCounters
				continue
			}
		}
		out = append(out, u)
	}
	for _, u := range out {
		if u.GetKind() != "ResourceSlice" {
			continue
		}
		s, err := read(u)
		if err != nil {
			return nil, err
		}
		sets, found := counters[*s.Spec.NodeName]
		if !found {
			continue
		}
		s.Spec.SharedCounters, s.Spec.Pool.ResourceSliceCount = sets, 1
		if u.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(s); err != nil {
			return nil, err
		}
		delete(counters, *s.Spec.NodeName)
	}
	if len(counters) > 0 {
		return nil, fmt.Errorf("no devices for the counters of %q", slices.Sorted(maps.Keys(counters)))
	}
	return out, nil
}
