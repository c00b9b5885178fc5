package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// This file is a fake API server and the watch caches of its clients: one resourceVersion
// counter per resource, event logs, caches of any allowed staleness. Calls park until the
// scheduler of a test lets them go, unless the world is free.

type kind int

const (
	kClaim kind = iota
	kPod
	kNS
	kCRQ
	kinds
)

var components = [kinds]quota.Component{quota.Claims, quota.Pods, quota.Namespaces, quota.Quotas}

const (
	keyA corev1.ResourceName = "gpu.deviceclass.devicequota.io/devices"
	// keyB is limited by some quotas at some times; every object costs the same of it.
	keyB corev1.ResourceName = "gpu.deviceclass.devicequota.io/capacity.memory"
	// keyGhost is in used only: the sum of 2^i over the requests i that it counts.
	keyGhost corev1.ResourceName = "ghost"
)

type object struct {
	uid          types.UID
	ns, name     string
	idx          int // of its request
	charge, full int64
	rv, crv      uint64
	// pod of a scheduler's claim; names of a pod is the claim in its status.
	pod   types.UID
	names string
	owned bool
	// labels of a namespace.
	labels map[string]string
	// q of a quota, with its generation.
	q          *quota.Quota
	generation int64
}

type event struct {
	rv  uint64
	del bool
	o   object
}

type resourceLog struct {
	cur  uint64
	objs []object // immutable, replaced on write
	log  []event
}

type watchCache struct {
	pos int
	// rv of the newest event; shown is the version that a reader is told, at most rv.
	rv, shown uint64
	objs      []object
	// gone are the objects that were here and were deleted since the process began.
	gone map[types.UID]bool
}

type ledgerEvent struct {
	name string
	l    *v1alpha1.DeviceLedger // nil: deleted
}

type call struct {
	r    *replica
	what string
	ch   chan verdict
}

type verdict int

const (
	vApply verdict = iota
	vLose          // applied, but the answer is lost
	vFail          // not applied
	vThrottle
)

var (
	errLost    = errors.New("connection lost")
	errCrashed = errors.New("process is gone")
)

type world struct {
	// free: calls do not park. current: caches have everything at once.
	free, current bool
	opts          Options

	mu       sync.Mutex // protects all that follows
	seq      int
	res      [kinds]resourceLog
	ledgers  map[string]*v1alpha1.DeviceLedger
	ledgerV  uint64
	ledgerL  []ledgerEvent
	nextUID  int
	replicas []*replica
	calls    []*call
	puts     int
	// onPut is told of every ledger stored, with what it replaces (nil: created) and what the
	// replica's caches were when it decided.
	onPut func(r *replica, knew [kinds]watchCache, old, stored *v1alpha1.DeviceLedger)
	trace bool
	lines []string
	// annotations of quotas that are written. broken is the error of every write, slow how long each takes.
	annotations map[string]string
	broken      error
	slow        time.Duration
	// split makes live lists one step per namespace; oneList makes all of it one step.
	split, oneList bool
	// fromCache are the components that live observations take from caches.
	fromCache [quota.Components]bool
}

// replica is one process: a real Ledger over its own caches.
type replica struct {
	w   *world
	i   int
	inc int // incarnations: calls of earlier ones fail
	c   [kinds]watchCache
	// ledgers is the ledger cache.
	ledgerPos int
	ledgers   map[string]*v1alpha1.DeviceLedger
	ledger    *Ledger
	cancel    context.CancelFunc
	ctx       context.Context
	live      []*liveView
	liveAt    []time.Time
}

func newWorld(o Options, namespaces, quotas, replicas int, hard int64) *world {
	w := &world{opts: o, ledgers: map[string]*v1alpha1.DeviceLedger{}}
	for k := range w.res {
		w.res[k].cur = uint64(10 * (k + 1))
	}
	for i := range namespaces {
		labels := map[string]string{}
		for q := range quotas {
			if quotas == 1 || i == 0 || q == i%2 {
				labels[quotaName(q)] = "yes"
			}
		}
		w.write(kNS, object{uid: types.UID(fmt.Sprintf("ns-%d", i)), name: nsName(i), labels: labels})
	}
	for q := range quotas {
		w.writeQuota(q, hard, 0)
	}
	for i := range replicas {
		r := &replica{w: w, i: i}
		w.replicas = append(w.replicas, r)
		r.start(w.ends())
	}
	return w
}

func quotaName(i int) string { return fmt.Sprintf("q%d", i) }
func nsName(i int) string    { return fmt.Sprintf("ns%d", i) }

// ends are the positions of caches that have everything.
func (w *world) ends() [kinds]int {
	var p [kinds]int
	for k := range w.res {
		p[k] = len(w.res[k].log)
	}
	return p
}

// start starts a process whose caches are at the given positions.
func (r *replica) start(pos [kinds]int) {
	r.inc++
	if r.cancel != nil {
		r.cancel()
	}
	for k := range r.c {
		r.seek(kind(k), pos[k])
	}
	r.ledgers, r.ledgerPos = map[string]*v1alpha1.DeviceLedger{}, 0
	for r.ledgerPos < len(r.w.ledgerL) {
		r.advanceLedger()
	}
	r.live = nil
	r.ctx, r.cancel = context.WithCancel(context.Background())
	o := r.w.opts
	o.Clock = skewed{clock.RealClock{}, time.Duration(r.i) * 15 * time.Second}
	o.Rand = rand.NewPCG(1, uint64(r.i)) // each its own: sources are not safe for concurrent use
	r.ledger = New(&storeOf{r, r.inc}, &viewOf{r, r.inc}, o)
}

// skewed is a process's own idea of the time.
type skewed struct {
	clock.RealClock
	by time.Duration
}

func (c skewed) Now() time.Time                  { return c.RealClock.Now().Add(c.by) }
func (c skewed) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// now is the replica's own time.
func (r *replica) now() time.Time { return r.ledger.o.Clock.Now() }

func (r *replica) seek(k kind, pos int) {
	r.c[k] = watchCache{}
	for r.c[k].pos < pos {
		r.advance(k, false)
	}
	r.c[k].gone = nil // a list does not tell what was before
}

// advance delivers the next event. lag: readers are told the version before it.
func (r *replica) advance(k kind, lag bool) {
	c := &r.c[k]
	e := r.w.res[k].log[c.pos]
	was := c.rv
	c.pos++
	c.rv = e.rv
	c.shown = c.rv
	if lag && was != 0 {
		c.shown = was
	}
	if e.del {
		c.objs = without(c.objs, e.o.uid)
		c.gone = maps.Clone(c.gone) // snapshots have it
		if c.gone == nil {
			c.gone = map[types.UID]bool{}
		}
		c.gone[e.o.uid] = true
	} else {
		c.objs = with(c.objs, e.o)
	}
}

func (r *replica) advanceLedger() {
	e := r.w.ledgerL[r.ledgerPos]
	r.ledgerPos++
	if e.l == nil {
		delete(r.ledgers, e.name)
	} else {
		r.ledgers[e.name] = e.l
	}
}

func (w *world) logf(format string, args ...any) {
	if w.trace {
		w.lines = append(w.lines, fmt.Sprintf("%s ", time.Now().Format("05.000"))+fmt.Sprintf(format, args...))
	}
}

// objects

func find(os []object, uid types.UID) *object {
	for i := range os {
		if os[i].uid == uid {
			return &os[i]
		}
	}
	return nil
}

func named(os []object, ns, name string) *object {
	for i := range os {
		if os[i].ns == ns && os[i].name == name {
			return &os[i]
		}
	}
	return nil
}

func with(os []object, o object) []object {
	out := make([]object, 0, len(os)+1)
	done := false
	for _, x := range os {
		if x.uid == o.uid {
			x, done = o, true
		}
		out = append(out, x)
	}
	if !done {
		out = append(out, o)
	}
	return out
}

func without(os []object, uid types.UID) []object {
	return slices.DeleteFunc(slices.Clone(os), func(o object) bool { return o.uid == uid })
}

func newestVersion(os []object) uint64 {
	var v uint64
	for i := range os {
		v = max(v, os[i].rv)
	}
	return v
}

// write stores an object; mu is held or nothing runs.
func (w *world) write(k kind, o object) object {
	r := &w.res[k]
	r.cur++
	o.rv = r.cur
	if o.crv == 0 {
		o.crv = o.rv
	}
	r.objs = with(r.objs, o)
	r.log = append(r.log, event{rv: o.rv, o: o})
	return o
}

func (w *world) remove(k kind, uid types.UID) {
	r := &w.res[k]
	o := find(r.objs, uid)
	if o == nil {
		return
	}
	r.cur++
	r.log = append(r.log, event{rv: r.cur, del: true, o: *o})
	r.objs = without(r.objs, uid)
}

func (w *world) quota(q int) *object { return named(w.res[kCRQ].objs, "", quotaName(q)) }

// writeQuota creates or changes a quota; hardB 0 leaves keyB unlimited.
func (w *world) writeQuota(q int, hardA, hardB int64) object {
	o := object{name: quotaName(q)}
	crq := &quotav1.ClusterResourceQuota{}
	if old := w.quota(q); old != nil {
		o = *old
		crq.CreationTimestamp = metav1.NewTime(old.q.Created)
	} else {
		w.nextUID++
		o.uid = types.UID(fmt.Sprintf("crq-%d", w.nextUID))
		crq.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	}
	o.generation++
	crq.Name, crq.UID, crq.Generation = o.name, o.uid, o.generation
	crq.Annotations = w.annotations
	crq.ResourceVersion = fmt.Sprint(w.res[kCRQ].cur + 1)
	crq.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{o.name: "yes"}}
	crq.Spec.Quota.Hard = corev1.ResourceList{keyA: *resource.NewQuantity(hardA, resource.DecimalSI)}
	if hardB > 0 {
		crq.Spec.Quota.Hard[keyB] = *resource.NewQuantity(hardB, resource.DecimalSI)
	}
	var errs any
	o.q, errs = parse(crq)
	if errs != nil {
		panic(errs)
	}
	return w.write(kCRQ, o)
}

func parse(crq *quotav1.ClusterResourceQuota) (*quota.Quota, any) {
	q, errs := quota.Parse(crq, quota.ParseOptions{})
	if len(errs) > 0 {
		return nil, errs
	}
	return q, nil
}

func amounts(q *quota.Quota, charge int64) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, k := range []corev1.ResourceName{keyA, keyB} {
		if _, limited := q.Hard[k]; limited && charge > 0 {
			out[k] = *resource.NewQuantity(charge, resource.DecimalSI)
		}
	}
	return out
}

// observation

// snapshot is what caches or a live list contain.
type snapshot struct {
	version [kinds]uint64
	objs    [kinds][]object
	// gone are objects that the process saw and that are gone.
	gone      [kinds]map[types.UID]bool
	fromCache [quota.Components]bool
}

func (s *snapshot) Observe(name string, last *quota.Quota, uids []types.UID) quota.Observed {
	o := quota.Observed{FromCache: s.fromCache, Used: corev1.ResourceList{}, ByNamespace: map[string]corev1.ResourceList{},
		Present: map[types.UID]bool{}, Charges: map[types.UID]corev1.ResourceList{}, Unrecognised: map[types.UID]bool{}}
	for k := range s.version {
		o.Version[components[k]] = s.version[k]
		o.Recorded[components[k]] = newestVersion(s.objs[k])
	}
	q := last
	if x := named(s.objs[kCRQ], "", name); x != nil {
		o.Quota, q = x.q, x.q
	}
	for _, uid := range uids {
		x := find(s.objs[kClaim], uid)
		if x == nil {
			x = find(s.objs[kPod], uid)
		}
		// what is in a namespace that is not known is covered by nobody can tell what
		o.Present[uid] = x != nil && named(s.objs[kNS], "", x.ns) != nil || x == nil && (s.gone[kClaim][uid] || s.gone[kPod][uid])
	}
	for _, k := range []kind{kClaim, kPod} {
		for i := range s.objs[k] {
			s.count(&o, q, &s.objs[k][i])
		}
	}
	return o
}

// count adds one object.
func (s *snapshot) count(o *quota.Observed, q *quota.Quota, x *object) {
	ns := named(s.objs[kNS], "", x.ns)
	if q == nil || ns == nil || !q.Selector.Matches(ns.labels, nil) {
		return
	}
	charge := amounts(q, x.charge)
	if x.names != "" {
		if c := named(s.objs[kClaim], x.ns, x.names); c != nil && c.pod == x.uid {
			charge = corev1.ResourceList{} // charged as its claim
		}
	}
	if o.Present[x.uid] && x.pod != "" {
		pod := find(s.objs[kPod], x.pod)
		o.Unrecognised[x.uid] = pod != nil && pod.names != x.name
	}
	charge[keyGhost] = *resource.NewQuantity(1<<x.idx, resource.DecimalSI)
	quota.AddTo(o.Used, charge)
	o.ByNamespace[x.ns] = quota.Add(o.ByNamespace[x.ns], charge)
	if o.Present[x.uid] {
		o.Charges[x.uid] = charge
	}
}

func (s *snapshot) Covering(namespace string) ([]*quota.Quota, uint64, bool) {
	ns := named(s.objs[kNS], "", namespace)
	if ns == nil {
		return nil, 0, false
	}
	var out []*quota.Quota
	for i := range s.objs[kCRQ] {
		if q := s.objs[kCRQ][i].q; q.Selector.Matches(ns.labels, nil) {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, func(a, b *quota.Quota) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out, ns.rv, true
}

// viewOf is the View of one process.
type viewOf struct {
	r   *replica
	inc int
}

// cacheView reads the caches as they are when asked.
type cacheView struct{ v *viewOf }

func (c cacheView) snapshot() *snapshot {
	r := c.v.r
	if r.w.current {
		return r.w.snapshot()
	}
	s := &snapshot{}
	for k := range r.c {
		s.version[k], s.objs[k], s.gone[k] = r.c[k].shown, r.c[k].objs, r.c[k].gone
	}
	return s
}

func (w *world) snapshot() *snapshot {
	s := &snapshot{}
	for k := range w.res {
		s.version[k], s.objs[k], s.gone[k] = w.res[k].cur, w.res[k].objs, map[types.UID]bool{}
		for _, e := range w.res[k].log {
			if e.del {
				s.gone[k][e.o.uid] = true
			}
		}
	}
	return s
}

func (c cacheView) Observe(name string, last *quota.Quota, uids []types.UID) quota.Observed {
	c.v.r.w.mu.Lock()
	s := c.snapshot()
	c.v.r.w.mu.Unlock()
	return s.Observe(name, last, uids)
}

func (c cacheView) Covering(ns string) ([]*quota.Quota, uint64, bool) {
	c.v.r.w.mu.Lock()
	s := c.snapshot()
	c.v.r.w.mu.Unlock()
	return s.Covering(ns)
}

func (v *viewOf) Cached() Observation { return cacheView{v} }

// liveView is a live observation; begun orders it among all that happened.
type liveView struct {
	snapshot
	begun int
}

func (v *viewOf) Live(ctx context.Context) (Observation, error) {
	w := v.r.w
	w.mu.Lock()
	w.seq++
	o := &liveView{begun: w.seq}
	o.fromCache = w.fromCache
	v.r.liveAt = append(v.r.liveAt, time.Now())
	n := len(w.res[kNS].objs)
	w.mu.Unlock()
	steps := []func(){
		func() { o.read(w, kNS, ""); o.read(w, kCRQ, "") },
		func() { o.read(w, kClaim, "") },
		func() { o.read(w, kPod, "") },
	}
	if w.split {
		steps = steps[:1]
		for i := range n {
			steps = append(steps, func() { o.read(w, kClaim, nsName(i)) })
		}
		steps = append(steps, func() { o.read(w, kPod, "") }, func() { o.getLater(w) })
	}
	if w.oneList {
		all := steps
		steps = []func(){func() {
			for _, step := range all {
				step()
			}
		}}
	}
	for i, step := range steps {
		if _, err := v.park(ctx, fmt.Sprintf("live %d", i)); err != nil {
			return nil, err
		}
		w.mu.Lock()
		step()
		w.mu.Unlock()
	}
	w.mu.Lock()
	o.gone = cacheView{v}.snapshot().gone
	v.r.live = append(v.r.live, o)
	w.logf("r%d live observation ended: versions %v", v.r.i, o.version)
	w.mu.Unlock()
	return o, nil
}

// read adds what is stored now, of one namespace if ns is set. The smallest version counts.
func (o *liveView) read(w *world, k kind, ns string) {
	if v := w.res[k].cur; o.version[k] == 0 || v < o.version[k] {
		o.version[k] = v
	}
	for _, x := range w.res[k].objs {
		if ns == "" || x.ns == ns {
			o.objs[k] = with(o.objs[k], x)
		}
	}
}

// getLater reads some of the claims once more, by name: what the caches lack is read after the lists.
func (o *liveView) getLater(w *world) {
	var out []object
	for _, x := range o.objs[kClaim] {
		if (int(x.rv)+o.begun)%3 != 0 {
			out = append(out, x)
		} else if y := named(w.res[kClaim].objs, x.ns, x.name); y != nil {
			out = append(out, *y)
		}
	}
	o.objs[kClaim] = out
}

func (v *viewOf) Namespace(ctx context.Context, name string) ([]*quota.Quota, uint64, bool, error) {
	if _, err := v.park(ctx, "get namespace"); err != nil {
		return nil, 0, false, err
	}
	w := v.r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s := cacheView{v}.snapshot()
	s.objs[kNS] = w.res[kNS].objs
	quotas, version, known := s.Covering(name)
	return quotas, version, known, nil
}

func (v *viewOf) Quota(ctx context.Context, name string) (*quota.Quota, error) {
	if _, err := v.park(ctx, "get quota "+name); err != nil {
		return nil, err
	}
	v.r.w.mu.Lock()
	defer v.r.w.mu.Unlock()
	if o := named(v.r.w.res[kCRQ].objs, "", name); o != nil {
		return o.q, nil
	}
	return nil, nil
}

func (v *viewOf) park(ctx context.Context, what string) (verdict, error) {
	return v.r.park(ctx, v.inc, what)
}

// park waits until the scheduler lets the call go.
func (r *replica) park(ctx context.Context, inc int, what string) (verdict, error) {
	w := r.w
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	w.mu.Lock()
	if w.free {
		w.mu.Unlock()
		return vApply, nil
	}
	if inc != r.inc {
		w.mu.Unlock()
		return 0, errCrashed
	}
	c := &call{r: r, what: what, ch: make(chan verdict, 1)}
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	select {
	case v := <-c.ch:
		w.mu.Lock()
		crashed := inc != r.inc
		w.mu.Unlock()
		if crashed {
			return 0, errCrashed
		}
		if v == vFail {
			return 0, errLost
		}
		if v == vThrottle {
			return 0, ErrThrottled
		}
		return v, nil
	case <-ctx.Done():
		w.mu.Lock()
		w.calls = slices.DeleteFunc(w.calls, func(x *call) bool { return x == c })
		w.mu.Unlock()
		return 0, ctx.Err()
	}
}

// storeOf is the Store of one process.
type storeOf struct {
	r   *replica
	inc int
}

func (s *storeOf) Get(_ context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	w := s.r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.inc != s.r.inc {
		return nil, errCrashed
	}
	l := s.r.ledgers[name]
	if w.current {
		l = w.ledgers[name]
	}
	if l == nil {
		return nil, ErrNotFound
	}
	return l.DeepCopy(), nil
}

func (s *storeOf) GetLive(ctx context.Context, name string) (*v1alpha1.DeviceLedger, error) {
	if _, err := s.r.park(ctx, s.inc, "get ledger "+name); err != nil {
		return nil, err
	}
	w := s.r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.ledgers[name]; l != nil {
		return l.DeepCopy(), nil
	}
	return nil, ErrNotFound
}

func (s *storeOf) Create(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	knew := s.knows()
	v, err := s.r.park(ctx, s.inc, "create ledger "+l.Name)
	if err != nil {
		return nil, err
	}
	w := s.r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ledgers[l.Name] != nil {
		return nil, ErrConflict
	}
	n := l.DeepCopy()
	w.nextUID++
	n.UID = types.UID(fmt.Sprintf("ledger-%d", w.nextUID))
	n.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	w.store(s.r, knew, nil, n)
	if v == vLose {
		return nil, errLost
	}
	return n.DeepCopy(), nil
}

// knows are the caches as they are.
func (s *storeOf) knows() [kinds]watchCache {
	s.r.w.mu.Lock()
	defer s.r.w.mu.Unlock()
	return s.r.c
}

func (w *world) store(r *replica, knew [kinds]watchCache, old, n *v1alpha1.DeviceLedger) {
	w.ledgerV++
	w.puts++
	n.ResourceVersion = fmt.Sprint(w.ledgerV)
	w.ledgers[n.Name] = n
	w.ledgerL = append(w.ledgerL, ledgerEvent{n.Name, n})
	if w.onPut != nil {
		w.onPut(r, knew, old, n)
	}
}

func (s *storeOf) Update(ctx context.Context, l *v1alpha1.DeviceLedger) (*v1alpha1.DeviceLedger, error) {
	knew := s.knows()
	v, err := s.r.park(ctx, s.inc, "put ledger "+l.Name)
	if err != nil {
		return nil, err
	}
	w := s.r.w
	if w.slow > 0 {
		time.Sleep(w.slow)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return nil, w.broken
	}
	old := w.ledgers[l.Name]
	if old == nil {
		return nil, ErrNotFound
	}
	if old.UID != l.UID || old.ResourceVersion != l.ResourceVersion {
		w.logf("r%d put %s conflicts", s.r.i, l.Name)
		return nil, ErrConflict
	}
	n := l.DeepCopy()
	w.store(s.r, knew, old, n)
	if v == vLose {
		w.logf("r%d answer lost", s.r.i)
		return nil, errLost
	}
	return n.DeepCopy(), nil
}

func (s *storeOf) Delete(ctx context.Context, l *v1alpha1.DeviceLedger) error {
	v, err := s.r.park(ctx, s.inc, "delete ledger "+l.Name)
	if err != nil {
		return err
	}
	w := s.r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.ledgers[l.Name]
	if old == nil {
		return ErrNotFound
	}
	if old.UID != l.UID || old.ResourceVersion != l.ResourceVersion {
		return ErrConflict
	}
	w.removeLedger(l.Name)
	w.logf("r%d removes ledger %s", s.r.i, l.Name)
	if v == vLose {
		return errLost
	}
	return nil
}

func (w *world) removeLedger(name string) {
	w.ledgerV++
	delete(w.ledgers, name)
	w.ledgerL = append(w.ledgerL, ledgerEvent{name, nil})
}
