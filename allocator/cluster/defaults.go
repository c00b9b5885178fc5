package cluster

import (
	resourceapi "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	"k8s.io/utils/ptr"
)

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
