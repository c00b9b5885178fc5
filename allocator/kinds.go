package allocator

import (
	"encoding/binary"
	"slices"
)

// level is the state of the search at one point of the recursion: the kinds of devices.
type level struct {
	kindOf []int32 // by position: number of the kind, see deep.kinds; -1 for useless devices
	kinds  []levelKind
	index  map[int32]int32 // number of the kind -> index in kinds
	groups []int32         // number of each group's state
	tried  map[int32]struct{}
	key    []byte
}

// levelKind is a kind of devices that are alike: an exchange of two of them, with their groups,
// leaves the state as it is.
type levelKind struct {
	number int32
	sample int32 // position of one of them
	count  int   // how many in all groups
	open   bool  // they may be next in the current request
	group  int32 // number of the state of their groups
}

// enter computes the kinds. Devices before the position from are not open: the current request
// takes its devices in the order of their positions.
func (d *deep) enter(from int) *level {
	if d.depth == len(d.levels) {
		d.levels = append(d.levels, d.newLevel())
	}
	l := d.levels[d.depth]
	l.kinds = l.kinds[:0]
	clear(l.index)
	clear(l.tried)
	for g := range d.groups {
		l.groups[g] = d.stateOf(&d.groups[g], from)
		for _, pos := range d.groups[g].members {
			key := kindKey{group: l.groups[g], trait: int32(d.traits[pos]), used: d.usedCode(int(pos)), open: int(pos) >= from}
			number, found := d.kinds[key]
			if !found {
				number = int32(len(d.kinds))
				d.kinds[key] = number
			}
			l.kindOf[pos] = number
			i, found := l.index[number]
			if !found {
				i = int32(len(l.kinds))
				l.index[number] = i
				l.kinds = append(l.kinds, levelKind{number: number, sample: pos, open: key.open, group: key.group})
			}
			l.kinds[i].count++
		}
	}
	d.steps += int64(len(d.groupOf) / 16)
	return l
}

func (d *deep) newLevel() *level {
	l := &level{
		kindOf: make([]int32, len(d.groupOf)), groups: make([]int32, len(d.groups)),
		index: map[int32]int32{}, tried: map[int32]struct{}{},
	}
	for pos := range l.kindOf {
		l.kindOf[pos] = -1
	}
	return l
}

// stateOf numbers the class of the group together with what is used of its members, and which
// of them are not open any more.
func (d *deep) stateOf(g *group, from int) int32 {
	var buffer [64]byte
	key := append(buffer[:0], 'x')
	key = binary.AppendVarint(key, int64(g.class))
	if len(g.members) == 1 {
		pos := int(g.members[0])
		key = binary.AppendVarint(append(key, flags(pos >= from)), int64(d.usedCode(pos)))
		return d.number(key)
	}
	var members [][2]int64
	for _, pos := range g.members {
		used := int64(d.usedCode(int(pos))) << 1
		if int(pos) >= from {
			used++
		}
		if used != 1 {
			members = append(members, [2]int64{int64(d.traits[pos]), used})
		}
	}
	slices.SortFunc(members, func(a, b [2]int64) int {
		if a[0] != b[0] {
			return int(a[0] - b[0])
		}
		return int(a[1] - b[1])
	})
	for _, m := range members {
		key = binary.AppendVarint(binary.AppendVarint(key, m[0]), m[1])
	}
	return d.number(key)
}

// usedCode is 0 for a device that this call has not allocated, else what it is used for as far
// as it matters for what comes.
func (d *deep) usedCode(pos int) int32 {
	if sh := d.shares[pos]; sh != nil && sh.shares > 0 {
		key := []byte{'h', flags(sh.charging > 0)}
		for _, a := range sh.used {
			key = appendAmount(key, a)
		}
		return 8 + d.number(key)
	}
	used := int32(0)
	if owner := d.owner[pos]; owner != 0 {
		used = 1
		if d.hasAdmin && owner == d.claimNumber {
			used = 2
		}
	}
	if len(d.admin) > 0 && d.admin[pos] == d.claimNumber {
		used += 4
	}
	return used
}

// remember makes the level's key: equal keys, equal prospects. what identifies the point of
// the search: alternative or request, and how many of its devices are there.
func (d *deep) remember(l *level, claim, request, alternative, k int) {
	key := l.key[:0]
	for _, n := range []int{claim, request, alternative, k, len(d.placed[claim])} {
		key = binary.AppendVarint(key, int64(n))
	}
	for _, c := range d.constraints[claim] {
		if c.devices == 0 || c.last < request {
			key = append(key, 0)
			continue
		}
		key = append(key, 1)
		if !c.distinct {
			key = appendNumbers(key, d.elements(c.common))
			continue
		}
		var seen []int32
		for _, v := range c.seen {
			seen = append(seen, d.elements(v)...)
		}
		slices.Sort(seen)
		key = appendNumbers(key, seen)
	}
	states := slices.Clone(l.groups)
	slices.Sort(states)
	l.key = appendNumbers(key, states)
}

func appendNumbers(key []byte, list []int32) []byte {
	key = binary.AppendUvarint(key, uint64(len(list)))
	for i := 0; i < len(list); {
		j := i
		for j < len(list) && list[j] == list[i] {
			j++
		}
		key = binary.AppendUvarint(binary.AppendUvarint(key, uint64(list[i])), uint64(j-i))
		i = j
	}
	return key
}

// open enters a point of the search: before the k-th device of the alternative, which comes
// from the position from on, or before the request if the alternative is nil. ok is false if
// all from here on is known to fail. d may be nil: then nothing is known, and level is nil.
func (d *deep) open(claim, request int, a *alternative, k, from int) (l *level, ok bool) {
	if d == nil {
		return nil, true
	}
	d.claimNumber = int32(claim) + 1
	l = d.enter(from)
	number := -1
	if a != nil {
		number = a.number
	}
	d.remember(l, claim, request, number, k)
	if _, failed := d.failed[string(l.key)]; failed {
		return nil, false
	}
	if !d.promising(l, claim, request, a, k) {
		d.fail(l)
		return nil, false
	}
	d.depth++
	return l, true
}

// close leaves the point: all has been tried and failed.
func (d *deep) close(l *level) {
	if d == nil {
		return
	}
	d.depth--
	d.fail(l)
}

// fail remembers that the level's state fails.
func (d *deep) fail(l *level) {
	if len(d.failed) < maxFailed {
		d.failed[string(l.key)] = struct{}{}
	}
}

// skips tells whether the device need not be tried: no alternative can use it, or one of the
// same kind has been tried. l may be nil.
func (l *level) skips(pos int) bool {
	if l == nil {
		return false
	}
	number := l.kindOf[pos]
	_, found := l.tried[number]
	if found || number < 0 {
		return true
	}
	l.tried[number] = struct{}{}
	return false
}
