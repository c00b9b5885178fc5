package live

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	out := []Finding{{Level: Info, Check: "version", Object: "resource.k8s.io", Message: r.API.Version}}
	platform, err := cluster.DetectPlatform(ctx, r.Client)
	if err != nil {
		out = append(out, Finding{Level: Warning, Check: "platform", Message: err.Error()})
	} else {
		out = append(out, Finding{Level: Info, Check: "platform", Message: string(platform)})
	}
	out = append(out, r.webhooks(ctx, "ValidatingWebhookConfiguration", []string{
		webhooks.PathValidateClaim, webhooks.PathValidateTemplate, webhooks.PathValidatePodClaims,
		webhooks.PathValidatePodExtended, webhooks.PathValidateQuota}, time.Now())...)
	out = append(out, r.webhooks(ctx, "MutatingWebhookConfiguration", []string{webhooks.PathMutateClaim, webhooks.PathMutateTemplate}, time.Now())...)
	return platform, append(out, r.flowSchemas(ctx)...)
}

// unread is the finding for a list that could not be read.
func unread(check string, err error) []Finding {
	if apierrors.IsForbidden(err) {
		return []Finding{{Level: Info, Check: check, Message: "you may not look: " + err.Error()}}
	}
	return []Finding{{Level: Warning, Check: check, Message: err.Error()}}
}

// webhooks looks for the webhooks of the paths in all configurations of the kind.
func (r *Reader) webhooks(ctx context.Context, kind string, paths []string, now time.Time) []Finding {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind + "List"})
	if err := r.List(ctx, list); err != nil {
		return unread("webhook", err)
	}
	var out []Finding
	var found []string
	for i := range list.Items {
		hooks, _, _ := unstructured.NestedSlice(list.Items[i].Object, "webhooks")
		for _, h := range hooks {
			hook, ok := h.(map[string]any)
			if !ok {
				continue
			}
			name, _, _ := unstructured.NestedString(hook, "name")
			if !strings.HasSuffix(name, ".devicequota.io") {
				continue
			}
			path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
			if url, isURL, _ := unstructured.NestedString(hook, "clientConfig", "url"); isURL {
				path = url[strings.LastIndex(url, "/"):]
			}
			found = append(found, path)
			bundle, _, _ := unstructured.NestedString(hook, "clientConfig", "caBundle")
			if f := certificate(bundle, now); f != nil {
				f.Object = strings.ToLower(kind) + " " + list.Items[i].GetName() + ", " + name
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
	return out
}

// soon is how long before its end a certificate is a finding.
const soon = 7 * 24 * time.Hour

// certificate looks at the authorities of a webhook; nil when nothing is wrong with them.
func certificate(bundle string, now time.Time) *Finding {
	if bundle == "" {
		return &Finding{Level: Error, Check: "certificate", Message: "caBundle is empty: the API server cannot call the webhook"}
	}
	raw, err := base64.StdEncoding.DecodeString(bundle)
	if err != nil {
		return &Finding{Level: Error, Check: "certificate", Message: "caBundle: " + err.Error()}
	}
	var newest time.Time
	for {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.NotAfter.After(newest) {
			newest = c.NotAfter
		}
	}
	switch {
	case newest.IsZero():
		return &Finding{Level: Error, Check: "certificate", Message: "caBundle has no certificate"}
	case newest.Before(now):
		return &Finding{Level: Error, Check: "certificate", Message: "the authority expired on " + newest.Format(time.DateOnly)}
	case newest.Before(now.Add(soon)):
		return &Finding{Level: Warning, Check: "certificate", Message: "the authority expires on " + newest.Format(time.DateOnly)}
	}
	return nil
}

// flowSchemas looks for the FlowSchema of the manager's identity: without it the manager's
// writes queue behind the creates that wait for them.
func (r *Reader) flowSchemas(ctx context.Context) []Finding {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Kind: "FlowSchemaList"})
	if err := r.List(ctx, list); err != nil {
		return unread("flowschema", err)
	}
	for i := range list.Items {
		item := &list.Items[i]
		if !strings.Contains(item.GetName(), "devicequota") {
			continue
		}
		conditions, _, _ := unstructured.NestedSlice(item.Object, "status", "conditions")
		for _, c := range conditions {
			if m, ok := c.(map[string]any); ok && m["type"] == "Dangling" && m["status"] == "True" {
				return []Finding{{Level: Error, Check: "flowschema", Object: item.GetName(), Message: fmt.Sprint("is not in force: ", m["message"])}}
			}
		}
		return []Finding{{Level: Info, Check: "flowschema", Object: item.GetName(), Message: "in force"}}
	}
	return []Finding{{Level: Warning, Check: "flowschema",
		Message: "none for the manager: under load its writes queue behind the creates that wait for them"}}
}
