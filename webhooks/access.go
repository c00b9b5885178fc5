package webhooks

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// Reviewer asks the API server whether a user may do something.
// SubjectAccessReviewInterface of client-go is one.
type Reviewer interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// The resource whose verb "use" allows adminAccess.
const (
	adminAccessGroup    = "devicequota.io"
	adminAccessResource = "adminaccess"
	adminAccessVerb     = "use"
)

// How long an answer is remembered, and how many. A refusal is remembered shortly: whoever
// is refused asks for the right and tries again.
const (
	allowedFor  = 10 * time.Second
	refusedFor  = 2 * time.Second
	maxReviewed = 4096
)

// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// AccessReviews is an Access that asks the API server and remembers its answers for some
// seconds. Safe for concurrent use.
type AccessReviews struct {
	reviewer Reviewer
	clock    clock.PassiveClock

	mu sync.Mutex // protects following
	// user, groups and namespace -> answer
	known map[string]reviewed
}

type reviewed struct {
	allowed bool
	until   time.Time
}

var _ Access = (*AccessReviews)(nil)

// NewAccessReviews returns an Access over the API server.
func NewAccessReviews(r Reviewer, c clock.PassiveClock) *AccessReviews {
	return &AccessReviews{reviewer: r, clock: c, known: map[string]reviewed{}}
}

// MayUseAdminAccess implements Access.
func (a *AccessReviews) MayUseAdminAccess(ctx context.Context, user authenticationv1.UserInfo, namespace string) (bool, error) {
	key := reviewKey(user, namespace)
	now := a.clock.Now()
	if allowed, ok := a.remembered(key, now); ok {
		return allowed, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	answer, err := a.reviewer.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: adminAccessVerb, Group: adminAccessGroup, Resource: adminAccessResource},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	a.remember(key, answer.Status.Allowed, now)
	return answer.Status.Allowed, nil
}

func (a *AccessReviews) remembered(key string, now time.Time) (allowed, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.known[key]
	if !ok || !now.Before(r.until) {
		return false, false
	}
	return r.allowed, true
}

func (a *AccessReviews) remember(key string, allowed bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxReviewed {
		clear(a.known)
	}
	r := reviewed{allowed: allowed, until: now.Add(refusedFor)}
	if allowed {
		r.until = now.Add(allowedFor)
	}
	a.known[key] = r
}

// reviewKey identifies the question; parts cannot run into each other. Authorizers may look
// at extra, too, so that what a token was restricted to is part of the question.
func reviewKey(user authenticationv1.UserInfo, namespace string) string {
	parts := []string{namespace, user.Username, user.UID}
	parts = append(parts, slices.Sorted(slices.Values(user.Groups))...)
	var extra []string
	for k, v := range user.Extra {
		extra = append(extra, k+"\x01"+strings.Join(v, "\x01"))
	}
	slices.Sort(extra)
	return strings.Join(append(append(parts, "\x02"), extra...), "\x00")
}
