package executor

import (
	"maps"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/oci/wire"
)

// A subscribers is the set of clients that subscribed to events.
type subscribers struct {
	mu  sync.Mutex
	all map[*wire.Conn]struct{} // guarded by mu
}

// publish sends an event to all subscribers.
func (s *subscribers) publish(e wire.Event) {
	s.mu.Lock()
	to := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	for _, c := range to {
		c.Emit(e)
	}
}

// add subscribes c until its connection ends.
func (s *subscribers) add(c *wire.Conn) {
	s.mu.Lock()
	if s.all == nil {
		s.all = make(map[*wire.Conn]struct{})
	}
	s.all[c] = struct{}{}
	s.mu.Unlock()
	go func() {
		<-c.Done()
		s.mu.Lock()
		delete(s.all, c)
		s.mu.Unlock()
	}()
}
