package allocator

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
)

// deep is what the search knows once the plain search turned out to be long: which devices
// nothing in this call can tell apart, and which states are known to fail. See doc.go for why
// it changes no answer.
type deep struct {
	*search
	// groups are the devices that share counters; a device without counters is a group. Only
	// devices that some alternative may use are in one. groupOf is by position, -1 for none.
	groups  []group
	groupOf []int32
	traits  []trait // by position
	// codes are, by alternative and position, whether the alternative may use the device.
	codes [][]code
	// values are, by constraint of each alternative and position, the elements of the
	// attribute as numbers; nil when the device lacks it.
	values map[valueKey][][]int32

	names    map[string]int32  // numbers of whatever has to be compared
	kinds    map[kindKey]int32 // numbers of kinds
	failed   map[string]struct{}
	hasAdmin bool
	flow     network
	dims     dimensions
	levels   []*level // by depth of the recursion
	depth    int
	// claimNumber is 1 + the number of the claim in progress.
	claimNumber int32
}

type code uint8

const (
	codeNo    code = iota
	codeYes        // it may
	codeError      // reaching it is an error
)

// trait is what the call can tell of a device as long as nothing is allocated: equal numbers,
// equal devices.
type trait int32

type group struct {
	members []int32 // positions, ascending
	class   int32   // groups of one class are alike
	counted bool    // the members consume counters
}

type valueKey struct {
	constraint  *constraint
	alternative int
}

// kindKey identifies devices that are alike in the current state.
type kindKey struct {
	group, trait, used int32
	open               bool
}

// maxFailed bounds the memory for failed states.
const maxFailed = 300_000

// newDeep prepares the tables. It evaluates all selectors on all devices; errors are kept for
// when the search reaches the device.
func newDeep(ctx context.Context, s *search) (*deep, error) {
	d := &deep{
		search:  s,
		groupOf: make([]int32, s.view.devices),
		traits:  make([]trait, s.view.devices),
		codes:   make([][]code, len(s.alternatives)),
		values:  map[valueKey][][]int32{},
		names:   map[string]int32{},
		kinds:   map[kindKey]int32{},
		failed:  map[string]struct{}{},
	}
	for _, a := range s.alternatives {
		d.hasAdmin = d.hasAdmin || a.admin
		if err := d.look(ctx, a); err != nil {
			return nil, err
		}
	}
	d.describe()
	d.group()
	d.newDimensions()
	return d, nil
}

// look determines what the alternative may use, and the attributes that matter.
func (d *deep) look(ctx context.Context, a *alternative) error {
	codes := make([]code, d.view.devices)
	d.codes[a.number] = codes
	if a.class == nil || a.impossible.why != "" {
		return nil
	}
	for _, c := range a.constraints {
		d.values[valueKey{c, a.number}] = make([][]int32, d.view.devices)
	}
	for i := range d.view.slices {
		vs := &d.view.slices[i]
		for j := range vs.devices {
			if err := d.step(ctx); err != nil {
				return err
			}
			code, err := d.codeOf(ctx, a, vs, &vs.devices[j])
			if err != nil {
				return err
			}
			codes[vs.first+j] = code
		}
	}
	if a.all {
		d.onlyListed(a, codes)
	}
	return nil
}

// onlyListed forgets all devices that are not in the list of the alternative.
func (d *deep) onlyListed(a *alternative, codes []code) {
	listed := make([]bool, len(codes))
	for _, at := range a.list {
		listed[d.view.slices[at.slice].first+at.device] = true
	}
	for pos := range codes {
		if !listed[pos] {
			codes[pos] = codeNo
		}
	}
}

// codeOf tells whether the alternative may use the device. The error is one that ends the search.
func (d *deep) codeOf(ctx context.Context, a *alternative, vs *viewSlice, dev *device) (code, error) {
	sharing := dev.shareable && d.o.Features.ConsumableCapacity
	if d.inUse(a, vs, dev, sharing) {
		return codeNo, nil
	}
	usable, err := d.usable(ctx, a, vs, dev)
	switch {
	case errors.Is(err, ErrSteps) || ctx.Err() != nil:
		return codeNo, err
	case err != nil:
		return codeError, nil
	case !usable || !d.hasCapacity(a, vs, dev):
		return codeNo, nil
	}
	for _, c := range a.constraints {
		v, found, err := d.attribute(ctx, c, a, dev)
		switch {
		case errors.Is(err, ErrSteps) || err != nil && ctx.Err() != nil:
			return codeNo, err
		case err != nil:
			return codeError, nil
		case !found || v.kind == kindOther && d.o.Features.ListTypeAttributes:
			return codeNo, nil
		}
		d.values[valueKey{c, a.number}][vs.first+dev.index] = d.elements(v)
	}
	return codeYes, nil
}

// elements numbers the elements of the value. Values of no kind equal nothing, so each gets a
// number of its own kind that the flow bounds treat as equal, which is on the safe side.
func (d *deep) elements(v value) []int32 {
	list := make([]int32, 0, 1+len(v.more))
	for _, e := range v.all() {
		key := binary.AppendVarint([]byte{'v', byte(v.kind)}, e.number)
		list = append(list, d.number(append(key, e.text...)))
	}
	return list
}

// number numbers whatever the key describes. The first byte tells what that is.
func (d *deep) number(key []byte) int32 {
	n, found := d.names[string(key)]
	if !found {
		n = int32(len(d.names))
		d.names[string(key)] = n
	}
	return n
}

// describe computes the traits: all that the call can tell of the devices one by one.
func (d *deep) describe() {
	for i := range d.view.slices {
		vs := &d.view.slices[i]
		for j := range vs.devices {
			d.traits[vs.first+j] = trait(d.number(d.traitOf(vs, &vs.devices[j])))
		}
	}
}

func (d *deep) traitOf(vs *viewSlice, dev *device) []byte {
	pos := vs.first + dev.index
	key := []byte{'t'}
	useful := false
	for _, a := range d.alternatives {
		c := d.codes[a.number][pos]
		key = append(key, byte(c))
		if c == codeNo {
			continue
		}
		useful = true
		if n := a.need(pos); n != nil {
			for _, x := range n.amounts {
				key = appendAmount(key, x)
			}
		}
		for _, c := range a.constraints {
			for _, e := range d.values[valueKey{c, a.number}][pos] {
				key = binary.AppendVarint(key, int64(e))
			}
			key = append(key, 0xff)
		}
	}
	if !useful {
		return []byte{'t'}
	}
	key = append(key, flags(dev.shareable && d.o.Features.ConsumableCapacity))
	u := d.use(vs).of(dev.name)
	for i := range dev.capacities {
		left := dev.capacities[i].value
		if u != nil {
			left = left.sub(u.capacity[dev.capacities[i].name])
		}
		if dev.shareable {
			key = appendAmount(key, left)
		}
	}
	if d.paid(vs, dev) {
		return key
	}
	// The numbers of sets and counters are those of the pool; group() makes them comparable.
	return append(key, flags(d.consuming(vs, dev))+2)
}

// paid tells whether shares of other claims already pay the device's counters.
func (d *deep) paid(vs *viewSlice, dev *device) bool {
	u := d.use(vs).of(dev.name)
	return dev.shareable && d.o.Features.ConsumableCapacity && u != nil && u.shares > 0
}

// consuming tells whether taking the device can take counters.
func (d *deep) consuming(vs *viewSlice, dev *device) bool {
	return vs.pool.layout != nil && dev.consumes && !d.paid(vs, dev)
}

func appendAmount(key []byte, a amount) []byte {
	return binary.AppendUvarint(binary.AppendVarint(key, a.hi), a.lo)
}

// group makes the groups: devices that consume of the same counter sets, directly or through
// other devices.
func (d *deep) group() {
	nothing := trait(d.number([]byte{'t'}))
	sets := map[[2]int]int32{} // pool and set -> group
	var parent []int32
	find := func(g int32) int32 {
		for parent[g] != g {
			parent[g] = parent[parent[g]]
			g = parent[g]
		}
		return g
	}
	for i := range d.view.slices {
		vs := &d.view.slices[i]
		for j := range vs.devices {
			pos := vs.first + j
			d.groupOf[pos] = -1
			if d.traits[pos] == nothing {
				continue
			}
			g := int32(len(parent))
			parent = append(parent, g)
			d.groupOf[pos] = g
			if !d.consuming(vs, &vs.devices[j]) {
				continue
			}
			for _, u := range vs.pool.layout.of(&vs.devices[j]) {
				key := [2]int{vs.poolNumber, u.set}
				if other, found := sets[key]; found {
					parent[find(other)] = find(g)
				}
				sets[key] = g
			}
		}
	}
	d.number2groups(find)
}

// number2groups collects the members of each group and compares the groups.
func (d *deep) number2groups(find func(int32) int32) {
	numbers := map[int32]int32{} // root -> number of the group
	for pos, g := range d.groupOf {
		if g < 0 {
			continue
		}
		root := find(g)
		n, found := numbers[root]
		if !found {
			n = int32(len(d.groups))
			numbers[root] = n
			d.groups = append(d.groups, group{})
		}
		d.groupOf[pos] = n
		d.groups[n].members = append(d.groups[n].members, int32(pos))
	}
	for i := range d.groups {
		d.compare(&d.groups[i])
	}
}

// compare numbers the class of the group and refines the traits of its members by what they
// consume. Sets and counters are named by the order in which the members use them.
func (d *deep) compare(g *group) {
	vs, _ := d.at(int(g.members[0]))
	if vs.pool.layout == nil {
		g.class = d.number(binary.AppendVarint([]byte{'g'}, int64(d.traits[g.members[0]])))
		return
	}
	counters := map[int]int64{}
	setNames := map[int]int64{}
	var left []byte
	name := func(m map[int]int64, x int) (n int64, added bool) {
		n, found := m[x]
		if !found {
			n = int64(len(m))
			m[x] = n
		}
		return n, !found
	}
	for _, pos := range g.members {
		vs, dev := d.at(int(pos))
		if !d.consuming(vs, dev) {
			continue
		}
		g.counted = true
		p := d.countersOf(vs)
		key := binary.AppendVarint([]byte{'u'}, int64(d.traits[pos]))
		for _, u := range vs.pool.layout.of(dev) {
			n, added := name(setNames, u.set)
			if added {
				left = appendGroups(append(left, 's', flags(p.groups[u.set].members, p.groups[u.set].grouped)), p.groups[u.set].common)
			}
			key = appendGroups(binary.AppendVarint(key, n), u.groups)
			for _, c := range u.amounts {
				n, added := name(counters, c.counter)
				if added {
					left = appendAmount(append(left, 'c'), p.counters[c.counter])
				}
				key = appendAmount(binary.AppendVarint(key, n), c.amount)
			}
		}
		d.traits[pos] = trait(d.number(key))
	}
	traits := make([]trait, len(g.members))
	for i, pos := range g.members {
		traits[i] = d.traits[pos]
	}
	slices.Sort(traits)
	key := append([]byte{'g'}, left...)
	for _, t := range traits {
		key = binary.AppendVarint(key, int64(t))
	}
	g.class = d.number(key)
}

func appendGroups(key []byte, groups []string) []byte {
	key = binary.AppendUvarint(key, uint64(len(groups)))
	for _, s := range groups {
		key = appendString(key, s)
	}
	return key
}

// at returns the device at the position.
func (d *deep) at(pos int) (*viewSlice, *device) {
	i, found := slices.BinarySearchFunc(d.view.slices, pos, func(vs viewSlice, pos int) int { return vs.first - pos })
	if !found {
		i--
	}
	for d.view.slices[i].first+len(d.view.slices[i].devices) <= pos {
		i++ // slices without devices begin where the next one does
	}
	vs := &d.view.slices[i]
	return vs, &vs.devices[pos-vs.first]
}
