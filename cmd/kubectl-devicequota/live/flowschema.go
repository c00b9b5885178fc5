package live

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// identity is a ServiceAccount.
type identity struct{ namespace, name string }

func (i identity) user() string { return "system:serviceaccount:" + i.namespace + ":" + i.name }

func (i identity) groups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + i.namespace, "system:authenticated"}
}

// productName labels what belongs to an installation, and is part of its names.
const productName = "devicequota"

// defaultIdentity is that of an installation with the default names.
var defaultIdentity = identity{"devicequota-system", "devicequota"}

// flowSchemas finds out which FlowSchema the manager's writes of ledgers are in: unless that is
// one of its own, they queue behind the creates that wait for them.
func (r *Reader) flowSchemas(ctx context.Context) []Finding {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: flowcontrolv1.GroupName, Version: "v1", Kind: "FlowSchemaList"})
	if err := r.List(ctx, list); err != nil {
		return unread("flowschema", err)
	}
	schemas := make([]flowcontrolv1.FlowSchema, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &schemas[i]); err != nil {
			return unread("flowschema", fmt.Errorf("%s: %w", list.Items[i].GetName(), err))
		}
	}
	return inForce(schemas, r.identities(ctx, schemas))
}

// inForce says for each identity which FlowSchema its writes are in.
func inForce(schemas []flowcontrolv1.FlowSchema, identities []identity) []Finding {
	// Source: k8s.io/apiserver pkg/util/apihelpers, FlowSchemaSequence: by precedence, then by name.
	schemas = slices.SortedFunc(slices.Values(schemas), func(a, b flowcontrolv1.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), cmp.Compare(a.Name, b.Name))
	})
	var out []Finding
	for _, who := range identities {
		var first, ours *flowcontrolv1.FlowSchema
		for i := range schemas {
			s := &schemas[i]
			if why, is := dangling(s); is {
				if own(s.ObjectMeta) {
					out = append(out, Finding{Level: Error, Check: "flowschema", Object: s.Name, Message: "is not in force: " + why})
				}
				continue
			}
			if !catches(s, who) {
				continue
			}
			if first == nil {
				first = s
			}
			if ours == nil && own(s.ObjectMeta) {
				ours = s
			}
		}
		out = append(out, verdict(first, ours, who))
	}
	return out
}

func verdict(first, ours *flowcontrolv1.FlowSchema, who identity) Finding {
	f := Finding{Level: Warning, Check: "flowschema", Object: who.user()}
	const slow = ": under load they queue behind the creates that wait for them"
	switch {
	case first == nil:
		f.Message = "no FlowSchema catches the manager's writes" + slow
	case ours == nil:
		f.Message = fmt.Sprintf("none of its own: the manager's writes are in FlowSchema %q%s", first.Name, slow)
	case first != ours:
		f.Message = fmt.Sprintf("FlowSchema %q (precedence %d) catches the manager's writes before %q (precedence %d)%s",
			first.Name, first.Spec.MatchingPrecedence, ours.Name, ours.Spec.MatchingPrecedence, slow)
	default:
		f.Level = Info
		f.Message = fmt.Sprintf("FlowSchema %q is in force (precedence %d, priority level %q)",
			ours.Name, ours.Spec.MatchingPrecedence, ours.Spec.PriorityLevelConfiguration.Name)
	}
	return f
}

// own tells whether an object belongs to an installation of the product.
func own(m metav1.ObjectMeta) bool {
	return m.Labels["app.kubernetes.io/name"] == productName || strings.Contains(m.Name, productName)
}

// dangling tells whether the API server leaves the FlowSchema out, since its priority level does
// not exist.
func dangling(s *flowcontrolv1.FlowSchema) (string, bool) {
	for _, c := range s.Status.Conditions {
		if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionTrue {
			return c.Message, true
		}
	}
	return "", false
}

// catches tells whether an update of a ledger by the identity matches the FlowSchema.
// Source: k8s.io/apiserver pkg/util/flowcontrol/rule.go, matchesFlowSchema (v1.37).
func catches(s *flowcontrolv1.FlowSchema, who identity) bool {
	for _, rule := range s.Spec.Rules {
		if slices.ContainsFunc(rule.Subjects, who.is) && slices.ContainsFunc(rule.ResourceRules, ledgerWrite) {
			return true
		}
	}
	return false
}

func (i identity) is(s flowcontrolv1.Subject) bool {
	switch s.Kind {
	case flowcontrolv1.SubjectKindUser:
		return s.User != nil && (s.User.Name == flowcontrolv1.NameAll || s.User.Name == i.user())
	case flowcontrolv1.SubjectKindGroup:
		return s.Group != nil && (s.Group.Name == flowcontrolv1.NameAll || slices.Contains(i.groups(), s.Group.Name))
	case flowcontrolv1.SubjectKindServiceAccount:
		return s.ServiceAccount != nil && s.ServiceAccount.Namespace == i.namespace &&
			(s.ServiceAccount.Name == flowcontrolv1.NameAll || s.ServiceAccount.Name == i.name)
	}
	return false
}

// ledgerWrite tells whether the rule is about updates of ledgers, which are of no namespace.
func ledgerWrite(r flowcontrolv1.ResourcePolicyRule) bool {
	has := func(list []string, v string) bool { return slices.Contains(list, "*") || slices.Contains(list, v) }
	return r.ClusterScope && has(r.Verbs, "update") && has(r.APIGroups, "devicequota.io") && has(r.Resources, "deviceledgers")
}

// identities returns the ServiceAccounts that managers run as: those of their Deployments, else
// those that the FlowSchemas of the product name, else that of the default installation.
func (r *Reader) identities(ctx context.Context, schemas []flowcontrolv1.FlowSchema) []identity {
	var out []identity
	add := func(i identity) {
		if !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DeploymentList"})
	if err := r.List(ctx, list, client.MatchingLabels{"app.kubernetes.io/name": productName}); err == nil {
		for i := range list.Items {
			account, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "template", "spec", "serviceAccountName")
			add(identity{list.Items[i].GetNamespace(), cmp.Or(account, "default")})
		}
	}
	for i := range schemas {
		if len(out) > 0 || !own(schemas[i].ObjectMeta) {
			continue
		}
		for _, rule := range schemas[i].Spec.Rules {
			for _, s := range rule.Subjects {
				if s.ServiceAccount != nil && s.ServiceAccount.Name != flowcontrolv1.NameAll {
					add(identity{s.ServiceAccount.Namespace, s.ServiceAccount.Name})
				}
			}
		}
	}
	if len(out) == 0 {
		add(defaultIdentity)
	}
	return out
}
