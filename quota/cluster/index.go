package cluster

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
)

// Change tells that something may now be counted differently.
type Change struct {
	// Quota whose use, limits or coverage changed.
	Quota string
	// Namespace in which it changed; empty when it is all of the quota.
	Namespace string
	// StatusOnly: nothing is counted differently, but the quota's status was written.
	StatusOnly bool
}

// index counts what exists against the quotas that cover it, from event to event.
//
// Invariant: for every account, byNamespace has exactly the covered projects, and the sums
// of the charges of their objects; used is the sum over all of them.
type index struct {
	parse  quota.ParseOptions
	exempt map[string]bool // namespace -> is covered nowhere
	clock  clock.PassiveClock
	// changed is called under mu: it must return at once and not look at the index.
	changed func(Change)

	mu sync.Mutex // protects the following

	charger  *quota.Charger // nil until the first inventory
	revision uint64         // of the charger's inventory
	recount  time.Duration  // what the last full one took
	version  quota.Vector   // the content is at least this new
	recorded quota.Vector   // the newest change that the content has, of those that charging reads

	accounts map[string]*account    // quota name -> account
	projects map[string]*project    // namespace -> project, also of namespaces only known by their objects
	objects  map[types.UID]*object  // claims, and pods that use devices
	names    map[objectName]*object // the same by name
	// chargedPods is the number of pods that ask for extended resources.
	chargedPods int
	others      map[types.UID]struct{}          // pods that use no devices
	gone        map[types.UID]time.Time         // recently deleted objects -> when it was seen
	seeds       map[seedKey]corev1.ResourceList // last known charges as ledgers remember them
}

// objectName names an object of one component.
type objectName struct {
	component       quota.Component
	namespace, name string
}

// account is one quota and what is counted against it.
type account struct {
	quota *quota.Quota
	crq   *quotav1.ClusterResourceQuota

	used        corev1.ResourceList            // immutable: replaced, never changed
	byNamespace map[string]corev1.ResourceList // namespace -> use; lists immutable
	shared      bool                           // an observation holds byNamespace
	uncomputed  map[types.UID]*object          // objects that count as last known: their charge is not computable now
}

// project is one namespace.
type project struct {
	name                string
	known               bool // the namespace itself was seen, not only objects in it
	version             uint64
	labels, annotations map[string]string
	covering            []*account // sorted by quota name
	objects             map[*object]struct{}
}

// object is one claim, or one pod that uses devices.
type object struct {
	name    objectName
	uid     types.UID
	version uint64
	claim   *resourceapi.ResourceClaim
	pod     *corev1.Pod
	project *project
	// replaced pods are charged by the scheduler's claim that their status names.
	replaced bool
	// costs by covering account, in the order of project.covering. Immutable: replaced as a whole.
	costs []cost
}

// cost is what one object costs one quota.
type cost struct {
	account *account
	// quota as it was when the charge was computed, and what computed it; nil when it never was.
	quota *quota.Quota
	by    *quota.Charger
	// charge without regard to replaced.
	charge corev1.ResourceList
	// known is the last charge that could be computed, nil when none could.
	known    corev1.ResourceList
	computed bool
}

// goneFor is how long deletions are remembered: longer than a hold can wait for its object.
const goneFor = 3 * time.Minute

func newIndex(o Options, changed func(Change)) *index {
	x := &index{
		parse: o.Parse, exempt: map[string]bool{}, clock: o.Clock, changed: changed,
		accounts: map[string]*account{}, projects: map[string]*project{},
		objects: map[types.UID]*object{}, names: map[objectName]*object{}, others: map[types.UID]struct{}{},
		gone: map[types.UID]time.Time{}, seeds: map[seedKey]corev1.ResourceList{},
	}
	for _, namespace := range o.Exempt {
		x.exempt[namespace] = true
	}
	return x
}

// advance notes that the content is now at version, because of an object or not.
func (x *index) advance(c quota.Component, version uint64, object bool) {
	x.version[c] = max(x.version[c], version)
	if object {
		x.recorded[c] = max(x.recorded[c], version)
	}
}

// projectOf returns the project of that name, made if it was not known.
func (x *index) projectOf(namespace string) *project {
	p := x.projects[namespace]
	if p == nil {
		p = &project{name: namespace, objects: map[*object]struct{}{}}
		x.projects[namespace] = p
	}
	return p
}

// dropIfEmpty forgets a project of which nothing is known any more.
func (x *index) dropIfEmpty(p *project) {
	if !p.known && len(p.objects) == 0 {
		delete(x.projects, p.name)
	}
}

// effective is what the cost adds to the totals.
func (o *object) effective(c cost) corev1.ResourceList {
	if o.replaced {
		return nil
	}
	return c.charge
}

// costOf returns the object's cost for the account.
func (o *object) costOf(a *account) (cost, bool) {
	for _, c := range o.costs {
		if c.account == a {
			return c, true
		}
	}
	return cost{}, false
}

// adjust moves the account's totals from minus to plus in the namespace.
func (x *index) adjust(a *account, namespace string, minus, plus corev1.ResourceList) {
	if quota.Equal(minus, plus) {
		return
	}
	a.own()
	a.used = moved(a.used, minus, plus)
	a.byNamespace[namespace] = moved(a.byNamespace[namespace], minus, plus)
	x.changed(Change{Quota: a.quota.Name, Namespace: namespace})
}

// own makes byNamespace the account's alone, to be changed.
func (a *account) own() {
	if a.shared {
		a.byNamespace = maps.Clone(a.byNamespace)
		a.shared = false
	}
}

// moved returns a new list: l - minus + plus, without zeros.
func moved(l, minus, plus corev1.ResourceList) corev1.ResourceList {
	out := make(corev1.ResourceList, len(l)+len(plus))
	for k, q := range l {
		out[k] = q.DeepCopy()
	}
	for k, q := range minus {
		sum := out[k]
		sum.Sub(q)
		out[k] = sum
	}
	for k, q := range plus {
		sum := out[k]
		sum.Add(q)
		out[k] = sum
	}
	for k, q := range out {
		if q.IsZero() {
			delete(out, k)
		}
	}
	return out
}

// sameCharging tells whether two versions of a quota cover and charge alike.
func sameCharging(a, b *quota.Quota) bool {
	if a == b {
		return true
	}
	return a != nil && b != nil && slices.Equal(a.Keys, b.Keys) && maps.Equal(a.Selectors, b.Selectors) &&
		a.TrueDown == b.TrueDown && equality.Semantic.DeepEqual(a.Selector.Ledger(), b.Selector.Ledger())
}

func compareAccounts(a, b *account) int { return strings.Compare(a.quota.Name, b.quota.Name) }
