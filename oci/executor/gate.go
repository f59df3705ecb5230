package executor

import (
	"sync"
	"time"
)

// A gate lets an upgrade wait until every goroutine is at rest. Work that takes something out of
// the kernel (bytes from a pipe, an exit status) and stores it elsewhere happens inside; waiting
// happens outside. So while the gate is shut, all state is in the kernel or in the Executor's
// tables.
//
// A failure inside is also rolled back inside: outside nothing is half done.
//
// No goroutine inside may wait for one that has yet to enter.
//
// Work that may take long (a start, a dump) calls begin and end instead: close waits for it
// before it shuts the gate, so that it delays no container's output.
type gate struct {
	mu      sync.Mutex
	in      int           // guarded by mu
	long    int           // guarded by mu
	closing chan struct{} // not nil from close to open, which closes it; guarded by mu
	shut    bool          // guarded by mu
	idle    chan struct{} // not nil while close waits, closed when it may go on; guarded by mu
}

// begin is enter for work that may take long. It blocks as soon as close has been called.
func (g *gate) begin() {
	g.mu.Lock()
	for g.closing != nil {
		g.await(g.closing)
	}
	g.long++
	g.mu.Unlock()
}

func (g *gate) end() {
	g.mu.Lock()
	g.long--
	g.wake(g.long)
	g.mu.Unlock()
}

// await waits for a channel with the lock released.
func (g *gate) await(c chan struct{}) {
	g.mu.Unlock()
	<-c
	g.mu.Lock()
}

// wake lets close continue if none are left of those that it waits for.
func (g *gate) wake(left int) {
	if left == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// enter waits while the gate is shut.
func (g *gate) enter() {
	g.mu.Lock()
	for g.shut {
		g.await(g.closing)
	}
	g.in++
	g.mu.Unlock()
}

func (g *gate) leave() {
	g.mu.Lock()
	g.in--
	if g.shut {
		g.wake(g.in)
	}
	g.mu.Unlock()
}

// close waits until no long work is under way, shuts the gate and waits until no goroutine is
// inside. If either takes longer than its patience it gives up and returns false, with the gate
// open again.
func (g *gate) close(long, short time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing != nil {
		return false // another goroutine closes it
	}
	g.closing = make(chan struct{})
	if !g.drained(&g.long, long) {
		g.reopen()
		return false
	}
	g.shut = true
	if !g.drained(&g.in, short) {
		g.reopen()
		return false
	}
	return true
}

// drained waits until *n is 0. The caller holds mu.
func (g *gate) drained(n *int, patience time.Duration) bool {
	if *n == 0 {
		return true
	}
	idle := make(chan struct{})
	g.idle = idle
	g.mu.Unlock()
	defer g.mu.Lock()
	select {
	case <-idle:
		return true
	case <-time.After(patience):
		return false
	}
}

func (g *gate) open() {
	g.mu.Lock()
	g.reopen()
	g.mu.Unlock()
}

// reopen is open with mu held.
func (g *gate) reopen() {
	close(g.closing)
	g.closing, g.shut, g.idle = nil, false, nil
}
