package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

func shipped(name string) bool { return strings.HasPrefix(name, "devicequota") }

// Objects reads all objects of a YAML file, or of all YAML files in a folder, in order.
func Objects(path string) ([]*unstructured.Unstructured, error) {
	files := []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
			return nil, err
		}
		sort.Strings(files)
	}
	var out []*unstructured.Unstructured
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		dec := k8syaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			u := &unstructured.Unstructured{}
			if err := dec.Decode(u); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
			if len(u.Object) > 0 {
				out = append(out, u)
			}
		}
	}
	return out, nil
}

// ApplyPath creates all objects of a file or folder; objects that exist are replaced.
func (c *ControlPlane) ApplyPath(ctx context.Context, path string) error {
	objs, err := Objects(path)
	if err != nil {
		return err
	}
	for _, u := range objs {
		if u.GetKind() == "Kustomization" {
			continue
		}
		if err := Apply(ctx, c.Client, u); err != nil {
			return fmt.Errorf("%s: %s %q: %w", path, u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// Apply creates an object; one that exists is replaced.
func Apply(ctx context.Context, cl client.Client, u *unstructured.Unstructured) error {
	err := cl.Create(ctx, u)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	old := &unstructured.Unstructured{}
	old.SetGroupVersionKind(u.GroupVersionKind())
	if err := cl.Get(ctx, client.ObjectKeyFromObject(u), old); err != nil {
		return err
	}
	u.SetResourceVersion(old.GetResourceVersion())
	return cl.Update(ctx, u)
}

// InstallWebhooks applies the shipped webhook configurations with the address replaced.
func (c *ControlPlane) InstallWebhooks(ctx context.Context) error {
	path := filepath.Join(Root(), "config", "webhook")
	if c.webhook == nil {
		b, err := newBalancer()
		if err != nil {
			return err
		}
		c.webhook = b
	}
	if c.tls == nil {
		t, err := newServingCert(filepath.Join(c.Dir, "certs"))
		if err != nil {
			return err
		}
		c.tls = t
	}
	objs, err := Objects(path)
	if err != nil {
		return err
	}
	for _, u := range objs {
		data, err := yaml.Marshal(u)
		if err != nil {
			return err
		}
		var obj client.Object
		switch u.GetKind() {
		case "ValidatingWebhookConfiguration":
			v := &admissionv1.ValidatingWebhookConfiguration{}
			err = yaml.UnmarshalStrict(data, v)
			for i := range v.Webhooks {
				c.readdress(&v.Webhooks[i].ClientConfig)
			}
			obj = v
		case "MutatingWebhookConfiguration":
			m := &admissionv1.MutatingWebhookConfiguration{}
			err = yaml.UnmarshalStrict(data, m)
			for i := range m.Webhooks {
				c.readdress(&m.Webhooks[i].ClientConfig)
			}
			obj = m
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := c.Client.Create(ctx, obj); err != nil {
			return fmt.Errorf("%s %q: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// UninstallWebhooks removes the webhook configurations. Managers keep running.
func (c *ControlPlane) UninstallWebhooks(ctx context.Context) error {
	return errors.Join(
		c.Client.DeleteAllOf(ctx, &admissionv1.ValidatingWebhookConfiguration{}),
		c.Client.DeleteAllOf(ctx, &admissionv1.MutatingWebhookConfiguration{}),
	)
}

// readdress points a webhook to the managers' loopback address.
func (c *ControlPlane) readdress(w *admissionv1.WebhookClientConfig) {
	w.URL = ptr.To("https://" + c.webhook.address() + ptr.Deref(w.Service.Path, "/"))
	w.Service = nil
	w.CABundle = c.tls.ca
}
