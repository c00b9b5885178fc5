package cluster

import (
	resourceapi "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	"k8s.io/utils/ptr"
)

// DefaultClaimSpec sets what the API server defaults, since conversions between versions do
// not. It changes nothing on what the server has defaulted already.
// Source: kubernetes pkg/apis/resource/v1/defaults.go (v1.37).
func DefaultClaimSpec(spec *resourceapi.ResourceClaimSpec) {
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if e := request.Exactly; e != nil {
			defaultMode(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range request.FirstAvailable {
			s := &request.FirstAvailable[j]
			defaultMode(&s.AllocationMode, &s.Count)
			defaultTolerations(s.Tolerations)
		}
	}
}

func defaultMode(mode *resourceapi.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func defaultTolerations(ts []resourceapi.DeviceToleration) {
	for i := range ts {
		if ts[i].Operator == "" {
			ts[i].Operator = resourceapi.DeviceTolerationOpEqual
		}
	}
}

// taintRuleV1alpha3 converts by hand: there is no conversion outside the API server.
func taintRuleV1alpha3(in *resourcev1alpha3.DeviceTaintRule) *resourceapi.DeviceTaintRule {
	out := &resourceapi.DeviceTaintRule{ObjectMeta: in.ObjectMeta}
	t := in.Spec.Taint
	out.Spec.Taint = resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: resourceapi.DeviceTaintEffect(t.Effect), TimeAdded: t.TimeAdded}
	if s := in.Spec.DeviceSelector; s != nil {
		out.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: clone(s.Driver), Pool: clone(s.Pool), Device: clone(s.Device)}
	}
	return out
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return ptr.To(*p)
}
