package executor

import (
	"sync"
	"time"
)

// A gate lets an upgrade wait until every goroutine is at rest. Work that takes
// something out of the kernel (bytes from a pipe, an exit status) and puts it
// somewhere else is done inside; waiting is done outside. So while the gate is
// shut, whatever there is to know is in the kernel or in the Executor's tables.
//
// What fails inside is undone inside, too: outside there is nothing that is half done.
//
// Nobody may wait, inside, for somebody who has yet to enter.
type gate struct {
	mu   sync.Mutex
	in   int           // guarded by mu
	shut chan struct{} // not nil while shut, closed when it opens; guarded by mu
	idle chan struct{} // not nil while shut waits, closed when in is 0; guarded by mu
}

// enter waits while the gate is shut.
func (g *gate) enter() {
	g.mu.Lock()
	for g.shut != nil {
		shut := g.shut
		g.mu.Unlock()
		<-shut
		g.mu.Lock()
	}
	g.in++
	g.mu.Unlock()
}

func (g *gate) leave() {
	g.mu.Lock()
	g.in--
	if g.in == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
	g.mu.Unlock()
}

// close shuts the gate and waits until nobody is inside. After patience it gives
// up, opens the gate and returns false.
func (g *gate) close(patience time.Duration) bool {
	g.mu.Lock()
	if g.shut != nil {
		g.mu.Unlock()
		return false // somebody else has shut it
	}
	g.shut = make(chan struct{})
	var idle chan struct{}
	if g.in > 0 {
		idle = make(chan struct{})
		g.idle = idle
	}
	g.mu.Unlock()
	if idle == nil {
		return true
	}
	select {
	case <-idle:
		return true
	case <-time.After(patience):
		g.open()
		return false
	}
}

func (g *gate) open() {
	g.mu.Lock()
	close(g.shut)
	g.shut, g.idle = nil, nil
	g.mu.Unlock()
}
