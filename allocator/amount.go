package allocator

import (
	"cmp"
	"math/big"
	"math/bits"

	"k8s.io/apimachinery/pkg/api/resource"
)

// amount is a quantity as a 128 bit number of nano units, so that sums and comparisons are
// exact and cheap: the API keeps quantities within ±2^63 at a precision of 1n, which are 93
// bits. Anything beyond, which no API server stores, is cut to ±2^100 so that no sum can wrap.
type amount struct {
	hi int64
	lo uint64
}

const (
	nanoDigits = 9
	// amountBits bounds the magnitude of a converted quantity.
	amountBits = 100
)

// amountOf converts the quantity. Less than 1n counts as 1n (away from zero).
func amountOf(q resource.Quantity) amount {
	if v, ok := q.AsInt64(); ok {
		return nanos(v)
	}
	d := q.AsDec() // q is a copy
	return amountOfDec(d.UnscaledBig(), int64(d.Scale()))
}

// nanos returns v units.
func nanos(v int64) amount {
	u := uint64(v)
	if v < 0 {
		u = -u
	}
	hi, lo := bits.Mul64(u, 1_000_000_000)
	a := amount{hi: int64(hi), lo: lo}
	if v < 0 {
		return amount{}.sub(a)
	}
	return a
}

// amountOfDec converts unscaled / 10^scale.
func amountOfDec(unscaled *big.Int, scale int64) amount {
	const maxShift = 60 // 10^60 is far beyond amountBits
	shift := nanoDigits - scale
	switch {
	case unscaled.Sign() == 0:
		return amount{}
	case shift > maxShift:
		return bound(unscaled.Sign())
	case shift < -int64(unscaled.BitLen())-1:
		return amount{hi: int64(min(unscaled.Sign(), 0)), lo: uint64(int64(unscaled.Sign()))}
	}
	n := new(big.Int).Abs(unscaled)
	factor := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(shift, -shift)), nil)
	if shift >= 0 {
		n.Mul(n, factor)
	} else if rest := new(big.Int); true {
		if n.QuoRem(n, factor, rest); rest.Sign() != 0 {
			n.Add(n, big.NewInt(1))
		}
	}
	if n.BitLen() > amountBits {
		return bound(unscaled.Sign())
	}
	lo := new(big.Int).And(n, new(big.Int).SetUint64(^uint64(0))).Uint64()
	a := amount{hi: n.Rsh(n, 64).Int64(), lo: lo}
	if unscaled.Sign() < 0 {
		return amount{}.sub(a)
	}
	return a
}

// bound is the largest amount that a quantity is converted to, with the sign.
func bound(sign int) amount {
	a := amount{hi: 1 << (amountBits - 64)}
	if sign < 0 {
		return amount{}.sub(a)
	}
	return a
}

func (a amount) add(b amount) amount {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	return amount{hi: a.hi + b.hi + int64(carry), lo: lo}
}

func (a amount) sub(b amount) amount {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	return amount{hi: a.hi - b.hi - int64(borrow), lo: lo}
}

func (a amount) cmp(b amount) int {
	if a.hi != b.hi {
		return cmp.Compare(a.hi, b.hi)
	}
	return cmp.Compare(a.lo, b.lo)
}

func (a amount) sign() int { return a.cmp(amount{}) }

// quantity converts back, for messages.
func (a amount) quantity(format resource.Format) *resource.Quantity {
	negative := a.sign() < 0
	if negative {
		a = amount{}.sub(a)
	}
	n := new(big.Int).SetUint64(uint64(a.hi))
	n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(a.lo))
	if negative {
		n.Neg(n)
	}
	q := resource.NewQuantity(0, format)
	q.AsDec().SetUnscaledBig(n).SetScale(nanoDigits)
	parsed, err := resource.ParseQuantity(q.String())
	if err != nil {
		return q
	}
	return &parsed
}
