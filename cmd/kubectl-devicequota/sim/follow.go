package sim

import (
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Request is what somebody asked of a Cluster: whoever uses it, or a controller that it plays.
type Request struct {
	Operation admissionv1.Operation
	// Object as it was asked for: before any admission, without UID and status. For a DELETE only
	// its kind and name count.
	Object runtime.Object
	User   authenticationv1.UserInfo
	// Result is the answer to this request alone, without what controllers then made of the object.
	Result Result
}

// tell passes on a request that was answered.
func (c *Cluster) tell(op admissionv1.Operation, obj runtime.Object, user authenticationv1.UserInfo, r *Result) {
	alone := *r
	alone.Pods = nil
	c.o.Follow(Request{Operation: op, Object: obj, User: user, Result: alone})
}
