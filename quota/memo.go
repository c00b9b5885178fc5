package quota

import (
	"bytes"
	"crypto/sha256"
	"sync"
)

// memo remembers the results of a function by key, up to a limit; then it forgets all of
// them. Two callers that ask for the same key at the same time compute it once. Long keys, which
// tenants may write, are kept as their hashes. Safe for concurrent use.
type memo[T any] struct {
	limit int

	mu      sync.RWMutex // protects following
	entries map[string]*entry[T]
}

// maxKey is the longest key that is kept as it is, in bytes; hashed begins what stands for a
// longer one, and no other key: they begin with a small number or with a name.
const (
	maxKey = 1024
	hashed = 0xff
)

type entry[T any] struct {
	once  sync.Once
	value T
}

// get returns the remembered result for the key, or that of compute.
func (m *memo[T]) get(key []byte, compute func() T) T {
	if len(key) > maxKey {
		sum := sha256.Sum256(bytes.Clone(key)) // the copy lets short keys stay on the caller's stack
		key = append([]byte{hashed}, sum[:]...)
	}
	e := m.entry(key)
	e.once.Do(func() { e.value = compute() })
	return e.value
}

func (m *memo[T]) entry(key []byte) *entry[T] {
	m.mu.RLock()
	e := m.entries[string(key)]
	m.mu.RUnlock()
	if e != nil {
		return e
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e = m.entries[string(key)]; e != nil {
		return e
	}
	if m.entries == nil || len(m.entries) >= m.limit {
		m.entries = map[string]*entry[T]{}
	}
	e = &entry[T]{}
	m.entries[string(key)] = e
	return e
}
