package cluster

import (
	"context"
	"time"
)

// projectionKey is one projection: a quota in a namespace, or the quota's own status when the
// namespace is empty.
type projectionKey struct{ quota, namespace string }

// projectionQueue keeps what waits to be written, each once: first what is urgent, in the
// order it came, then the rest. Its methods need the lock of its owner, but for wait.
type projectionQueue struct {
	urgent, rest []projectionKey
	// queued tells for what waits whether it is urgent. A key that became urgent is in both
	// lists; its second turn finds nothing queued.
	queued map[projectionKey]bool
	// due are keys that wait for a time.
	due map[projectionKey]time.Time
	// taken are keys that are being written; again those that were queued meanwhile.
	taken map[projectionKey]bool
	again map[projectionKey]bool // key -> urgent

	wake chan struct{}
}

func (q *projectionQueue) init() {
	q.queued, q.due, q.wake = map[projectionKey]bool{}, map[projectionKey]time.Time{}, make(chan struct{}, 1)
	q.taken, q.again = map[projectionKey]bool{}, map[projectionKey]bool{}
}

func (q *projectionQueue) len() int { return len(q.queued) + len(q.due) + len(q.taken) }

// add queues the key unless it waits already at least as urgently.
func (q *projectionQueue) add(key projectionKey, urgent bool) {
	if q.taken[key] {
		q.again[key] = q.again[key] || urgent
		return
	}
	was, waits := q.queued[key]
	switch {
	case urgent && !(waits && was):
		q.urgent = append(q.urgent, key)
	case !urgent && !waits:
		q.rest = append(q.rest, key)
	default:
		return
	}
	q.queued[key] = urgent
	q.signal()
}

// later queues the key at the given time.
func (q *projectionQueue) later(key projectionKey, at time.Time) {
	if old, ok := q.due[key]; !ok || at.Before(old) {
		q.due[key] = at
	}
	q.signal()
}

func (q *projectionQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// done lets a taken key be queued again.
func (q *projectionQueue) done(key projectionKey) {
	delete(q.taken, key)
	if urgent, again := q.again[key]; again {
		delete(q.again, key)
		q.add(key, urgent)
	}
}

// next takes the next key out, until done.
func (q *projectionQueue) next(now time.Time) (projectionKey, bool) {
	for key, at := range q.due {
		if !at.After(now) {
			delete(q.due, key)
			q.add(key, true)
		}
	}
	for _, list := range []*[]projectionKey{&q.urgent, &q.rest} {
		for len(*list) > 0 {
			key := (*list)[0]
			*list = (*list)[1:]
			if _, waits := q.queued[key]; waits {
				delete(q.queued, key)
				q.taken[key] = true
				return key, true
			}
		}
	}
	return projectionKey{}, false
}

// wait returns true when there may be something to do, false when ctx ended. It wakes up by
// itself for keys that wait for a time.
func (q *projectionQueue) wait(ctx context.Context) bool {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-q.wake:
		return true
	case <-timer.C:
		return true
	}
}
