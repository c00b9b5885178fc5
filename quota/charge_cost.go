package quota

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// cost is what one alternative costs the keys of one quota.
type cost struct {
	// amounts of the keys that the alternative concerns, in the order of the quota's keys.
	amounts []amount
	// unknownClass: there is no such class.
	unknownClass bool
	// err: a selector of the request does not compile.
	err *selectorError
}

type amount struct {
	key int // index in Quota.Keys
	// value is what is charged; a lower bound where the amount is unknown.
	value resource.Quantity
	text  string
	// unknown says why the amount is not known, else empty.
	unknown string
	// absent: it is unknown because there is no device at all, not because devices keep silent.
	absent bool
}

type selectorError struct {
	index int
	err   error
}

func (c *Charger) costsOf(q *Quota) *memo[*cost] {
	signature := q.signature
	if signature == "" {
		signature = q.sign()
	}
	return c.costs.get([]byte(signature), func() *memo[*cost] { return &memo[*cost]{limit: maxCosts} })
}

func (c *Charger) cost(costs *memo[*cost], q *Quota, a *alternative) *cost {
	var buf [256]byte
	return costs.get(a.appendShape(buf[:0]), func() *cost { return c.computeCost(q, a) })
}

func (c *Charger) computeCost(q *Quota, a *alternative) *cost {
	class := c.inv.DeviceClass(a.class)
	out := &cost{unknownClass: class == nil, err: c.compile(a)}
	if out.err != nil {
		return out
	}
	for i := range q.Keys {
		k := &q.Keys[i]
		if serves, _ := servesKey(k, a.class, class); !serves {
			continue
		}
		v := c.amount(a, q.measureOf(k))
		v.key = i
		out.amounts = append(out.amounts, v)
	}
	return out
}

// compile returns the first selector of the request that does not compile, nil when all do.
// A class whose own selectors do not compile has no candidates, whatever the request says.
func (c *Charger) compile(a *alternative) *selectorError {
	if len(a.selectors) == 0 {
		return nil
	}
	none := func(string, string, *resourceapi.Device, []string) bool { return false }
	if _, err := c.inv.Candidates(a.class, a.selectors, none); err == nil {
		return nil
	}
	if _, err := c.inv.Candidates(a.class, nil, none); err != nil {
		return nil
	}
	for i := range a.selectors {
		if _, err := c.inv.Candidates(a.class, a.selectors[i:i+1], none); err != nil {
			return &selectorError{index: i, err: err}
		}
	}
	return nil
}

// amount charges one alternative for one measure.
func (c *Charger) amount(a *alternative, m measure) amount {
	if m.kind == MeasureDevices && !m.selected && !a.all {
		return amount{value: quantity(a.count), text: countText(a.count)}
	}
	f := c.footprint(a, m)
	switch {
	case f.broken != "" && (m.kind != MeasureDevices || m.selected):
		return amount{value: times(f.floor, a.devices()), unknown: f.broken}
	case f.candidates == 0 || a.all && f.node == nil:
		return absentAmount(a, m, f)
	case m.selected && f.matching == 0:
		return amount{}
	}
	out := amount{}
	if a.all {
		out.value = f.node.total.DeepCopy()
		out.text = fmt.Sprintf("All: largest node %s has %s", f.node.name, out.value.String())
		if f.node.name == "" {
			out.text = fmt.Sprintf("All: %s for every node", out.value.String())
		}
	} else {
		out.value = times(f.largest, a.count)
		out.text = amountText(m, a.count, f.largest)
	}
	if !f.told {
		out.unknown = "no published device of class " + quoted(a.class) + " tells its " + m.String()
	}
	if f.overBudget {
		out.text += " (the selectors cost too much to evaluate: any device of the class)"
	}
	return out
}

// devices is how many devices an alternative may get at most, as far as it alone tells.
func (a *alternative) devices() int64 {
	if a.all {
		return resourceapi.AllocationResultsMaxSize
	}
	return a.count
}

// absentAmount charges an alternative for which no device is published: by what the class
// declares; All may then be as many devices as a claim can have.
func absentAmount(a *alternative, m measure, f *footprint) amount {
	n := a.devices()
	if m.kind == MeasureDevices && (!m.selected || f.declared) {
		out := amount{value: quantity(n), text: countText(n)}
		if a.all {
			out.text = fmt.Sprintf("All: no device is published, %d assumed", n)
		}
		return out
	}
	out := amount{value: times(f.floor, n), text: amountText(m, n, f.floor)}
	if !f.told {
		out.unknown = "no device of class " + quoted(a.class) + " is published that the request selects, and the class declares no footprint"
		out.absent = true
	}
	return out
}

func quoted(s string) string { return `"` + s + `"` }

func countText(n int64) string {
	if n == 1 {
		return "1 device"
	}
	return fmt.Sprintf("%d devices", n)
}

func amountText(m measure, n int64, each resource.Quantity) string {
	if m.kind == MeasureDevices {
		return countText(n)
	}
	return countText(n) + " x " + each.String()
}

// tally adds up what a claim costs one quota.
type tally struct {
	q       *Quota
	explain bool
	values  []resource.Quantity // by key
	unknown []UnknownCharge
	rules   []Rule
	classes []string
	// unsure: a class does not exist, which leaves open what extended resource it served.
	unsure bool
}

func newTally(q *Quota, explain bool) *tally {
	return &tally{q: q, explain: explain, values: make([]resource.Quantity, len(q.Keys))}
}

// object counts the claim object.
func (t *tally) object() {
	for i := range t.q.Keys {
		if t.q.Keys[i].Subject == SubjectClaims {
			t.add(i, quantity(1), "", "1 claim")
		}
	}
}

func (t *tally) add(key int, v resource.Quantity, request, text string) {
	if v.Sign() <= 0 {
		return
	}
	t.values[key].Add(v.DeepCopy())
	if t.explain {
		t.rules = append(t.rules, Rule{Key: t.q.Keys[key].Name, Request: request, Text: text})
	}
}

// request adds a request: per key the largest of its alternatives whose amount is known.
func (t *tally) request(name string, alternatives []*alternative) {
	for _, a := range alternatives {
		if a.cost.unknownClass {
			t.unsure = true
			t.classes = append(t.classes, a.class)
		}
	}
	if len(alternatives) == 1 && alternatives[0].index < 0 {
		for i := range alternatives[0].cost.amounts {
			t.amount(name, &alternatives[0].cost.amounts[i], "")
		}
		return
	}
	for i := range t.q.Keys {
		t.best(name, i, alternatives)
	}
}

func (t *tally) amount(request string, v *amount, prefix string) {
	t.add(v.key, v.value, request, prefix+v.text)
	if v.unknown != "" {
		t.unknown = append(t.unknown, UnknownCharge{Key: t.q.Keys[v.key].Name, Request: request, Why: v.unknown})
	}
}

// best adds the largest known alternative of a request for one key. An alternative for which
// no device is published does not count beside others, also others that do not concern the
// key: portable claims name classes that this cluster lacks. One whose devices exist and
// keep silent about the measure makes the amount unknown unless another alternative for the
// same key is known; else any cheap alternative would hide it.
func (t *tally) best(request string, key int, alternatives []*alternative) {
	var known, silent, absent *amount
	var names []string
	elsewhere := false // an alternative does not concern the key
	for _, a := range alternatives {
		v := a.cost.amountOf(key)
		switch {
		case v == nil:
			elsewhere = true
		case v.unknown == "":
			names = append(names, a.name)
			if known == nil || known.value.Cmp(v.value) < 0 {
				known = v
			}
		case v.absent:
			absent = v
		default:
			silent = v
		}
	}
	switch {
	case known != nil:
		prefix := ""
		if t.explain && known.value.Sign() > 0 {
			prefix = "largest of alternatives " + strings.Join(names, ", ") + ": "
		}
		t.amount(request, known, prefix)
	case silent != nil:
		t.amount(request, silent, "")
	case absent != nil && !elsewhere:
		t.amount(request, absent, "")
	}
}

func (o *cost) amountOf(key int) *amount {
	for i := range o.amounts {
		if o.amounts[i].key == key {
			return &o.amounts[i]
		}
	}
	return nil
}

// charge returns the sum, the caller's own.
func (t *tally) charge() Charge {
	return Charge{Amounts: t.amounts(), Unknown: t.unknown, Rules: t.rules, UnknownClasses: sortedUnique(t.classes)}
}

func (t *tally) amounts() corev1.ResourceList {
	out := make(corev1.ResourceList, len(t.values))
	for i := range t.values {
		if t.values[i].Sign() > 0 {
			out[t.q.Keys[i].Name] = t.values[i]
		}
	}
	return out
}
