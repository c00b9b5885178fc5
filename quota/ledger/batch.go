package ledger

import "time"

const (
	// smallBatch is how many requests one write admits while nobody waits for long.
	//
	// A batch is answered all at once, and its connections are idle then. An API server keeps 25
	// idle ones to a webhook and closes the rest, so that a larger batch is paid for by a TLS
	// handshake for nearly every request of the next one: far more than the writes it saves.
	// Source: k8s.io/client-go/transport/cache.go, idleConnsPerHost (v1.37).
	smallBatch = 32
	// longWait is how long a request may have been waiting for its batch to stay small.
	longWait = time.Second
)

// batchSize returns how many of the queue's requests the next write takes. The queue is in the
// order of arrival.
func (a *account) batchSize(queue []*entry) int {
	limit := a.l.o.MaxBatch
	if len(queue) > 0 && a.l.o.Clock.Since(queue[0].arrived) < longWait {
		limit = min(limit, smallBatch)
	}
	return min(len(queue), limit)
}
