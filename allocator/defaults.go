package allocator

import resourceapi "k8s.io/api/resource/v1"

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
