package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/allocator"
	devices "github.com/devicequota/devicequota/allocator/cluster"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/webhooks"
)

// Masters is the group whose members may do everything.
const Masters = "system:masters"

// Options of a Cluster. The zero value is a plain Kubernetes cluster with the defaults of the manager.
type Options struct {
	// AdminAccess is what happens to requesters who may not ask for it; webhooks' default when empty.
	AdminAccess webhooks.AdminAccessPolicy
	// MayUseAdminAccess are the users who may; members of Masters always may.
	MayUseAdminAccess []string
	// OpenShift leaves Kubernetes' own keys to the platform, which the Cluster does not imitate.
	OpenShift bool
	// Exempt are the namespaces that no quota covers. Nil means the manager's defaults.
	Exempt []string
	// Namespaces makes a namespace that does not exist when an object needs it.
	Namespaces bool
	// Follow, if set, is called with every request that was answered: those that the Cluster is
	// asked and those of the controllers that it plays, in order. It must not call the Cluster.
	Follow func(Request)
	// Allocator options; without any feature, those that kube-scheduler has by default.
	Allocator allocator.Options
}

// DefaultExempt returns the namespaces that no quota covers by default.
func DefaultExempt() []string {
	return []string{"devicequota-system", "kube-node-lease", "kube-public", "kube-system"}
}

// epoch is when the virtual time begins; it shows nowhere but in creation timestamps.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// requestTimeout bounds a request in real time: nothing waits, so that only a defect reaches it.
const requestTimeout = 10 * time.Minute

// Cluster is a cluster in memory. It is not safe for concurrent use.
type Cluster struct {
	o        Options
	clock    *virtual
	state    *state
	store    *ledger.MemoryStore
	ledger   *ledger.Ledger
	recorder *recorder
	handlers map[string]admission.Handler
	api      *devices.API
	shares   uint64

	nodes []string // names, of all nodes
	// made are the workloads that exist.
	made     map[types.NamespacedName]*made
	provided map[provided]bool
	// waiting are the claims of pods that could not be made: their templates do not exist yet.
	waiting []podClaim
}

// New returns a cluster without any object.
func New(o Options) (*Cluster, error) {
	if o.Exempt == nil {
		o.Exempt = DefaultExempt()
	}
	api, err := devices.NewAPI(devices.V1, devices.V1)
	if err != nil {
		return nil, err
	}
	c := &Cluster{o: o, clock: &virtual{now: epoch}, api: api, made: map[types.NamespacedName]*made{}, provided: map[provided]bool{}}
	if c.o.Allocator.Features == (allocator.Features{}) {
		c.o.Allocator.Features = allocator.DefaultFeatures()
	}
	c.o.Allocator.NewShareID = func() types.UID {
		c.shares++
		return types.UID(fmt.Sprintf("00000000-0000-4000-9000-%012x", c.shares))
	}
	c.state = newState(o, c.clock)
	c.store = ledger.NewMemoryStore(c.clock)
	c.ledger = ledger.New(c.store, c.state, ledger.Options{
		Clock: c.clock, PlatformKeys: o.OpenShift, StoreTimeout: requestTimeout, Linger: -1, Rand: rand.NewPCG(1, 2)})
	c.recorder = &recorder{Ledger: c.ledger}
	c.handlers = webhooks.Handlers(webhooks.Deps{
		Admitter: c.recorder, Coverage: coverage{c.state}, Devices: c.state, Objects: c.state, Usage: usage{c.store},
		Explainer: webhooks.NewDeviceExplainer(c.state.inventory), Access: access{o.MayUseAdminAccess}, Now: c.clock.Now,
	}, webhooks.Options{
		AdminAccess: o.AdminAccess, ExemptNamespaces: o.Exempt, Timeout: requestTimeout,
		PlatformKeys: o.OpenShift, PlatformQuota: o.OpenShift,
	})
	return c, nil
}

// Apply makes the objects part of the cluster without any admission, as what exists: namespaces,
// nodes, device classes, slices, taint rules, quotas, claims, templates and pods, in any version.
// An object replaces the one of its name. The objects belong to the Cluster from then on. The
// error names the object that cannot be part of a cluster.
func (c *Cluster) Apply(ctx context.Context, objects ...runtime.Object) error {
	for _, obj := range objects {
		if err := c.apply(obj); err != nil {
			return err
		}
	}
	c.clock.advance(time.Second)
	return c.settleAll(ctx)
}

func (c *Cluster) apply(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if err := c.ensureNamespace(m.GetNamespace()); err != nil {
		return err
	}
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Namespace:
		c.state.setNamespaceLocked(o)
		return nil
	case *corev1.Node:
		c.setNodeLocked(o)
		return nil
	case *quotav1.ClusterResourceQuota:
		c.state.setQuotaLocked(o)
		return nil
	case *corev1.Pod:
		c.state.setPodLocked(o)
		return nil
	}
	return c.applyDevices(obj)
}

// applyDevices stores an object of resource.k8s.io.
func (c *Cluster) applyDevices(obj runtime.Object) error {
	s := c.state
	switch kindOf(obj) {
	case "DeviceClass":
		class, err := c.api.Class(obj)
		if err == nil {
			s.stampLocked(class, s.old(s.builder.Snapshot().DeviceClass(class.Name)), quota.Classes)
			s.builder.SetClass(class)
		}
		return err
	case "ResourceSlice":
		slice, err := c.api.Slice(obj)
		if err == nil {
			s.stampLocked(slice, nil, quota.Slices)
			s.builder.SetSlice(slice)
			s.slices[slice.Name] = slice
		}
		return err
	case "DeviceTaintRule":
		rule, err := c.api.TaintRule(obj)
		if err == nil {
			s.stampLocked(rule, nil, quota.Slices)
			s.builder.SetTaintRule(rule)
			s.rules[rule.Name] = rule
		}
		return err
	case "ResourceClaim":
		claim, err := c.api.Claim(obj)
		if err == nil {
			s.setClaimLocked(claim)
		}
		return err
	case "ResourceClaimTemplate":
		t, err := c.api.Template(obj)
		if err == nil {
			s.setTemplateLocked(t)
		}
		return err
	}
	return fmt.Errorf("%s %q cannot be applied as existing state: create it", kindOf(obj), nameOf(obj))
}

// ensureNamespace makes sure that the namespace exists; cluster-scoped objects have none.
func (c *Cluster) ensureNamespace(namespace string) error {
	if namespace == "" {
		return nil
	}
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if p := c.state.projects[namespace]; p != nil && p.known {
		return nil
	}
	if !c.o.Namespaces {
		return fmt.Errorf("namespaces %q not found", namespace)
	}
	c.state.setNamespaceLocked(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return nil
}

func (c *Cluster) setNodeLocked(node *corev1.Node) {
	c.state.stampLocked(node, nil, quota.Nodes)
	c.state.builder.SetNode(node)
	if i, known := slices.BinarySearch(c.nodes, node.Name); !known {
		c.nodes = slices.Insert(c.nodes, i, node.Name)
	}
}

// settleAll does what the usage reconciler does after a change, for every quota.
func (c *Cluster) settleAll(ctx context.Context) error {
	c.state.mu.Lock()
	names := slices.Sorted(maps.Keys(c.state.accounts))
	c.state.mu.Unlock()
	for _, n := range names {
		if _, err := c.settle(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// settleProject is settleAll for the quotas that cover the namespace.
func (c *Cluster) settleProject(ctx context.Context, namespace string) error {
	quotas, _, _ := c.state.Covering(namespace)
	for _, q := range quotas {
		if _, err := c.settle(ctx, q.Name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) settle(ctx context.Context, n string) (ledger.Settled, error) {
	settled, err := c.ledger.Settle(ctx, n, c.conditions)
	if err != nil {
		return ledger.Settled{}, fmt.Errorf("settle of quota %q: %w", n, err)
	}
	return settled, nil
}

func (c *Cluster) conditions(o quota.Observed, l v1alpha1.DeviceLedgerStatus) []v1alpha1.LedgerCondition {
	if o.Quota == nil {
		return l.Conditions
	}
	return c.state.Charger().Conditions(o.Quota, o, l.Conditions)
}

// old returns the class as what was stored before, nil when there is none.
func (s *state) old(class *resourceapi.DeviceClass) metav1.Object {
	if class == nil {
		return nil
	}
	return class
}

func (s *state) setNamespaceLocked(ns *corev1.Namespace) {
	p := s.projectLocked(ns.Name)
	var old metav1.Object
	if p.known {
		old = &p.meta
	}
	s.stampLocked(ns, old, quota.Namespaces)
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
	p.meta, p.known, p.version = ns.ObjectMeta, true, s.version
	s.recoverLocked()
}

func (s *state) setQuotaLocked(crq *quotav1.ClusterResourceQuota) {
	var old metav1.Object
	if before := s.crqs[crq.Name]; before != nil {
		old = before
	}
	s.stampLocked(crq, old, quota.Quotas)
	s.crqs[crq.Name] = crq
	q, _ := quota.Parse(crq, s.parse) // its errors are conditions and the validating webhook's
	// The ledger must not take a quota with an old timestamp for one whose ledger was lost.
	q.Created = s.clock.Now()
	s.accounts[crq.Name] = &account{quota: q}
}

func (s *state) setPodLocked(pod *corev1.Pod) {
	n := name{quota.Pods, pod.Namespace, pod.Name}
	var old metav1.Object
	if before := s.names[n]; before != nil {
		old = before.pod
	}
	s.stampLocked(pod, old, quota.Pods)
	s.setObjectLocked(&object{name: n, uid: pod.UID, pod: pod})
}

func (s *state) setClaimLocked(claim *resourceapi.ResourceClaim) {
	claim.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"))
	n := name{quota.Claims, claim.Namespace, claim.Name}
	var old metav1.Object
	if before := s.names[n]; before != nil {
		old = before.claim
	}
	s.stampLocked(claim, old, quota.Claims)
	s.setObjectLocked(&object{name: n, uid: claim.UID, claim: claim})
}

func (s *state) setTemplateLocked(t *resourceapi.ResourceClaimTemplate) {
	t.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"))
	s.version++
	t.ResourceVersion = strconv.FormatUint(s.version, 10)
	if t.UID == "" {
		t.UID = uidOf(s.version)
	}
	s.templates[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = t
}
