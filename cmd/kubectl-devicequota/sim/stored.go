package sim

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
)

// Exists tells whether an object of the kind and name is there already.
func (c *Cluster) Exists(obj runtime.Object) bool {
	ref := RefOf(obj)
	return c.made[workloadKey(ref)] != nil || c.stored(ref) != nil
}

// stored returns the object, nil when there is none.
func (c *Cluster) stored(r Ref) runtime.Object {
	s := c.state
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Kind {
	case "Namespace":
		if p := s.projects[r.Name]; p != nil && p.known {
			return &corev1.Namespace{ObjectMeta: p.meta}
		}
	case "ClusterResourceQuota":
		if crq := s.crqs[r.Name]; crq != nil {
			return crq
		}
	case "DeviceClass":
		if class := s.builder.Snapshot().DeviceClass(r.Name); class != nil {
			return class
		}
	case "Node":
		if node := s.builder.Snapshot().Node(r.Name); node != nil {
			return node
		}
	case "ResourceSlice":
		if slice := s.slices[r.Name]; slice != nil {
			return slice
		}
	case "DeviceTaintRule":
		if rule := s.rules[r.Name]; rule != nil {
			return rule
		}
	case "ResourceClaim":
		if o := s.names[name{quota.Claims, r.Namespace, r.Name}]; o != nil {
			return o.claim
		}
	case "Pod":
		if o := s.names[name{quota.Pods, r.Namespace, r.Name}]; o != nil {
			return o.pod
		}
	case "ResourceClaimTemplate":
		if t := s.templates[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}]; t != nil {
			return t
		}
	}
	return nil
}
