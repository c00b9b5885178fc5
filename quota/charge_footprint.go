package quota

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// measure is what a key measures on a device.
type measure struct {
	kind Measure
	of   resourceapi.QualifiedName
	// selected: only devices that match the selector count.
	selected bool
	selector string
}

func (q *Quota) measureOf(k *Key) measure {
	m := measure{kind: k.Measure, of: k.Of}
	if k.Subject == SubjectSelector {
		m.selected, m.selector = true, q.Selectors[k.Selector]
	}
	return m
}

// String returns the measure for messages.
func (m measure) String() string {
	switch m.kind {
	case MeasureCapacity:
		return "capacity " + string(m.of)
	case MeasureCounter:
		return "counter " + string(m.of)
	}
	return devicesMeasure
}

// footprint is what the candidates of a request measure.
type footprint struct {
	// candidates is the number of devices that may be allocated, matching those of them that
	// match the selector.
	candidates, matching int
	// largest amount of a matching candidate.
	largest resource.Quantity
	// node with the largest total over its matching candidates, nil when no node reaches a candidate.
	node *nodeTotal
	// told: some matching candidate tells its amount, or the class declares it.
	told bool
	// floor is an amount that each device has at least: what the class declares, and what is requested.
	floor resource.Quantity
	// declared: the class declares a footprint.
	declared bool
	// zeroDefault: a matching candidate can be shared, and consumes 0 unless more is requested.
	zeroDefault bool
	// overBudget: the request's selectors cost too much, these are all devices of the class.
	overBudget bool
	// broken says why there is no footprint at all.
	broken string
}

type nodeTotal struct {
	name  string // empty: every node
	total resource.Quantity
}

func (c *Charger) footprint(a *alternative, m measure) *footprint {
	var buf [256]byte
	key := append(buf[:0], byte(m.kind), 0)
	if m.selected {
		key[1] |= 1
	}
	if a.all {
		key[1] |= 2
	}
	key = appendString(key, string(m.of))
	key = appendString(key, m.selector)
	return c.footprints.get(a.appendCandidates(key), func() *footprint { return c.computeFootprint(a, m) })
}

// computeFootprint looks at all candidates once. Selectors over their cost budget are left
// out, first the request's, then the class's: then there are no candidates to look at.
func (c *Charger) computeFootprint(a *alternative, m measure) *footprint {
	s := c.newSurvey(a, m)
	within, err := c.inv.Candidates(a.class, a.selectors, s.visit)
	if err == nil && !within && len(a.selectors) > 0 {
		s = c.newSurvey(a, m)
		s.f.overBudget = true
		within, err = c.inv.Candidates(a.class, nil, s.visit)
	}
	switch {
	case err != nil:
		s = c.newSurvey(a, m)
		s.f.broken = "the selectors of class " + quoted(a.class) + " do not compile"
	case !within:
		s = c.newSurvey(a, m)
		s.f.broken = "the selectors of class " + quoted(a.class) + " cost too much to evaluate"
	case s.err != nil:
		s.f.broken = "the quota's selector does not compile: " + s.err.Error()
	}
	if s.f.broken != "" && s.f.declared && s.err == nil {
		// What the class declares stands for devices that nobody can look at.
		s.f.broken, s.f.candidates = "", 0
	}
	s.finish()
	return s.f
}

// survey visits candidates.
type survey struct {
	c        *Charger
	a        *alternative
	m        measure
	f        *footprint
	declared resource.Quantity
	err      error
	nodes    map[string]resource.Quantity // node -> total
	every    resource.Quantity            // total that every node reaches
	reached  bool                         // some node reaches a candidate
}

func (c *Charger) newSurvey(a *alternative, m measure) *survey {
	s := &survey{c: c, a: a, m: m, f: &footprint{}}
	if a.all {
		s.nodes = map[string]resource.Quantity{}
	}
	if class := c.inv.DeviceClass(a.class); class != nil {
		// A malformed declaration declares nothing; conditions and the class's admission say so.
		if d, err := DeclaredFootprint(class); err == nil {
			s.f.declared = len(d) > 0
			s.declared = d.amount(m)
		}
	}
	s.f.floor = s.declared.DeepCopy()
	if v, ok := requestedOf(a.capacity, m, ""); ok && v.Cmp(s.f.floor) > 0 {
		s.f.floor = v.DeepCopy()
	}
	if m.kind != MeasureDevices {
		s.f.told = s.declared.Sign() > 0
	}
	return s
}

func (s *survey) visit(driver, pool string, d *resourceapi.Device, nodes []string) bool {
	s.f.candidates++
	if s.m.selected {
		matches, err := s.c.inv.Matches(s.m.selector, driver, pool, d.Name)
		if err != nil {
			s.err = err
			return false
		}
		if !matches {
			s.reached = s.reached || nodes == nil || len(nodes) > 0
			return true
		}
	}
	s.f.matching++
	s.f.zeroDefault = s.f.zeroDefault || s.m.kind == MeasureCapacity && defaultsToZero(d, driver, s.m.of)
	v, told := amountOf(d, driver, s.m, s.a.capacity)
	s.f.told = s.f.told || told
	if !told && s.declared.Cmp(v) > 0 {
		v = s.declared
	}
	if v.Cmp(s.f.largest) > 0 {
		s.f.largest = v.DeepCopy()
	}
	if s.a.all {
		s.addToNodes(v, nodes)
	}
	return true
}

func (s *survey) addToNodes(v resource.Quantity, nodes []string) {
	if nodes == nil {
		s.reached = true
		s.every.Add(v.DeepCopy())
		return
	}
	for _, n := range nodes {
		s.reached = true
		t := s.nodes[n]
		t.Add(v.DeepCopy())
		s.nodes[n] = t
	}
}

// finish finds the largest node; of equal ones the first by name.
func (s *survey) finish() {
	if !s.a.all || !s.reached {
		return
	}
	largest := &nodeTotal{}
	for _, n := range sortedStrings(s.nodes) {
		if t := s.nodes[n]; largest.name == "" || t.Cmp(largest.total) > 0 {
			largest = &nodeTotal{name: n, total: t}
		}
	}
	largest.total.Add(s.every.DeepCopy())
	s.f.node = largest
}

// amountOf returns what one device measures for a request with these requested capacities:
// 0 or more, at least what is requested. told is false when the device is silent about it.
//
// A capacity of 0 tells nothing: drivers publish 0 before they have looked. Counters are
// different: a device that consumes any counter consumes nothing of those it does not name.
func amountOf(d *resourceapi.Device, driver string, m measure, requested map[resourceapi.QualifiedName]resource.Quantity) (v resource.Quantity, told bool) {
	switch m.kind {
	case MeasureDevices:
		return quantity(1), true
	case MeasureCounter:
		return counterOf(d, string(m.of))
	}
	shareable := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	for _, name := range spellings(m.of, driver) {
		published, ok := d.Capacity[name]
		if !ok || published.Value.Sign() <= 0 {
			continue
		}
		told = true
		amount := published.Value
		if shareable {
			amount = consumed(&published, requested, name)
		}
		if amount.Cmp(v) > 0 {
			v = amount
		}
	}
	if r, ok := requestedOf(requested, m, driver); ok && r.Cmp(v) > 0 {
		v = r
	}
	return v, told
}

// defaultsToZero returns true if claims that do not ask for the capacity consume none of it.
func defaultsToZero(d *resourceapi.Device, driver string, of resourceapi.QualifiedName) bool {
	if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations {
		return false
	}
	for _, name := range spellings(of, driver) {
		c, ok := d.Capacity[name]
		if ok && c.RequestPolicy != nil && c.RequestPolicy.Default != nil && c.RequestPolicy.Default.Sign() <= 0 {
			return true
		}
	}
	return false
}

// counterOf returns the sum of the counter over all counter sets.
func counterOf(d *resourceapi.Device, name string) (sum resource.Quantity, told bool) {
	for i := range d.ConsumesCounters {
		for n, c := range d.ConsumesCounters[i].Counters {
			if c.Value.Sign() <= 0 {
				continue
			}
			told = true
			if n == name {
				sum.Add(c.Value.DeepCopy())
			}
		}
	}
	return sum, told
}

// spellings returns the names under which the driver may publish what a key's name means.
// Where it publishes both the larger amount counts.
func spellings(of resourceapi.QualifiedName, driver string) [2]resourceapi.QualifiedName {
	domain, id := splitName(of)
	switch domain {
	case "":
		return [2]resourceapi.QualifiedName{of, resourceapi.QualifiedName(driver + "/" + id)}
	case driver:
		return [2]resourceapi.QualifiedName{of, resourceapi.QualifiedName(id)}
	}
	return [2]resourceapi.QualifiedName{of, of}
}

// requestedOf returns the requested capacity that the measure means on a device of the
// driver; with no driver, on any.
func requestedOf(requested map[resourceapi.QualifiedName]resource.Quantity, m measure, driver string) (v resource.Quantity, ok bool) {
	if m.kind != MeasureCapacity || len(requested) == 0 {
		return v, false
	}
	for name, r := range requested {
		if sameName(name, m.of, driver) && (!ok || r.Cmp(v) > 0) {
			v, ok = r, true
		}
	}
	return v, ok
}

// sameName returns true if the names mean the same capacity of the driver's devices; with no
// driver, if they mean the same for some driver.
func sameName(a, b resourceapi.QualifiedName, driver string) bool {
	domainA, idA := splitName(a)
	domainB, idB := splitName(b)
	if idA != idB {
		return false
	}
	if driver == "" {
		return domainA == domainB || domainA == "" || domainB == ""
	}
	return withDefault(domainA, driver) == withDefault(domainB, driver)
}

func withDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func splitName(name resourceapi.QualifiedName) (domain, id string) {
	if domain, id, ok := strings.Cut(string(name), "/"); ok {
		return domain, id
	}
	return "", string(name)
}

// Footprint is what one device of a class consumes at most, as the class declares it.
type Footprint map[string]resource.Quantity

// DeclaredFootprint returns what the class's FootprintAnnotation declares, nil when it has
// none. The keys are measures as in quota keys: "capacity.<name>" or "counter.<name>".
func DeclaredFootprint(class *resourceapi.DeviceClass) (Footprint, error) {
	text, ok := class.Annotations[FootprintAnnotation]
	if !ok {
		return nil, nil
	}
	var out Footprint
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", FootprintAnnotation, err)
	}
	for _, name := range sortedStrings(out) {
		kind, _, err := parseMeasure(name)
		if err == nil && kind == MeasureDevices {
			err = fmt.Errorf("measure %q cannot be declared", name)
		}
		if v := out[name]; err == nil && v.Sign() <= 0 {
			err = fmt.Errorf("%s must be greater than 0", name)
		}
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", FootprintAnnotation, err)
		}
	}
	return out, nil
}

// amount returns what is declared for the measure, 0 when nothing is.
func (f Footprint) amount(m measure) (v resource.Quantity) {
	for name, q := range f {
		kind, of, err := parseMeasure(name)
		if err == nil && kind == m.kind && sameName(of, m.of, "") && q.Cmp(v) > 0 {
			v = q
		}
	}
	return v
}

func sortedUnique(s []string) []string {
	if len(s) == 0 {
		return nil
	}
	out := slices.Clone(s)
	slices.Sort(out)
	return slices.Compact(out)
}
