// Package notify is a bounded broadcast: every value reaches every subscriber, in the same
// order, and the publisher never blocks.
//
// Each subscriber has its own queue. A subscriber whose queue is full is dropped, which Err
// reports: a stream with an unnoticed gap would be worse than one that ends, because its reader
// can start over from a full list.
package notify

import (
	"sync"
	"sync/atomic"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Hub sends values to its subscribers. The zero Hub has none and is ready for
// use. Its methods may be called from any goroutine.
type Hub[T any] struct {
	dropped atomic.Uint64

	mu   sync.Mutex
	subs map[*Subscription[T]]struct{} // guarded by mu
}

// A Subscription is one subscriber's queue.
type Subscription[T any] struct {
	hub *Hub[T]
	c   chan T
	err error // written before c is closed
}

// Subscribe returns a subscription that holds up to n unread values. The caller must Close it.
func (h *Hub[T]) Subscribe(n int) *Subscription[T] {
	s := &Subscription[T]{hub: h, c: make(chan T, n)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = make(map[*Subscription[T]]struct{})
	}
	h.subs[s] = struct{}{}
	return s
}

// Publish queues v for every subscriber.
func (h *Hub[T]) Publish(v T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		select {
		case s.c <- v:
		default:
			h.dropped.Add(1)
			h.endLocked(s, fault.Unavailable.Errorf("subscriber is too slow: %d values are waiting", len(s.c)))
		}
	}
}

// HasSubscribers reports whether there is a subscriber; without one, expensive values need not
// be created.
func (h *Hub[T]) HasSubscribers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs) > 0
}

// Dropped returns the number of subscribers dropped for being too slow.
func (h *Hub[T]) Dropped() uint64 { return h.dropped.Load() }

// endLocked removes s from the hub; h.mu is held.
func (h *Hub[T]) endLocked(s *Subscription[T], err error) {
	if _, ok := h.subs[s]; !ok {
		return
	}
	delete(h.subs, s)
	s.err = err
	close(s.c)
}

// C returns the channel of the values. It is closed, after those queued, when the subscription
// ends.
func (s *Subscription[T]) C() <-chan T { return s.c }

// Err returns why C was closed: nil after Close, fault.Unavailable if the subscriber was too
// slow. It must not be called before C is closed.
func (s *Subscription[T]) Err() error { return s.err }

// Close ends the subscription. Closing it twice is no error.
func (s *Subscription[T]) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.endLocked(s, nil)
}
