package allocator

import (
	"fmt"
	"strings"
	"testing"
)

func TestWhatTenantsMakeItRememberIsBounded(t *testing.T) {
	t.Run("results of selectors that read what only one device has", func(t *testing.T) {
		e := newEngine()
		p := e.selector("true")
		values := strings.Repeat("x", 1<<20)
		most := int64(0)
		for i := range 200 {
			e.remember(resultKey{p, fmt.Sprint(i, values)}, outcomeTrue)
			most = max(most, e.results.Load().size.Load())
		}
		if most > maxResults {
			t.Errorf("%d bytes of results were kept, at most %d may be", most, maxResults)
		}
		stored := int64(0)
		e.results.Load().of.Range(func(key, _ any) bool {
			stored += int64(len(key.(resultKey).values))
			return true
		})
		if stored == 0 || stored > maxResults {
			t.Errorf("%d bytes of results are stored", stored)
		}
	})
	t.Run("long expressions", func(t *testing.T) {
		e := newEngine()
		long := strings.Repeat(" ", 10<<10) // as long as a selector may be
		for i := range 2 * maxExpressions / len(long) {
			e.remember(resultKey{e.selector(fmt.Sprintf("%d == 0%s", i, long)), ""}, outcomeFalse)
			e.results.Load().of.Range(func(key, _ any) bool {
				if p := key.(resultKey).program; e.programs[p.key] != p {
					t.Errorf("a result keeps the forgotten program %.10q", p.key.expression)
				}
				return true
			})
			length := 0
			for key := range e.programs {
				length += len(key.expression)
			}
			if length > maxExpressions || length != e.length {
				t.Fatalf("expressions of %d bytes were kept, %d by its own count, at most %d may be", length, e.length, maxExpressions)
			}
		}
	})
}
