package main

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"time"
)

func cores() int { return runtime.NumCPU() }

// cpu returns the CPU time of the process so far, garbage collection included.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err)) // cannot happen with these arguments
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// sample is what one operation costs.
type sample struct {
	cpu    time.Duration
	allocs float64
	bytes  float64
}

// leastCPU is how long a measurement takes at least, so that the clock's resolution does not matter.
const leastCPU = 40 * time.Millisecond

// once measures f, repeated until it is long enough; n is how often to begin with.
func once(f func(), n *int) sample {
	for {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := cpu()
		for range *n {
			f()
		}
		took := cpu() - start
		runtime.ReadMemStats(&after)
		if took >= leastCPU || *n >= 1<<20 {
			per := float64(*n)
			return sample{
				cpu:    time.Duration(float64(took) / per),
				allocs: float64(after.Mallocs-before.Mallocs) / per,
				bytes:  float64(after.TotalAlloc-before.TotalAlloc) / per,
			}
		}
		grow := 2.0
		if took > 0 {
			grow = min(100, 1.2*float64(leastCPU)/float64(took))
		}
		*n = int(float64(*n)*grow) + 1
	}
}

// compare measures both sides in turn and returns the median of each.
func compare(rounds int, upstream, ours func()) (sample, sample) {
	upstream() // compile expressions, fill memories
	ours()
	var a, b []sample
	na, nb := 1, 1
	for range rounds {
		a = append(a, once(upstream, &na))
		b = append(b, once(ours, &nb))
	}
	return median(a), median(b)
}

func median(s []sample) sample {
	slices.SortFunc(s, func(x, y sample) int { return int(x.cpu - y.cpu) })
	return s[len(s)/2]
}

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	}
}

func count(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.3gM", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.3gk", n/1e3)
	default:
		return fmt.Sprintf("%.0f", n)
	}
}
