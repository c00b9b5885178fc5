package live

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/quota/cluster"
	"github.com/devicequota/devicequota/webhooks"
)

// Level of a Finding.
type Level string

// The levels.
const (
	// Error: quotas are not what they seem to be, or nothing works.
	Error Level = "error"
	// Warning: somebody should look.
	Warning Level = "warning"
	// Info is what was found out.
	Info Level = "info"
)

// OpenShift is the platform that owns ClusterResourceQuota.
const OpenShift = cluster.OpenShift

// Finding is one thing that was found.
type Finding struct {
	Level   Level  `json:"level"`
	Check   string `json:"check"`
	Object  string `json:"object,omitempty"`
	Message string `json:"message"`
}

// Installation looks at the platform and at what makes the product work: webhook
// configurations, their certificates, the FlowSchema. What may not be read is a finding.
func (r *Reader) Installation(ctx context.Context) (cluster.Platform, []Finding) {
	now := time.Now()
	out := r.version()
	platform, err := r.Platform(ctx)
	if err != nil {
		out = append(out, Finding{Level: Warning, Check: "platform", Message: err.Error()})
	} else {
		out = append(out, Finding{Level: Info, Check: "platform", Message: string(platform)})
	}
	validating, findings := r.webhooks(ctx, "ValidatingWebhookConfiguration", []string{
		webhooks.PathValidateClaim, webhooks.PathValidateTemplate, webhooks.PathValidatePodClaims,
		webhooks.PathValidatePodExtended, webhooks.PathValidateQuota}, now)
	out = append(out, findings...)
	mutating, findings := r.webhooks(ctx, "MutatingWebhookConfiguration", []string{webhooks.PathMutateClaim, webhooks.PathMutateTemplate}, now)
	out = append(out, findings...)
	out = append(out, r.serving(ctx, slices.Concat(validating, mutating), now)...)
	return platform, append(out, r.flowSchemas(ctx)...)
}

// version is what the server says of itself.
func (r *Reader) version() []Finding {
	out := []Finding{{Level: Info, Check: "version", Object: "resource.k8s.io", Message: r.API.Version}}
	if r.Discovery == nil {
		return out
	}
	v, err := r.Discovery.ServerVersion()
	if err != nil {
		return append(out, Finding{Level: Warning, Check: "version", Object: "kube-apiserver", Message: err.Error()})
	}
	return append(out, Finding{Level: Info, Check: "version", Object: "kube-apiserver", Message: v.GitVersion})
}

// openShiftGroup is an API that every OpenShift cluster serves, and nothing else does.
const openShiftGroup = "config.openshift.io"

// Platform finds out whether the platform owns ClusterResourceQuota. Whoever may not read what
// tells that is answered by the APIs that the server has.
func (r *Reader) Platform(ctx context.Context) (cluster.Platform, error) {
	platform, err := cluster.DetectPlatform(ctx, r.Client)
	if !apierrors.IsForbidden(err) || r.Discovery == nil {
		return platform, err
	}
	groups, err := r.Discovery.ServerGroups()
	if err != nil {
		return "", err
	}
	for i := range groups.Groups {
		if groups.Groups[i].Name == openShiftGroup {
			return OpenShift, nil
		}
	}
	return cluster.Kubernetes, nil
}

// unread is the finding for a list that could not be read.
func unread(check string, err error) []Finding {
	if apierrors.IsForbidden(err) {
		return []Finding{{Level: Info, Check: check, Message: "you may not look: " + err.Error()}}
	}
	return []Finding{{Level: Warning, Check: check, Message: err.Error()}}
}

// hook is one webhook of ours.
type hook struct {
	// object names it for people.
	object string
	client admissionregistrationv1.WebhookClientConfig
}

// webhooks looks for the webhooks of the paths in all configurations of the kind, and returns
// those that it found.
func (r *Reader) webhooks(ctx context.Context, kind string, paths []string, now time.Time) ([]hook, []Finding) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind + "List"})
	if err := r.List(ctx, list); err != nil {
		return nil, unread("webhook", err)
	}
	var hooks []hook
	var out []Finding
	var found []string
	for i := range list.Items {
		var config admissionregistrationv1.ValidatingWebhookConfiguration // has what is needed of either kind
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &config); err != nil {
			out = append(out, Finding{Level: Warning, Check: "webhook", Object: kind + " " + list.Items[i].GetName(), Message: err.Error()})
			continue
		}
		for j := range config.Webhooks {
			w := &config.Webhooks[j]
			if !strings.HasSuffix(w.Name, ".devicequota.io") {
				continue
			}
			h := hook{object: strings.ToLower(kind) + " " + config.Name + ", " + w.Name, client: w.ClientConfig}
			hooks = append(hooks, h)
			found = append(found, h.path())
			if f := certificate(w.ClientConfig.CABundle, now); f != nil {
				f.Object = h.object
				out = append(out, *f)
			}
		}
	}
	for _, path := range paths {
		if !slices.Contains(found, path) {
			level := Error
			if strings.HasPrefix(path, "/mutate") {
				level = Warning
			}
			out = append(out, Finding{Level: level, Check: "webhook", Object: kind, Message: "no webhook calls " + path})
		}
	}
	return hooks, out
}

// path that is called.
func (h *hook) path() string {
	switch {
	case h.client.Service != nil:
		return ptr.Deref(h.client.Service.Path, "")
	case h.client.URL != nil:
		if u, err := url.Parse(*h.client.URL); err == nil {
			return u.Path
		}
	}
	return ""
}

// soon is how long before its end a certificate is a finding.
const soon = 7 * 24 * time.Hour

// certificate looks at the authorities of a webhook; nil when nothing is wrong with them.
func certificate(bundle []byte, now time.Time) *Finding {
	if len(bundle) == 0 {
		return &Finding{Level: Error, Check: "certificate", Message: "caBundle is empty: the API server cannot call the webhook"}
	}
	var newest time.Time
	for _, c := range certificates(bundle) {
		if c.NotAfter.After(newest) {
			newest = c.NotAfter
		}
	}
	if newest.IsZero() {
		return &Finding{Level: Error, Check: "certificate", Message: "caBundle has no certificate"}
	}
	return ends("the authority", newest, now)
}

// ends tells that something ended or ends soon; nil when it does not.
func ends(what string, end, now time.Time) *Finding {
	switch {
	case end.Before(now):
		return &Finding{Level: Error, Check: "certificate", Message: what + " expired on " + end.Format(time.DateOnly)}
	case end.Before(now.Add(soon)):
		return &Finding{Level: Warning, Check: "certificate", Message: what + " expires on " + end.Format(time.DateOnly)}
	}
	return nil
}

// certificates returns those of PEM text.
func certificates(text []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}
