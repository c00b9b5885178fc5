package allocator

import (
	"hash/fnv"
	"strings"
)

// tree is an immutable sorted map from string: set and remove return a new tree that shares
// all but the path to the change with the old one, in logarithmic time. The nil tree is empty.
// It is a treap whose priorities are hashes of the keys, so equal content has equal shape.
type tree[V any] struct {
	key         string
	priority    uint64
	value       V
	size        int
	left, right *tree[V]
}

func (t *tree[V]) len() int {
	if t == nil {
		return 0
	}
	return t.size
}

// get returns the value of the key, and whether there is one.
func (t *tree[V]) get(key string) (V, bool) {
	for t != nil {
		switch c := strings.Compare(key, t.key); {
		case c < 0:
			t = t.left
		case c > 0:
			t = t.right
		default:
			return t.value, true
		}
	}
	var zero V
	return zero, false
}

// all calls yield for each entry in the order of the keys until it returns false, and returns
// whether it always returned true.
func (t *tree[V]) all(yield func(string, V) bool) bool {
	return t == nil || t.left.all(yield) && yield(t.key, t.value) && t.right.all(yield)
}

func (t *tree[V]) set(key string, value V) *tree[V] {
	left, _, right := t.split(key)
	h := fnv.New64a()
	h.Write([]byte(key)) // never fails
	n := &tree[V]{key: key, priority: h.Sum64(), value: value}
	return join(join(left, n.sized()), right)
}

func (t *tree[V]) remove(key string) *tree[V] {
	left, found, right := t.split(key)
	if !found {
		return t
	}
	return join(left, right)
}

// split returns the entries before and after the key, and whether the key was there.
func (t *tree[V]) split(key string) (left *tree[V], found bool, right *tree[V]) {
	if t == nil {
		return nil, false, nil
	}
	n := *t
	switch c := strings.Compare(key, t.key); {
	case c < 0:
		left, found, n.left = t.left.split(key)
		return left, found, n.sized()
	case c > 0:
		n.right, found, right = t.right.split(key)
		return n.sized(), found, right
	}
	return t.left, true, t.right
}

// join returns the entries of both; all keys of left come before those of right.
func join[V any](left, right *tree[V]) *tree[V] {
	switch {
	case left == nil:
		return right
	case right == nil:
		return left
	case left.priority >= right.priority:
		n := *left
		n.right = join(left.right, right)
		return n.sized()
	}
	n := *right
	n.left = join(left, right.left)
	return n.sized()
}

func (t *tree[V]) sized() *tree[V] {
	t.size = 1 + t.left.len() + t.right.len()
	return t
}
