package ledger

import (
	"context"
	"errors"
	"time"
)

// New returns a Ledger over a Store and a View.
func New(s Store, v View, o Options) *Ledger { return &Ledger{store: s, view: v, o: o} }

// Admit decides a request and, when it is allowed and no dry run, has written a hold into the
// ledger of every covering quota before it returns. Contention and overload are Busy, also
// when ctx's deadline comes near; the error is an outage, or that ctx was cancelled, or that
// the charge cannot be computed (then it is the error that Request.Charge returned).
func (l *Ledger) Admit(ctx context.Context, r Request) (Decision, error) {
	return Decision{}, errors.ErrUnsupported
}

// Check decides a request from what this replica knows and writes nothing. Denied means that
// it can never fit: its charge alone exceeds hard (after a live read of the quota), or is
// unknown. What does not fit now is in NotNow. It never waits and is never Busy.
func (l *Ledger) Check(ctx context.Context, r Request) (Decision, error) {
	return Decision{}, errors.ErrUnsupported
}

// Settle recounts the quota's ledger, creating it if it is missing, and writes it if anything
// changed: from the caches, or live when holds must age or the caches may not settle.
// conditions may be nil: the ledger keeps its own. The error is an outage or contention; try again.
func (l *Ledger) Settle(ctx context.Context, name string, conditions Conditions) (Settled, error) {
	return Settled{}, errors.ErrUnsupported
}

// Remove deletes the ledger of a quota that is gone, once its holds have ended. done is true
// when there is no such ledger anymore; false when holds remain or the quota is back: then
// again is when to ask again, 0 for never (the quota is back).
func (l *Ledger) Remove(ctx context.Context, name string) (done bool, again time.Duration, err error) {
	return false, 0, errors.ErrUnsupported
}
