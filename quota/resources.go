package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Lists of exact amounts. Quantities beyond int64 hold a pointer and change in place: every
// function here copies before it computes, and returns lists that share nothing with its
// arguments. A key that is missing means 0.

// Copy returns a list that shares nothing with a; never nil.
func Copy(a corev1.ResourceList) corev1.ResourceList {
	out := make(corev1.ResourceList, len(a))
	for k, q := range a {
		out[k] = q.DeepCopy()
	}
	return out
}

// Add returns a + b.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	out := Copy(a)
	AddTo(out, b)
	return out
}

// AddTo adds b to sum in place. sum must not share quantities with other lists, as is true
// for the lists that this package returns.
func AddTo(sum, b corev1.ResourceList) {
	for k, q := range b {
		s, ok := sum[k]
		if !ok {
			sum[k] = q.DeepCopy()
			continue
		}
		s.Add(q.DeepCopy())
		sum[k] = s
	}
}

// Sub returns a - b, which may be negative.
func Sub(a, b corev1.ResourceList) corev1.ResourceList {
	out := Copy(a)
	for k, q := range b {
		s := out[k]
		s.Sub(q.DeepCopy())
		out[k] = s
	}
	return out
}

// Excess returns the amounts by which a exceeds b; keys where it does not are omitted.
func Excess(a, b corev1.ResourceList) corev1.ResourceList {
	out := make(corev1.ResourceList, len(a))
	for k, q := range a {
		d := q.DeepCopy()
		if s, ok := b[k]; ok {
			d.Sub(s.DeepCopy())
		}
		if d.Sign() > 0 {
			out[k] = d
		}
	}
	return out
}

// Max returns the larger amount per key.
func Max(a, b corev1.ResourceList) corev1.ResourceList {
	out := Copy(a)
	for k, q := range b {
		if s, ok := out[k]; !ok || s.Cmp(q) < 0 {
			out[k] = q.DeepCopy()
		}
	}
	return out
}

// Only returns the amounts of the given keys, with 0 for those that a lacks.
func Only(a corev1.ResourceList, keys []corev1.ResourceName) corev1.ResourceList {
	out := make(corev1.ResourceList, len(keys))
	for _, k := range keys {
		q, ok := a[k]
		if !ok {
			q = *resource.NewQuantity(0, resource.DecimalSI)
		}
		out[k] = q.DeepCopy()
	}
	return out
}

// Positive returns the amounts above 0.
func Positive(a corev1.ResourceList) corev1.ResourceList {
	return Excess(a, nil)
}

// Exceeding returns the keys of hard that sum exceeds, sorted.
func Exceeding(sum, hard corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for k, limit := range hard {
		if q, ok := sum[k]; ok && q.Cmp(limit) > 0 {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Equal returns true if a and b hold the same amounts.
func Equal(a, b corev1.ResourceList) bool {
	return covers(a, b) && covers(b, a)
}

// covers returns true if b has the same amount for each key of a.
func covers(a, b corev1.ResourceList) bool {
	for k, q := range a {
		s := b[k]
		if q.Cmp(s) != 0 {
			return false
		}
	}
	return true
}

// SortedKeys returns the keys of a, sorted.
func SortedKeys(a corev1.ResourceList) []corev1.ResourceName {
	out := make([]corev1.ResourceName, 0, len(a))
	for k := range a {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Format returns "k=v,k=v" sorted by key, as upstream's quota messages print it.
// Source: prettyPrint in k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go (v0.37).
func Format(a corev1.ResourceList) string {
	var b strings.Builder
	for i, k := range SortedKeys(a) {
		if i > 0 {
			b.WriteByte(',')
		}
		q := a[k]
		b.WriteString(string(k))
		b.WriteByte('=')
		b.WriteString(q.String())
	}
	return b.String()
}

// times returns q × n exactly; amounts and factors below 0 count as 0.
func times(q resource.Quantity, n int64) resource.Quantity {
	if q.Sign() <= 0 || n <= 0 {
		return *resource.NewQuantity(0, q.Format)
	}
	out := q.DeepCopy()
	// The result of Mul tells whether it fits an int64; beyond that the product is exact all the same.
	out.Mul(n)
	return out
}

func quantity(n int64) resource.Quantity {
	return *resource.NewQuantity(n, resource.DecimalSI)
}
