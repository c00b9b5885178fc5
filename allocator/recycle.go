package allocator

// recycled hands out values that are used again once all are given back. What they hold has to
// be reset by whoever takes them; slices in them can keep their memory.
type recycled[T any] struct {
	list []*T
	used int
}

func (r *recycled[T]) next() *T {
	if r.used == len(r.list) {
		r.list = append(r.list, new(T))
	}
	r.used++
	return r.list[r.used-1]
}

// giveBack makes all values available again.
func (r *recycled[T]) giveBack() { r.used = 0 }

// resized returns the slice with n elements. Elements that it had before, also beyond its
// length, stay; new ones are zero.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		s = append(s[:cap(s)], make([]T, n-cap(s))...)
	}
	return s[:n]
}

// cleared returns the slice with n zero elements.
func cleared[T any](s []T, n int) []T {
	s = resized(s, n)
	clear(s)
	return s
}
