package allocator

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// ruleApplies tells whether the taint rule may be about devices of the pool. A rule without
// selector is about no device.
//
// Source: k8s.io/dynamic-resource-allocation/resourceslice/tracker, applyPatches (v0.37).
func ruleApplies(rule *resourceapi.DeviceTaintRule, driver, pool string) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && (s.Driver == nil || *s.Driver == driver) && (s.Pool == nil || *s.Pool == pool)
}

// taintsOf returns the device's own taints followed by those of the rules.
func taintsOf(d *device, rules []*resourceapi.DeviceTaintRule) []resourceapi.DeviceTaint {
	taints := d.api.Taints
	for _, rule := range rules {
		if name := rule.Spec.DeviceSelector.Device; name == nil || *name == d.api.Name {
			taints = append(slices.Clip(taints), rule.Spec.Taint)
		}
	}
	return taints
}

// untolerated returns the first taint that keeps the device from being allocated, nil when
// there is none. Only NoSchedule and NoExecute do; None and unknown effects are ignored.
func untolerated(taints []resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) *resourceapi.DeviceTaint {
	for i := range taints {
		switch taints[i].Effect {
		case resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
		default:
			continue
		}
		tolerated := slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taints[i])
		})
		if !tolerated {
			return &taints[i]
		}
	}
	return nil
}
