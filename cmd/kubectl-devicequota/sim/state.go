package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
)

// name of an object of one component.
type name struct {
	component       quota.Component
	namespace, name string
}

// object is a claim or a pod. It is replaced when it changes; only costs are filled in later.
type object struct {
	name     name
	uid      types.UID
	sequence uint64 // in the order of creation
	claim    *resourceapi.ResourceClaim
	pod      *corev1.Pod
	// quota name -> cost
	costs map[string]cost
	// quota name -> what the account counts for it
	counted map[string]corev1.ResourceList
}

// project is a namespace and what is in it.
type project struct {
	meta    metav1.ObjectMeta
	known   bool // the namespace itself exists
	version uint64
	objects map[types.UID]*object
}

// state is what the cluster has. Its methods ending in Locked need mu; the others take it.
type state struct {
	parse  quota.ParseOptions
	exempt map[string]bool
	clock  *virtual

	mu sync.Mutex // protects following

	version  uint64 // the resourceVersion of the newest change, of whatever kind
	recorded quota.Vector
	builder  *allocator.Builder
	charger  *quota.Charger

	projects  map[string]*project
	crqs      map[string]*quotav1.ClusterResourceQuota
	accounts  map[string]*account
	objects   map[types.UID]*object
	names     map[name]*object
	templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate
	slices    map[string]*resourceapi.ResourceSlice
	rules     map[string]runtime.Object
	gone      map[types.UID]bool
}

func newState(o Options, c *virtual) *state {
	s := &state{
		parse: quota.ParseOptions{PlatformKeys: o.OpenShift}, exempt: map[string]bool{}, clock: c,
		builder: allocator.NewBuilder(allocator.BuilderOptions{}), projects: map[string]*project{},
		crqs: map[string]*quotav1.ClusterResourceQuota{}, accounts: map[string]*account{},
		objects: map[types.UID]*object{}, names: map[name]*object{},
		templates: map[types.NamespacedName]*resourceapi.ResourceClaimTemplate{}, gone: map[types.UID]bool{},
		slices: map[string]*resourceapi.ResourceSlice{}, rules: map[string]runtime.Object{},
	}
	for _, namespace := range o.Exempt {
		s.exempt[namespace] = true
	}
	return s
}

// changedLocked counts a change of the component and returns its resourceVersion.
func (s *state) changedLocked(c quota.Component) uint64 {
	s.version++
	s.recorded[c] = s.version
	return s.version
}

// stampLocked gives an object that is stored its UID, timestamp and version; old may be nil.
func (s *state) stampLocked(m, old metav1.Object, c quota.Component) {
	version := s.changedLocked(c)
	if old != nil {
		m.SetUID(cmp.Or(m.GetUID(), old.GetUID()))
		if created := m.GetCreationTimestamp(); created.IsZero() {
			m.SetCreationTimestamp(old.GetCreationTimestamp())
		}
	}
	if m.GetUID() == "" {
		m.SetUID(uidOf(version))
	}
	if created := m.GetCreationTimestamp(); created.IsZero() {
		m.SetCreationTimestamp(metav1.NewTime(s.clock.Now()))
	}
	m.SetResourceVersion(strconv.FormatUint(version, 10))
	m.SetManagedFields(nil)
}

func uidOf(n uint64) types.UID {
	return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", n))
}

// projectLocked returns the project, made if it was not known.
func (s *state) projectLocked(namespace string) *project {
	p := s.projects[namespace]
	if p == nil {
		p = &project{objects: map[types.UID]*object{}}
		p.meta.Name = namespace
		s.projects[namespace] = p
	}
	return p
}

// setObjectLocked stores a claim or pod that has its UID.
func (s *state) setObjectLocked(o *object) {
	if old := s.names[o.name]; old != nil && old.uid != o.uid {
		s.removeObjectLocked(old)
	}
	old := s.objects[o.uid]
	if old != nil {
		o.costs, o.counted, o.sequence = old.costs, old.counted, old.sequence
	} else {
		o.costs, o.counted, o.sequence = map[string]cost{}, map[string]corev1.ResourceList{}, s.version
	}
	p := s.projectLocked(o.name.namespace)
	p.objects[o.uid], s.objects[o.uid], s.names[o.name] = o, o, o
	s.recountLocked(o, true)
	s.recountOwnerLocked(o)
}

// removeObjectLocked forgets a claim or pod.
func (s *state) removeObjectLocked(o *object) {
	s.changedLocked(o.name.component)
	p := s.projectLocked(o.name.namespace)
	s.recountLocked(o, false)
	delete(p.objects, o.uid)
	delete(s.objects, o.uid)
	delete(s.names, o.name)
	s.gone[o.uid] = true
	s.recountOwnerLocked(o)
}

// chargerLocked charges by the present devices.
func (s *state) chargerLocked() *quota.Charger {
	inventory := s.builder.Snapshot()
	if s.charger == nil || s.charger.Inventory().Revision() != inventory.Revision() {
		s.charger = quota.NewCharger(inventory)
	}
	return s.charger
}

func (s *state) inventory() *allocator.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.builder.Snapshot()
}

// claims returns all claims in the order of their creation.
func (s *state) claims() []*resourceapi.ResourceClaim {
	s.mu.Lock()
	defer s.mu.Unlock()
	var objects []*object
	for _, o := range s.objects {
		if o.claim != nil {
			objects = append(objects, o)
		}
	}
	slices.SortFunc(objects, func(a, b *object) int {
		return cmp.Or(a.claim.CreationTimestamp.Compare(b.claim.CreationTimestamp.Time), cmp.Compare(a.sequence, b.sequence))
	})
	out := make([]*resourceapi.ResourceClaim, len(objects))
	for i, o := range objects {
		out[i] = o.claim
	}
	return out
}

func (s *state) get(c quota.Component, namespace, n string) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name{c, namespace, n}]
}
