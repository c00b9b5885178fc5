package webhooks

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
)

// policies returns the reasons besides quota to refuse what is asked for directly: by a
// claim, or by a template for the claims made from it. The error is an outage.
func (s *suite) policies(ctx context.Context, req *admission.Request, spec *resourceapi.ResourceClaimSpec, made bool, n *notes) ([]problem, error) {
	problems, err := s.requireQuota(ctx, req.Namespace, spec)
	if err != nil || made {
		return problems, err
	}
	p, err := s.adminAccess(ctx, req, spec, n)
	if err != nil {
		return nil, err
	}
	return append(problems, p...), nil
}

// requireQuota refuses classes that only projects with a quota for them may use.
func (s *suite) requireQuota(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec) ([]problem, error) {
	inventory := s.Devices.Charger().Inventory()
	var required []string
	for _, class := range classesOf(spec) {
		if c := inventory.DeviceClass(class); c != nil && c.Annotations[quota.RequireQuotaAnnotation] == "true" {
			required = append(required, class)
		}
	}
	if len(required) == 0 {
		return nil, nil
	}
	quotas, err := s.Coverage.Covering(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("quotas of project %q: %w", namespace, err)
	}
	var problems []problem
	for _, class := range required {
		if !limited(quotas, class, inventory) {
			problems = append(problems, problem{reason: ReasonQuotaRequired, message: fmt.Sprintf(
				"quota required: DeviceClass %q may be used only in projects with a quota for it, and no ClusterResourceQuota limits it in project %q",
				class, namespace)})
		}
	}
	return problems, nil
}

// limited tells whether one of the quotas limits devices of the class. Kubernetes' own keys
// count wherever they are enforced, by us or by the platform.
func limited(quotas []*quota.Quota, class string, inventory quota.Inventory) bool {
	return slices.ContainsFunc(quotas, func(q *quota.Quota) bool {
		for name := range q.Hard {
			key, ours, err := quota.ParseKey(name)
			if !ours || err != nil {
				continue
			}
			switch key.Subject {
			case quota.SubjectClass:
				if key.Class == class {
					return true
				}
			case quota.SubjectSelector:
				return true
			case quota.SubjectExtendedResource:
				if c := inventory.ExtendedResourceClass(key.ExtendedResource); c != nil && c.Name == class {
					return true
				}
			}
		}
		return false
	})
}

// adminAccess asks whether the requester may ask for adminAccess.
func (s *suite) adminAccess(ctx context.Context, req *admission.Request, spec *resourceapi.ResourceClaimSpec, n *notes) ([]problem, error) {
	if s.AdminAccess == AdminAccessAllow || s.Access == nil || !asksForAdminAccess(spec) {
		return nil, nil
	}
	may, err := s.Access.MayUseAdminAccess(ctx, req.UserInfo, req.Namespace)
	if err != nil {
		return nil, fmt.Errorf("access review of adminAccess: %w", err)
	}
	if may {
		return nil, nil
	}
	text := fmt.Sprintf("user %q may not ask for adminAccess in project %q: it needs the verb \"use\" on adminaccess.devicequota.io",
		req.UserInfo.Username, req.Namespace)
	if s.AdminAccess == AdminAccessWarn {
		n.warn(ReasonAdminAccessForbidden, "(not enforced) "+text)
		n.decision = DecisionWarned
		return nil, nil
	}
	return []problem{{reason: ReasonAdminAccessForbidden, message: text}}, nil
}

// madeForPod tells whether a claim controller made the claim for a pod: then adminAccess was
// authorised when the template was created. Owner references can be written by tenants, so
// the requester decides.
func madeForPod(req *admission.Request, claim *resourceapi.ResourceClaim, controllers []string) bool {
	return slices.Contains(controllers, req.UserInfo.Username) && metav1.GetControllerOfNoCopy(claim) != nil
}
