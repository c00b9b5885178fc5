package sim

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// validName returns what is wrong with the object's name.
func validName(m metav1.Object) string {
	if m.GetName() == "" {
		return "metadata.name: Required value: name or generateName is required"
	}
	if msgs := validation.IsDNS1123Subdomain(m.GetName()); len(msgs) > 0 {
		return "metadata.name: Invalid value: " + m.GetName() + ": " + strings.Join(msgs, "; ")
	}
	return ""
}

// immutable returns what the API server says of a changed spec that may not change.
func immutable(a *attempt) string {
	now, before := claimSpecOf(a.obj), claimSpecOf(a.old)
	if now == nil || before == nil || equality.Semantic.DeepEqual(now, before) {
		return ""
	}
	return fmt.Sprintf("%s %q is invalid: spec: Invalid value: field is immutable", a.Object.Kind, a.Object.Name)
}

// adminNamespace returns a warning about adminAccess in a namespace that is not labelled for it: the
// API server would refuse it. It is no refusal here, where the webhooks decide, and the namespace
// may be known by its name alone.
// Source: k8s.io/kubernetes pkg/registry/resource, AuthorizedForAdmin (v1.37).
func (c *Cluster) adminNamespace(a *attempt) string {
	if kind := kindOf(a.obj); a.op != admissionv1.Create || kind != "ResourceClaim" && kind != "ResourceClaimTemplate" {
		return ""
	}
	claim, err := c.ClaimOf(a.obj)
	if err != nil || claim == nil {
		return "" // the webhook says what is wrong
	}
	for i := range claim.Spec.Devices.Requests {
		if exactly := claim.Spec.Devices.Requests[i].Exactly; exactly == nil || !ptr.Deref(exactly.AdminAccess, false) {
			continue
		}
		c.state.mu.Lock()
		defer c.state.mu.Unlock()
		if p := c.state.projects[claim.Namespace]; p != nil && p.meta.Labels[resourceapi.DRAAdminNamespaceLabelKey] == "true" {
			return ""
		}
		return fmt.Sprintf("spec.devices.requests[%d].adminAccess: the API server refuses it unless namespace %q has the label %s=true",
			i, claim.Namespace, resourceapi.DRAAdminNamespaceLabelKey)
	}
	return ""
}
