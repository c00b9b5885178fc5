// Package live reads a cluster through the rights of whoever asks. It never writes.
package live

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// Reader reads one cluster. Safe for concurrent use.
type Reader struct {
	client.Client
	API *devices.API
	// Discovery tells what the server is; nil in tests that do not ask.
	Discovery discovery.DiscoveryInterface
}

// New connects to the API server.
func New(ctx context.Context, config *rest.Config) (*Reader, error) {
	scheme, err := app.NewScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	api, err := devices.DiscoverAPI(ctx, d)
	if err != nil {
		return nil, err
	}
	return &Reader{Client: c, API: api, Discovery: d}, nil
}

// Snapshot is what could be read.
type Snapshot struct {
	// Objects that a cluster is made of; namespaces first.
	Objects []runtime.Object
	// Ledgers by name; nil when they may not be read.
	Ledgers map[string]*v1alpha1.DeviceLedger
	// Notes say what could not be read, and what that means.
	Notes []string
	// Member tells that quotas were read as a project sees them: Applied.
	Member  bool
	Applied []quotav1.AppliedClusterResourceQuota

	// Unlisted are the kinds of which nothing may be read. There are taken to be none of them.
	Unlisted []string

	// blind: not even the claims of the namespace may be read.
	blind bool
}

// Load reads everything that decides about claims in the namespace, as far as the user may;
// what he may not read is left out, with a note. The error is an outage, or that he may not even
// read what his project is shown of its quotas.
func (r *Reader) Load(ctx context.Context, namespace string) (*Snapshot, error) {
	s := &Snapshot{}
	err := r.namespaces(ctx, s, namespace)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"DeviceClass", "ResourceSlice"} {
		if err := r.versioned(ctx, s, kind, ""); err != nil {
			return nil, err
		}
	}
	if err := r.taintRules(ctx, s); err != nil {
		return nil, err
	}
	if err := r.list(ctx, s, &corev1.NodeList{}, "Node", ""); err != nil {
		return nil, err
	}
	if err := r.versioned(ctx, s, "ResourceClaimTemplate", namespace); err != nil {
		return nil, err
	}
	if err := r.versioned(ctx, s, "ResourceClaim", namespace); err != nil {
		return nil, err
	}
	if err := r.list(ctx, s, &corev1.PodList{}, "Pod", namespace); err != nil {
		return nil, err
	}
	if err := r.quotas(ctx, s, namespace); err != nil {
		return nil, err
	}
	if len(s.Unlisted) > 0 {
		s.Notes = append(s.Notes, "you may not list "+strings.Join(s.Unlisted, ", ")+": there are taken to be none")
	}
	return s, r.ledgers(ctx, s)
}

// namespaces reads all namespaces, or the one; one that may not be read is taken to have no labels.
func (r *Reader) namespaces(ctx context.Context, s *Snapshot, namespace string) error {
	before := len(s.Objects)
	if err := r.list(ctx, s, &corev1.NamespaceList{}, "Namespace", ""); err != nil || len(s.Objects) > before {
		return err
	}
	s.Unlisted = nil // the one is there
	ns := &corev1.Namespace{}
	err := r.Get(ctx, client.ObjectKey{Name: namespace}, ns)
	if apierrors.IsForbidden(err) {
		ns, err = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, nil
	}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	s.Objects = append(s.Objects, ns)
	return err
}

// versioned reads a kind of resource.k8s.io in the served version: of all namespaces, or of the
// one when the others may not be read.
func (r *Reader) versioned(ctx context.Context, s *Snapshot, kind, namespace string) error {
	list, err := r.API.NewList(kind)
	if err != nil {
		return err
	}
	return r.listAs(ctx, s, list, r.API.GroupVersion().WithKind(kind), namespace)
}

func (r *Reader) taintRules(ctx context.Context, s *Snapshot) error {
	if r.API.TaintRules == "" {
		return nil
	}
	gvk := schema.GroupVersionKind{Group: "resource.k8s.io", Version: r.API.TaintRules, Kind: "DeviceTaintRule"}
	o, err := r.Scheme().New(gvk.GroupVersion().WithKind("DeviceTaintRuleList"))
	if err != nil {
		return err
	}
	list, ok := o.(client.ObjectList)
	if !ok {
		return fmt.Errorf("%s is no list", gvk)
	}
	return r.listAs(ctx, s, list, gvk, "")
}

func (r *Reader) list(ctx context.Context, s *Snapshot, list client.ObjectList, kind, namespace string) error {
	return r.listAs(ctx, s, list, corev1.SchemeGroupVersion.WithKind(kind), namespace)
}

// listAs adds the objects of a list, first of all namespaces, then of the one.
func (r *Reader) listAs(ctx context.Context, s *Snapshot, list client.ObjectList, gvk schema.GroupVersionKind, namespace string) error {
	err := r.List(ctx, list)
	if apierrors.IsForbidden(err) {
		if namespace == "" {
			s.Unlisted = append(s.Unlisted, gvk.Kind)
			return nil
		}
		err = r.List(ctx, list, client.InNamespace(namespace))
		if apierrors.IsForbidden(err) {
			s.blind = s.blind || gvk.Kind == "ResourceClaim"
			s.Unlisted = append(s.Unlisted, gvk.Kind)
			return nil
		}
		if err == nil {
			s.Notes = append(s.Notes, fmt.Sprintf("you may not list %s objects of all projects: only those of %q are known", gvk.Kind, namespace))
		}
	}
	if err != nil {
		return fmt.Errorf("list of %ss: %w", gvk.Kind, err)
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		o = o.DeepCopyObject()
		o.GetObjectKind().SetGroupVersionKind(gvk)
		s.Objects = append(s.Objects, o)
		return nil
	})
}

// quotas reads the quotas, or what the project is shown of them.
func (r *Reader) quotas(ctx context.Context, s *Snapshot, namespace string) error {
	var list quotav1.ClusterResourceQuotaList
	err := r.List(ctx, &list)
	if err == nil {
		for i := range list.Items {
			crq := &list.Items[i]
			crq.SetGroupVersionKind(quotav1.GroupVersion.WithKind("ClusterResourceQuota"))
			s.Objects = append(s.Objects, crq)
		}
		return nil
	}
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("list of ClusterResourceQuotas: %w", err)
	}
	s.Member = true
	applied, err := r.Applied(ctx, namespace)
	if err != nil {
		return err
	}
	s.Notes = append(s.Notes, fmt.Sprintf("you may not list ClusterResourceQuotas: limits are what project %q is shown, less what others use", namespace))
	s.Applied = applied
	for i := range applied {
		s.Objects = append(s.Objects, asQuota(&applied[i], namespace, s.blind))
	}
	return nil
}

// Applied returns what the project is shown of its quotas, sorted by name: of
// AppliedDeviceQuotas where there are any (OpenShift), else of AppliedClusterResourceQuotas.
func (r *Reader) Applied(ctx context.Context, namespace string) ([]quotav1.AppliedClusterResourceQuota, error) {
	found := map[string]quotav1.AppliedClusterResourceQuota{}
	var ours v1alpha1.AppliedDeviceQuotaList
	err := r.List(ctx, &ours, client.InNamespace(namespace))
	if err != nil && !apierrors.IsForbidden(err) && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list of AppliedDeviceQuotas: %w", err)
	}
	for i := range ours.Items {
		o := &ours.Items[i]
		found[o.Name] = quotav1.AppliedClusterResourceQuota{ObjectMeta: o.ObjectMeta, Spec: o.Spec, Status: o.Status}
	}
	if len(found) == 0 {
		var theirs quotav1.AppliedClusterResourceQuotaList
		if err := r.List(ctx, &theirs, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list of AppliedClusterResourceQuotas: %w", err)
		}
		for i := range theirs.Items {
			found[theirs.Items[i].Name] = theirs.Items[i]
		}
	}
	var out []quotav1.AppliedClusterResourceQuota
	for _, n := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[n])
	}
	return out, nil
}

// asQuota is a quota of the project alone, with what the others leave of it; or with what is
// left at all, when the project's own claims cannot be counted (blind).
func asQuota(a *quotav1.AppliedClusterResourceQuota, namespace string, blind bool) *quotav1.ClusterResourceQuota {
	crq := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: a.Name, Annotations: a.Annotations}, Spec: *a.Spec.DeepCopy()}
	crq.SetGroupVersionKind(quotav1.GroupVersion.WithKind("ClusterResourceQuota"))
	crq.Spec.Selector = quotav1.ClusterResourceQuotaSelector{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}
	var own corev1.ResourceList
	for i := range a.Status.Namespaces {
		if !blind && a.Status.Namespaces[i].Namespace == namespace {
			own = a.Status.Namespaces[i].Status.Used
		}
	}
	others := quota.Excess(a.Status.Total.Used, own)
	for key, hard := range crq.Spec.Quota.Hard {
		if used, ok := others[key]; ok {
			left := hard.DeepCopy()
			left.Sub(used)
			if left.Sign() < 0 {
				left.Sub(left)
			}
			crq.Spec.Quota.Hard[key] = left
		}
	}
	return crq
}

// ledgers reads the ledgers, if the user may.
func (r *Reader) ledgers(ctx context.Context, s *Snapshot) error {
	var list v1alpha1.DeviceLedgerList
	err := r.List(ctx, &list)
	if apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list of DeviceLedgers: %w", err)
	}
	s.Ledgers = map[string]*v1alpha1.DeviceLedger{}
	for i := range list.Items {
		s.Ledgers[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}
