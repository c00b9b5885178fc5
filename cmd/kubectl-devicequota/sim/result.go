package sim

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/webhooks"
)

// Ref names an object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// String returns "kind namespace/name" in lower case, without the namespace where there is none.
func (r Ref) String() string {
	n := r.Name
	if r.Namespace != "" {
		n = r.Namespace + "/" + n
	}
	return strings.ToLower(r.Kind) + " " + n
}

// Pods counts the pods of a workload. A pod is admitted when it and its claims are.
type Pods struct {
	Admitted int `json:"admitted"`
	Denied   int `json:"denied"`
}

// Result is the answer to one request.
type Result struct {
	Object Ref
	// Allowed is false, too, when anything that controllers made of the object was refused.
	Allowed bool
	// Code is the HTTP status.
	Code int32
	// Reason is the first of webhooks.Reason that was given, or the API server's own; empty
	// when there is nothing to say.
	Reason  string
	Message string
	// Warnings as the API server passes them on.
	Warnings []string
	// Charge is what the object costs, with everything that was made of it; also what a refused
	// one would have cost.
	// quota -> key -> amount
	Charge map[string]corev1.ResourceList
	// Pods is set for workloads and pods.
	Pods *Pods
	// Made are the answers to what controllers made of the object.
	Made []Result
}

// Unconditional reports whether nothing at all was said but yes.
func (r *Result) Unconditional() bool { return r.Allowed && len(r.Warnings) == 0 }

// take notes a webhook's answer.
func (a *attempt) take(resp admission.Response) {
	a.Warnings = append(a.Warnings, resp.Warnings...)
	if resp.Allowed {
		return
	}
	status := resp.Result
	a.refuse(status.Code, status.Reason, status.Message)
	if status.Details != nil && len(status.Details.Causes) > 0 {
		a.Reason = string(status.Details.Causes[0].Type)
	}
}

func (a *attempt) refuse(code int32, reason metav1.StatusReason, message string) {
	a.Allowed, a.Code, a.Reason, a.Message = false, code, string(reason), message
}

// maxWarning is how long one warning may be, in bytes. Source: webhooks, warn.
const maxWarning = 120

// JoinWarnings returns the warnings as they were before they were cut to the length that the
// API server allows: neighbours with one reason belong together, and a word that fills a warning
// goes on in the next.
func JoinWarnings(warnings []string) []string {
	var out []string
	last, before := "", ""
	for _, w := range warnings {
		reason, text, ok := strings.Cut(w, ": ")
		if ok && reason == last && slices.Contains(webhooks.Reasons(), webhooks.Reason(reason)) {
			between := " "
			if full := len(reason) + 2 + len(before); full > maxWarning-utf8.UTFMax && !strings.Contains(before, " ") {
				between = ""
			}
			out[len(out)-1] += between + text
			before = text
			continue
		}
		last, before = reason, text
		out = append(out, w)
	}
	return out
}

// User returns the user that requests come from: without name and groups, one who may do
// everything; without a name, somebody in the groups.
func User(n string, groups []string) authenticationv1.UserInfo {
	switch {
	case n == "" && len(groups) == 0:
		n, groups = "kubernetes-admin", []string{Masters}
	case n == "":
		n = "somebody"
	}
	return authenticationv1.UserInfo{Username: n, Groups: append(slices.Clone(groups), "system:authenticated")}
}

// controller returns the identity of a controller of kube-controller-manager.
func controller(n string) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: "system:serviceaccount:kube-system:" + n,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}}
}

func kindOf(obj runtime.Object) string { return obj.GetObjectKind().GroupVersionKind().Kind }

func nameOf(obj runtime.Object) string {
	if m, err := meta.Accessor(obj); err == nil {
		return cmp.Or(m.GetName(), m.GetGenerateName())
	}
	return ""
}

// RefOf names the object.
func RefOf(obj runtime.Object) Ref {
	gvk := obj.GetObjectKind().GroupVersionKind()
	r := Ref{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}
	if m, err := meta.Accessor(obj); err == nil {
		r.Namespace, r.Name = m.GetNamespace(), cmp.Or(m.GetName(), m.GetGenerateName())
	}
	return r
}

// resourceOf returns the plural of a kind that the Cluster knows.
func resourceOf(kind string) string {
	lower := strings.ToLower(kind)
	if strings.HasSuffix(lower, "s") {
		return lower + "es"
	}
	return lower + "s"
}

// asksExtended tells whether the pod asks for a resource that devices may serve: the match
// condition of the webhook for such pods. Source: config/webhook/manifests.yaml.
func asksExtended(pod *corev1.Pod) bool {
	is := func(l corev1.ResourceList) bool {
		for k := range l {
			n := string(k)
			if strings.Contains(n, "/") && !strings.HasPrefix(n, "requests.") &&
				(!strings.Contains(n, "kubernetes.io/") || strings.HasPrefix(n, "deviceclass.resource.kubernetes.io/")) {
				return true
			}
		}
		return false
	}
	uses := func(c corev1.Container) bool { return is(c.Resources.Requests) || is(c.Resources.Limits) }
	return slices.ContainsFunc(pod.Spec.Containers, uses) || slices.ContainsFunc(pod.Spec.InitContainers, uses)
}
