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
	"k8s.io/client-go/kubernetes"
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

// api is the part of a typed client that a configuration needs.
type api[T, L runtime.Object] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Update(ctx context.Context, c T, o metav1.UpdateOptions) (T, error)
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// configuration is the one webhook configuration of that name.
type configuration[T, L runtime.Object] struct {
	api  api[T, L]
	kind string
	name string
	// empty is an object of its type.
	empty T
	// in returns the addresses in it.
	in func(T) []*admissionv1.WebhookClientConfig
}

func validating(client kubernetes.Interface, name string) bundled {
	return &configuration[*admissionv1.ValidatingWebhookConfiguration, *admissionv1.ValidatingWebhookConfigurationList]{
		api:  client.AdmissionregistrationV1().ValidatingWebhookConfigurations(),
		kind: "validating", name: name, empty: &admissionv1.ValidatingWebhookConfiguration{},
		in: func(c *admissionv1.ValidatingWebhookConfiguration) (out []*admissionv1.WebhookClientConfig) {
			for i := range c.Webhooks {
				out = append(out, &c.Webhooks[i].ClientConfig)
			}
			return out
		},
	}
}

func mutating(client kubernetes.Interface, name string) bundled {
	return &configuration[*admissionv1.MutatingWebhookConfiguration, *admissionv1.MutatingWebhookConfigurationList]{
		api:  client.AdmissionregistrationV1().MutatingWebhookConfigurations(),
		kind: "mutating", name: name, empty: &admissionv1.MutatingWebhookConfiguration{},
		in: func(c *admissionv1.MutatingWebhookConfiguration) (out []*admissionv1.WebhookClientConfig) {
			for i := range c.Webhooks {
				out = append(out, &c.Webhooks[i].ClientConfig)
			}
			return out
		},
	}
}

func (c *configuration[T, L]) String() string {
	return fmt.Sprintf("%s webhook configuration %q", c.kind, c.name)
}

func (c *configuration[T, L]) clients(ctx context.Context) ([]*admissionv1.WebhookClientConfig, func(context.Context) error, error) {
	object, err := c.api.Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	return c.in(object), func(ctx context.Context) error {
		_, err := c.api.Update(ctx, object, metav1.UpdateOptions{})
		return err
	}, nil
}

func (c *configuration[T, L]) object() runtime.Object { return c.empty }

func (c *configuration[T, L]) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return c.api.List(ctx, named(o, c.name))
}

func (c *configuration[T, L]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.api.Watch(ctx, named(o, c.name))
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
