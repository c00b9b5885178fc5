package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/webhooks"
)

// server asks the API server in the name of any user.
type server struct {
	// user name and groups -> client
	clients map[string]client.Client

	mu       sync.Mutex // protects the following
	warnings []string
}

func newServer() *server { return &server{clients: map[string]client.Client{}} }

// HandleWarningHeader implements rest.WarningHandler.
func (s *server) HandleWarningHeader(_ int, _, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

// auditID is the key of a context's audit ID, by which the request is found in the audit log.
type auditID struct{}

// identified sends the context's audit ID with each request.
type identified struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (i identified) RoundTrip(r *http.Request) (*http.Response, error) {
	if id, ok := r.Context().Value(auditID{}).(string); ok {
		r = r.Clone(r.Context())
		r.Header.Set("Audit-ID", id)
	}
	return i.next.RoundTrip(r)
}

func (s *server) as(u authenticationv1.UserInfo) (client.Client, error) {
	key := u.Username + "\x00" + strings.Join(u.Groups, "\x00")
	if c := s.clients[key]; c != nil {
		return c, nil
	}
	cfg := rest.CopyConfig(cp.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: u.Username, Groups: u.Groups}
	cfg.WarningHandler = s
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return identified{next} })
	c, err := client.New(cfg, client.Options{Scheme: cp.Client.Scheme(), Mapper: cp.Client.RESTMapper()})
	s.clients[key] = c
	return c, err
}

// ask makes a request as its user and returns the answer as the offline run tells it, but for
// the charge, and the audit ID.
func (s *server) ask(ctx context.Context, r *sim.Request, obj *unstructured.Unstructured) (out sim.Result, id string, err error) {
	c, err := s.as(r.User)
	if err != nil {
		return out, "", err
	}
	s.mu.Lock()
	s.warnings = nil
	s.mu.Unlock()
	id = string(uuid.NewUUID())
	ctx = context.WithValue(ctx, auditID{}, id)
	code := int32(http.StatusOK)
	switch r.Operation {
	case admissionv1.Create:
		code = http.StatusCreated
		err = c.Create(ctx, obj)
	case admissionv1.Update:
		err = onceMore(ctx, obj, func() error {
			s.mu.Lock()
			s.warnings = nil // of the one that is answered
			s.mu.Unlock()
			return c.Update(ctx, obj)
		})
	default:
		err = c.Delete(ctx, obj, client.GracePeriodSeconds(0))
	}
	if out, err = answer(r.Result.Object, code, err); err != nil {
		return out, id, err
	}
	s.mu.Lock()
	out.Warnings = slices.DeleteFunc(slices.Clone(s.warnings), isForeign)
	s.mu.Unlock()
	return out, id, nil
}

// onceMore calls an update of the object again with the version that there is then, as long as
// somebody else was faster: the manager writes the status of quotas at any time.
func onceMore(ctx context.Context, obj *unstructured.Unstructured, update func() error) error {
	for {
		err := update()
		if !apierrors.IsConflict(err) {
			return err
		}
		now := empty(obj)
		if err := cp.Client.Get(ctx, client.ObjectKeyFromObject(obj), now); err != nil {
			return err
		}
		obj.SetResourceVersion(now.GetResourceVersion())
	}
}

// isForeign tells that a warning is the API server's own, such as that of a deprecated version:
// the offline run does not have those. Ours begin with their reason.
func isForeign(warning string) bool {
	reason, _, ok := strings.Cut(warning, ": ")
	return !ok || !slices.Contains(webhooks.Reasons(), webhooks.Reason(reason))
}

// prefix is what the API server puts before a webhook's message. The offline run has no API server.
var prefix = regexp.MustCompile(`^admission webhook "[^"]+" denied the request: `)

// answer returns what an error from the API server tells.
func answer(ref sim.Ref, code int32, err error) (sim.Result, error) {
	r := sim.Result{Object: ref, Allowed: true, Code: code}
	if err == nil {
		return r, nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return r, err
	}
	st := status.Status()
	r.Allowed, r.Code, r.Reason = false, st.Code, string(st.Reason)
	r.Message = prefix.ReplaceAllString(st.Message, "")
	if r.Message != st.Message && st.Details != nil && len(st.Details.Causes) > 0 {
		r.Reason = string(st.Details.Causes[0].Type)
	}
	if r.Message == st.Message {
		r.Message = serversOwn
	}
	return r, nil
}

// serversOwn stands for the message of a refusal that is not ours. The offline run tells such
// a refusal by the same code and reason, but in words of its own.
const serversOwn = "(the API server's own message)"

// asUnstructured returns the object as it is sent: without status and what the API server sets.
func asUnstructured(obj runtime.Object) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &u.Object); err != nil {
		return nil, err
	}
	if u.GetKind() == "" || u.GetAPIVersion() == "" {
		return nil, fmt.Errorf("%T without kind", obj)
	}
	delete(u.Object, "status")
	for _, f := range []string{"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", f)
	}
	return u, nil
}

// everybody is the ClusterRole of all who are authenticated: scenarios are about quotas, not
// about rights.
const everybody = "everybody-of-the-scenarios"

// mayUseAdminAccess is the ClusterRole of those who may ask for adminAccess.
const mayUseAdminAccess = "admin-access-of-the-scenarios"

func allowEverybody(ctx context.Context) error {
	all := []string{"*"}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces", "nodes", "pods"}, Verbs: all},
		{APIGroups: []string{"apps", "batch", "resource.k8s.io", "quota.openshift.io"}, Resources: all, Verbs: all},
	}
	objects := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: everybody}, Rules: rules},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: everybody},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everybody},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"}}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: mayUseAdminAccess}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"devicequota.io"}, Resources: []string{"adminaccess"}, Verbs: []string{"use"}}}},
	}
	for _, o := range objects {
		if err := cp.Client.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// mayUse lets the users ask for adminAccess, until the returned function is called.
func mayUse(ctx context.Context, users []string) (undo func(context.Context) error, err error) {
	if len(users) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: mayUseAdminAccess},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: mayUseAdminAccess}}
	for _, u := range users {
		b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: u})
	}
	return func(ctx context.Context) error { return cp.Client.Delete(ctx, b) }, cp.Client.Create(ctx, b)
}
