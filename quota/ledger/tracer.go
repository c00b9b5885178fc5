package ledger

import "context"

// Tracer follows the work that requests wait for together, for distributed traces. Calls of
// the Store and the View are not told: both are interfaces that may be wrapped. Safe for
// concurrent use.
type Tracer interface {
	// Commit: a batch begins to be committed to the quota's ledger. ctx has the values of the
	// first of waiting, the contexts of all who wait for the commit, of whom one may be a settle.
	// The returned context is that of the commit's calls of the Store. done is called once.
	Commit(ctx context.Context, quota string, waiting []context.Context) (_ context.Context, done func(Commit))
}

// Commit is what came of a commit.
type Commit struct {
	// Admitted is the number of holds that it wrote, 0 for a settle alone.
	Admitted int
	// Writes were tried, Conflicts of them, or of the reads before them, met a ledger that had changed.
	Writes, Conflicts int
	// Err is the outage that ended it, if one did.
	Err error
}

func contexts(batch []*entry) []context.Context {
	out := make([]context.Context, len(batch))
	for i, e := range batch {
		out[i] = e.ctx
	}
	return out
}
