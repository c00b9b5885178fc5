package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	quotav1 "github.com/openshift/api/quota/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// appliedKind is the type that shows a quota in a project.
type appliedKind struct {
	resource string
	newList  func() client.ObjectList
	empty    func() client.Object
	applied  func(crq *quotav1.ClusterResourceQuota, status quotav1.ClusterResourceQuotaStatus, namespace string) client.Object
}

func (p *Projection) kind() appliedKind {
	if p.o.Platform == OpenShift {
		return appliedKind{
			resource: "applieddevicequotas",
			newList:  func() client.ObjectList { return &v1alpha1.AppliedDeviceQuotaList{} },
			empty:    func() client.Object { return &v1alpha1.AppliedDeviceQuota{} },
			applied: func(crq *quotav1.ClusterResourceQuota, status quotav1.ClusterResourceQuotaStatus, namespace string) client.Object {
				return quota.AppliedDeviceQuota(crq, status, namespace)
			},
		}
	}
	return appliedKind{
		resource: "appliedclusterresourcequotas",
		newList:  func() client.ObjectList { return &quotav1.AppliedClusterResourceQuotaList{} },
		empty:    func() client.Object { return &quotav1.AppliedClusterResourceQuota{} },
		applied: func(crq *quotav1.ClusterResourceQuota, status quotav1.ClusterResourceQuotaStatus, namespace string) client.Object {
			return quota.Applied(crq, status, namespace)
		},
	}
}

// apply writes the projection unless it is stored as it shall be.
func (p *Projection) apply(ctx context.Context, key projectionKey, now *projected, stored appliedObject, exists bool) (bool, error) {
	obj := p.kind().applied(now.crq, now.status, key.namespace)
	want, err := contentOf(obj)
	if err != nil {
		return false, err
	}
	if exists && stored.content == want {
		return false, nil
	}
	if exists {
		obj.SetUID(stored.uid)
		obj.SetResourceVersion(stored.rv)
		obj.SetManagedFields(unmanaged())
		err = p.o.Client.Update(ctx, obj)
	} else {
		err = p.o.Client.Create(ctx, obj)
	}
	p.wrote()
	switch {
	case err == nil:
		p.learn(obj)
		return true, nil
	case !exists && (apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, "NamespaceTerminating")):
		return true, nil // the namespace is going: nobody is left to read it
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return true, errors.Join(p.refresh(ctx, key), err)
	default:
		return true, fmt.Errorf("%s %s/%s: %w", p.kind().resource, key.namespace, key.quota, err)
	}
}

// unapply removes a projection that nothing covers any more.
func (p *Projection) unapply(ctx context.Context, key projectionKey, stored appliedObject) error {
	obj := p.kind().empty()
	obj.SetNamespace(key.namespace)
	obj.SetName(key.quota)
	err := p.o.Client.Delete(ctx, obj, client.Preconditions{UID: &stored.uid})
	p.wrote()
	if err != nil && !apierrors.IsNotFound(err) {
		return errors.Join(p.refresh(ctx, key), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.applied, types.NamespacedName{Namespace: key.namespace, Name: key.quota})
	return nil
}

func (p *Projection) wrote() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
}

// refresh reads one stored projection.
func (p *Projection) refresh(ctx context.Context, key projectionKey) error {
	obj := p.kind().empty()
	err := p.o.Client.Get(ctx, client.ObjectKey{Namespace: key.namespace, Name: key.quota}, obj)
	if apierrors.IsNotFound(err) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.applied, types.NamespacedName{Namespace: key.namespace, Name: key.quota})
		return nil
	}
	if err != nil {
		return err
	}
	p.learn(obj)
	return nil
}

// learn notes what is stored, if it is newer than what is known.
func (p *Projection) learn(obj client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learnLocked(obj)
}

func (p *Projection) learnLocked(obj client.Object) {
	version, err := quota.ParseVersion(obj.GetResourceVersion())
	if err != nil {
		return // the API server's versions are numbers
	}
	key := client.ObjectKeyFromObject(obj)
	if old, ok := p.applied[key]; ok && old.version >= version {
		return
	}
	content, err := contentOf(obj)
	if err != nil {
		return // not reached: what was decoded can be encoded
	}
	p.applied[key] = appliedObject{uid: obj.GetUID(), version: version, rv: obj.GetResourceVersion(), content: content}
}

// contentOf returns a hash of what a projection says: spec, status and owner.
func contentOf(obj client.Object) (uint64, error) {
	var spec, status any
	switch o := obj.(type) {
	case *quotav1.AppliedClusterResourceQuota:
		spec, status = o.Spec, o.Status
	case *v1alpha1.AppliedDeviceQuota:
		spec, status = o.Spec, o.Status
	default:
		return 0, fmt.Errorf("no projection: %T", obj)
	}
	h := fnv.New64a()
	err := json.NewEncoder(h).Encode([]any{spec, status, ownersOf(obj)})
	return h.Sum64(), err
}

func ownersOf(obj metav1.Object) []types.UID {
	var uids []types.UID
	for _, o := range obj.GetOwnerReferences() {
		uids = append(uids, o.UID)
	}
	return uids
}

// appliedTarget keeps what is stored, and has it repaired when somebody else wrote it.
type appliedTarget struct{ p *Projection }

func (t appliedTarget) Set(obj client.Object, _ uint64) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	key := client.ObjectKeyFromObject(obj)
	before := t.p.applied[key]
	t.p.learnLocked(obj)
	if after := t.p.applied[key]; after.content != before.content {
		t.p.queue.add(projectionKey{key.Name, key.Namespace}, false)
	}
}

func (t appliedTarget) Delete(obj client.Object, version uint64) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	key := client.ObjectKeyFromObject(obj)
	if old, ok := t.p.applied[key]; ok && old.version < version {
		delete(t.p.applied, key)
		t.p.queue.add(projectionKey{key.Name, key.Namespace}, false)
	}
}

func (t appliedTarget) Replace(objs []client.Object, version uint64) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	listed := make(map[types.NamespacedName]bool, len(objs))
	for _, obj := range objs {
		key := client.ObjectKeyFromObject(obj)
		listed[key] = true
		t.p.learnLocked(obj)
		t.p.queue.add(projectionKey{key.Name, key.Namespace}, false)
	}
	for key, old := range t.p.applied {
		if !listed[key] && old.version <= version {
			delete(t.p.applied, key)
			t.p.queue.add(projectionKey{key.Name, key.Namespace}, false)
		}
	}
}

func (t appliedTarget) Bookmark(uint64) {}
