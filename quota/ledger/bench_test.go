package ledger

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPlan decides a batch over a ledger with many holds: what one write costs the CPU
// apart from the write.
func BenchmarkPlan(b *testing.B) {
	for _, size := range []struct{ holds, batch int }{{20, 1}, {100, 20}, {300, 100}} {
		b.Run(fmt.Sprintf("holds=%d/batch=%d", size.holds, size.batch), func(b *testing.B) {
			w := newWorld(Options{}, 1, 1, 1, 1e6)
			w.free, w.current = true, true
			w.seed(0)
			a := w.replicas[0].ledger.account("q0")
			base := w.ledgers["q0"].DeepCopy()
			entries := func(from, n int) []*entry {
				out := make([]*entry, n)
				for i := range out {
					r := w.claim(from+i, "ns0", fmt.Sprint(from+i), 1)
					x := &admission{l: a.l, r: r}
					c := &cover{quota: w.quota(0).q}
					c.charge.Amounts = amounts(c.quota, 1)
					out[i] = x.entry(b.Context(), c)
					out[i].arrived = time.Now()
				}
				return out
			}
			p := a.newPlan(base, entries(0, size.holds))
			base = p.next
			batch := entries(size.holds, size.batch)
			b.ResetTimer()
			for b.Loop() {
				p = a.newPlan(base, batch)
			}
			if len(p.added) != size.batch {
				b.Fatalf("want %d added, got %d", size.batch, len(p.added))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size.batch), "µs/admission")

		})
	}
}
