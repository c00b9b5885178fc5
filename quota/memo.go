package quota

import "sync"

// memo remembers the results of a function by key, up to a limit; then it forgets all of
// them. Two callers that ask for the same key at the same time compute it once. Safe for
// concurrent use.
type memo[T any] struct {
	limit int

	mu      sync.RWMutex // protects following
	entries map[string]*entry[T]
}

type entry[T any] struct {
	once  sync.Once
	value T
}

// get returns the remembered result for the key, or that of compute.
func (m *memo[T]) get(key []byte, compute func() T) T {
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
