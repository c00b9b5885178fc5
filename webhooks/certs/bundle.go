package certs

import (
	"bytes"
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typed "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"
)

// bundled is a webhook configuration whose caBundles are written.
type bundled interface {
	fmt.Stringer
	// clients reads the configuration and returns the addresses in it. What is changed there
	// is written by save, which gives a conflict when the object was changed meanwhile.
	clients(ctx context.Context) (addresses []*admissionv1.WebhookClientConfig, save func(context.Context) error, err error)
	object() runtime.Object
	list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

type validating struct {
	client typed.ValidatingWebhookConfigurationInterface
	name   string
}

func (v *validating) String() string {
	return fmt.Sprintf("validating webhook configuration %q", v.name)
}

func (v *validating) clients(ctx context.Context) ([]*admissionv1.WebhookClientConfig, func(context.Context) error, error) {
	c, err := v.client.Get(ctx, v.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	out := make([]*admissionv1.WebhookClientConfig, len(c.Webhooks))
	for i := range c.Webhooks {
		out[i] = &c.Webhooks[i].ClientConfig
	}
	return out, func(ctx context.Context) error {
		_, err := v.client.Update(ctx, c, metav1.UpdateOptions{})
		return err
	}, nil
}

func (v *validating) object() runtime.Object { return &admissionv1.ValidatingWebhookConfiguration{} }

func (v *validating) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return v.client.List(ctx, named(o, v.name))
}

func (v *validating) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return v.client.Watch(ctx, named(o, v.name))
}

type mutating struct {
	client typed.MutatingWebhookConfigurationInterface
	name   string
}

func (m *mutating) String() string { return fmt.Sprintf("mutating webhook configuration %q", m.name) }

func (m *mutating) clients(ctx context.Context) ([]*admissionv1.WebhookClientConfig, func(context.Context) error, error) {
	c, err := m.client.Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	out := make([]*admissionv1.WebhookClientConfig, len(c.Webhooks))
	for i := range c.Webhooks {
		out[i] = &c.Webhooks[i].ClientConfig
	}
	return out, func(ctx context.Context) error {
		_, err := m.client.Update(ctx, c, metav1.UpdateOptions{})
		return err
	}, nil
}

func (m *mutating) object() runtime.Object { return &admissionv1.MutatingWebhookConfiguration{} }

func (m *mutating) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return m.client.List(ctx, named(o, m.name))
}

func (m *mutating) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return m.client.Watch(ctx, named(o, m.name))
}

// named restricts a list or watch to one object, which is what a role with resourceNames allows.
func named(o metav1.ListOptions, name string) metav1.ListOptions {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return o
}

// calls tells whether the address is the Service.
func (s *SelfSigned) calls(c *admissionv1.WebhookClientConfig) bool {
	return c.Service != nil && c.Service.Namespace == s.Namespace && c.Service.Name == s.Service
}

// publish writes the bundle into the configuration's addresses that call the Service.
func (s *SelfSigned) publish(ctx context.Context, c bundled, bundle []byte) (bool, error) {
	for {
		addresses, save, err := c.clients(ctx)
		if err != nil {
			return false, err
		}
		changed := false
		for _, a := range addresses {
			if s.calls(a) && !bytes.Equal(a.CABundle, bundle) {
				a.CABundle, changed = bundle, true
			}
		}
		if !changed {
			return false, nil
		}
		if err := save(ctx); !apierrors.IsConflict(err) {
			return err == nil, err
		}
	}
}

// trusted tells whether every address has the newest authority. What cannot be read is not trusted.
func (s *SelfSigned) trusted(ctx context.Context, m *material) bool {
	if len(m.authorities) == 0 {
		return false
	}
	if m.signer() == m.authorities[0] {
		return true
	}
	newest := encodeCert(m.authorities[0].Raw)
	for _, c := range s.configs {
		addresses, _, err := c.clients(ctx)
		if err != nil {
			return false
		}
		for _, a := range addresses {
			if s.calls(a) && !bytes.Contains(a.CABundle, newest) {
				return false
			}
		}
	}
	return true
}

// watches returns functions that poke until their context ends, whenever the Secret or a
// configuration changes.
func (s *SelfSigned) watches() []func(context.Context) {
	secrets := s.client.CoreV1().Secrets(s.Namespace)
	out := []func(context.Context){s.watch(&corev1.Secret{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return secrets.List(ctx, named(o, s.Secret))
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return secrets.Watch(ctx, named(o, s.Secret))
		})}
	for _, c := range s.configs {
		out = append(out, s.watch(c.object(), c.list, c.watch))
	}
	return out
}

func (s *SelfSigned) watch(
	object runtime.Object, list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error),
) func(context.Context) {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		// A fake client cannot stream lists; the wrapper lets the informer know.
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watch}, s.client),
		ObjectType:    object,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { s.poke() },
			UpdateFunc: func(any, any) { s.poke() },
			DeleteFunc: func(any) { s.poke() },
		},
	})
	return informer.RunWithContext
}
