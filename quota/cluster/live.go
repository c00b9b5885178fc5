package cluster

import (
	"context"
	"fmt"
	"sync"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
)

// fetchOneByOne is how many objects that differ from the cache are read one by one; beyond
// it one full list is cheaper.
const fetchOneByOne = 64

// Live reads quotas and namespaces, then claims, and pods where any pod is charged, by
// consistent reads begun after the call. Devices are those of the cache. Source: ledger.View.
func (v *View) Live(ctx context.Context) (ledger.Observation, error) {
	l := &live{v: v, projects: map[string]*liveProject{}, accounts: map[string]*account{}, objects: map[types.UID]*object{}, names: map[objectName]*object{}}
	first := []func(context.Context) error{l.readQuotas, l.readNamespaces}
	then := []func(context.Context) error{l.readClaims}
	if v.podsMatter() {
		then = append(then, l.readPods)
	} else {
		v.index.mu.Lock()
		l.takePodsLocked(v.index)
		v.index.mu.Unlock()
	}
	for _, reads := range [][]func(context.Context) error{first, then} {
		if err := inParallel(ctx, reads); err != nil {
			return nil, err
		}
	}
	l.finish()
	return l, nil
}

func inParallel(ctx context.Context, calls []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() {
			if err := call(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// podsMatter tells whether any pod may be charged: one that asks for extended resources is
// known, or held by a ledger.
func (v *View) podsMatter() bool {
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	if v.index.chargedPods > 0 {
		return true
	}
	return v.o.Store != nil && v.o.Store.holdsPods()
}

// live is an observation of its own, read from the API server.
type live struct {
	v *View

	mu       sync.Mutex // protects the following, while reading; afterwards only charges
	version  quota.Vector
	recorded quota.Vector
	cached   [quota.Components]bool
	accounts map[string]*account // only quota and crq are set
	projects map[string]*liveProject
	objects  map[types.UID]*object
	names    map[objectName]*object

	charger *quota.Charger
	seeds   map[seedKey]corev1.ResourceList
	gone    map[types.UID]bool
}

// liveProject is a namespace as it was read, with the objects in it.
type liveProject struct {
	project
	live []*object
}

var _ ledger.Observation = (*live)(nil)

// list makes one consistent read and notes its version.
func (l *live) list(ctx context.Context, c quota.Component, list client.ObjectList) error {
	if err := l.v.o.Client.List(ctx, list); err != nil {
		return fmt.Errorf("list of %s: %w", c, err)
	}
	version, err := quota.ParseVersion(list.GetResourceVersion())
	if err != nil {
		return fmt.Errorf("list of %s: %w", c, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version[c] = version
	return nil
}

// note records the version of an object that is contained.
func (l *live) note(c quota.Component, resourceVersion string) (uint64, error) {
	version, err := quota.ParseVersion(resourceVersion)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c, err)
	}
	l.recorded[c] = max(l.recorded[c], version)
	return version, nil
}

func (l *live) readQuotas(ctx context.Context) error {
	list := &quotav1.ClusterResourceQuotaList{}
	if err := l.list(ctx, quota.Quotas, list); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range list.Items {
		crq := &list.Items[i]
		if _, err := l.note(quota.Quotas, crq.ResourceVersion); err != nil {
			return err
		}
		q, _ := quota.Parse(crq, l.v.o.Parse)
		l.accounts[q.Name] = &account{quota: q, crq: crq}
	}
	return nil
}

func (l *live) readNamespaces(ctx context.Context) error {
	list := devices.PartialList(corev1.SchemeGroupVersion, "Namespace")
	if err := l.list(ctx, quota.Namespaces, list); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range list.Items {
		m := &list.Items[i]
		version, err := l.note(quota.Namespaces, m.ResourceVersion)
		if err != nil {
			return err
		}
		l.projects[m.Name] = &liveProject{project: project{name: m.Name, known: true, version: version, labels: m.Labels, annotations: m.Annotations}}
	}
	return nil
}

func (l *live) readClaims(ctx context.Context) error {
	list := devices.PartialList(l.v.o.API.GroupVersion(), "ResourceClaim")
	if err := l.list(ctx, quota.Claims, list); err != nil {
		return err
	}
	return l.complete(ctx, quota.Claims, list, l.getClaim, l.listClaims)
}

func (l *live) readPods(ctx context.Context) error {
	list := devices.PartialList(corev1.SchemeGroupVersion, "Pod")
	if err := l.list(ctx, quota.Pods, list); err != nil {
		return err
	}
	return l.complete(ctx, quota.Pods, list, l.getPod, l.listPods)
}

// complete takes from the cache what is there in the listed version, and reads the rest.
// An object that is gone by then is left out, one that is newer is newer: the content is at
// least as new as the list.
func (l *live) complete(ctx context.Context, c quota.Component, list *metav1.PartialObjectMetadataList,
	get func(context.Context, client.ObjectKey) (*object, error), all func(context.Context) ([]*object, error)) error {
	missing, err := l.takeCached(c, list)
	if err != nil {
		return err
	}
	var read []*object
	if len(missing) > fetchOneByOne {
		if read, err = all(ctx); err != nil {
			return err
		}
		l.drop(c)
	} else {
		for _, key := range missing {
			o, err := get(ctx, key)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read of %s %q: %w", c, key, err)
			}
			read = append(read, o)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range read {
		l.addLocked(o)
	}
	return nil
}

// takeCached adds the listed objects that the cache has in that version, and returns the
// others.
func (l *live) takeCached(c quota.Component, list *metav1.PartialObjectMetadataList) ([]client.ObjectKey, error) {
	x := l.v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	var missing []client.ObjectKey
	for i := range list.Items {
		m := &list.Items[i]
		version, err := quota.ParseVersion(m.ResourceVersion)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		if _, other := x.others[m.UID]; other {
			continue
		}
		o := x.objects[m.UID]
		if o == nil || o.version != version {
			missing = append(missing, client.ObjectKey{Namespace: m.Namespace, Name: m.Name})
			continue
		}
		l.addLocked(o.copy())
	}
	return missing, nil
}

// copy returns an object of its own that shares the immutable content and costs.
func (o *object) copy() *object {
	out := *o
	return &out
}

func (l *live) addLocked(o *object) {
	if o.pod != nil && !usesDevices(o.pod) {
		return
	}
	l.objects[o.uid], l.names[o.name] = o, o
	l.recorded[o.name.component] = max(l.recorded[o.name.component], o.version)
}

// drop forgets a component's objects, for a full list.
func (l *live) drop(c quota.Component) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, o := range l.names {
		if name.component == c {
			delete(l.names, name)
			delete(l.objects, o.uid)
		}
	}
}

// takePodsLocked takes the pods as the cache has them. The lock is that of the index.
func (l *live) takePodsLocked(x *index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range x.objects {
		if o.pod != nil {
			l.addLocked(o.copy())
		}
	}
	l.takeVersions(x, quota.Pods)
}

// takeVersions notes that the content of the components is that of the cache.
func (l *live) takeVersions(x *index, components ...quota.Component) {
	for _, c := range components {
		l.version[c], l.recorded[c], l.cached[c] = x.version[c], x.recorded[c], true
	}
}

func (l *live) getClaim(ctx context.Context, key client.ObjectKey) (*object, error) {
	obj, err := l.v.o.API.New("ResourceClaim")
	if err != nil {
		return nil, err
	}
	if err := l.v.o.Client.Get(ctx, key, obj); err != nil {
		return nil, err
	}
	claim, err := l.v.o.API.Claim(obj)
	if err != nil {
		return nil, err
	}
	return claimObject(claim)
}

func (l *live) listClaims(ctx context.Context) ([]*object, error) {
	list, err := l.v.o.API.NewList("ResourceClaim")
	if err != nil {
		return nil, err
	}
	if err := l.list(ctx, quota.Claims, list); err != nil {
		return nil, err
	}
	claims, err := l.v.o.API.Claims(list)
	if err != nil {
		return nil, err
	}
	out := make([]*object, 0, len(claims))
	for _, claim := range claims {
		o, err := claimObject(claim)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func claimObject(claim *resourceapi.ResourceClaim) (*object, error) {
	version, err := quota.ParseVersion(claim.ResourceVersion)
	claim.ManagedFields = nil
	return &object{name: objectName{quota.Claims, claim.Namespace, claim.Name}, uid: claim.UID, version: version, claim: claim}, err
}

func (l *live) getPod(ctx context.Context, key client.ObjectKey) (*object, error) {
	pod := &corev1.Pod{}
	if err := l.v.o.Client.Get(ctx, key, pod); err != nil {
		return nil, err
	}
	return podObject(pod)
}

func (l *live) listPods(ctx context.Context) ([]*object, error) {
	list := &corev1.PodList{}
	if err := l.list(ctx, quota.Pods, list); err != nil {
		return nil, err
	}
	out := make([]*object, 0, len(list.Items))
	for i := range list.Items {
		o, err := podObject(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func podObject(pod *corev1.Pod) (*object, error) {
	version, err := quota.ParseVersion(pod.ResourceVersion)
	return &object{name: objectName{quota.Pods, pod.Namespace, pod.Name}, uid: pod.UID, version: version, pod: pod}, err
}
