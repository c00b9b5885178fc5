package cluster

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// projectionKey is one projection: a quota in a namespace, or the quota's own status when the
// namespace is empty.
type projectionKey struct{ quota, namespace string }

// place is a key's place in the queue.
type place struct {
	key    projectionKey
	urgent bool
	since  time.Time
}

// projectionQueue keeps what waits to be written, each once: what is urgent and the rest, each
// in the order it came. Its methods need the lock of its owner, but for wait.
type projectionQueue struct {
	clock        clock.PassiveClock
	urgent, rest []place
	// queued are the places that count. A key that became urgent has left one in the other list,
	// which does not.
	queued map[projectionKey]place
	// due are keys that wait for a time.
	due map[projectionKey]time.Time
	// taken are keys that are being written; again those that were queued meanwhile.
	taken map[projectionKey]bool
	again map[projectionKey]bool // key -> urgent

	wake chan struct{}
}

func (q *projectionQueue) init(c clock.PassiveClock) {
	q.clock = c
	q.queued, q.due, q.wake = map[projectionKey]place{}, map[projectionKey]time.Time{}, make(chan struct{}, 1)
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
	if waits && (was.urgent || !urgent) {
		return
	}
	at := place{key, urgent, q.clock.Now()}
	list := q.list(urgent)
	*list = append(*list, at)
	q.queued[key] = at
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

// promote queues what waited for a time that has come.
func (q *projectionQueue) promote() {
	for key, at := range q.due {
		if !at.After(q.clock.Now()) {
			delete(q.due, key)
			q.add(key, true)
		}
	}
}

// waits tells whether anything urgent, or anything else, waits now.
func (q *projectionQueue) waits(urgent bool) bool {
	_, waits := q.first(urgent)
	return waits
}

// first returns since when the first of what is urgent, or of the rest, waits.
func (q *projectionQueue) first(urgent bool) (since time.Time, waits bool) {
	list := q.list(urgent)
	for len(*list) > 0 {
		if at := (*list)[0]; q.queued[at.key] == at {
			return at.since, true
		}
		*list = (*list)[1:] // it had its turn in the other list
	}
	return time.Time{}, false
}

func (q *projectionQueue) list(urgent bool) *[]place {
	if urgent {
		return &q.urgent
	}
	return &q.rest
}

// take takes the first urgent key out, or the first other one, until done. Something of that
// kind has to wait.
func (q *projectionQueue) take(urgent bool) projectionKey {
	list := q.list(urgent)
	key := (*list)[0].key
	*list = (*list)[1:]
	delete(q.queued, key)
	q.taken[key] = true
	return key
}

// wait returns true when there may be something to do, at the latest after d, false when ctx ended.
func (q *projectionQueue) wait(ctx context.Context, c clock.WithTicker, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-q.wake:
		return true
	case <-timer.C():
		return true
	}
}
