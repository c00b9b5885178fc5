package quota

import (
	"bytes"
	"testing"
)

func TestLongKeysAreToldApartAndNotKept(t *testing.T) {
	t.Parallel()
	m := &memo[int]{limit: 10}
	computed := 0
	get := func(key []byte) int { return m.get(key, func() int { computed++; return computed }) }
	a, b := bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("a"), 100_001)
	if got := []int{get(a), get(b), get(a), get(a[:maxKey]), get(a[:maxKey])}; got[0] != got[2] || got[0] == got[1] || got[3] != got[4] || computed != 3 {
		t.Errorf("got %v, computed %d times", got, computed)
	}
	for key := range m.entries {
		if len(key) > maxKey {
			t.Errorf("a key of %d bytes is kept", len(key))
		}
	}
}
