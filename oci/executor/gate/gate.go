// Package gate lets an upgrade of the executor wait until all its work is at rest, and keeps work
// that panics from ending it.
package gate

import (
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// A Gate lets an upgrade wait until every goroutine is at rest. Work that takes something out of
// the kernel (bytes from a pipe, an exit status) and stores it elsewhere happens inside; waiting
// happens outside. So while the gate is shut, all state is in the kernel or in the Executor's
// tables.
//
// Roll a failure back before you leave the gate: no half-done work exists outside it.
//
// No goroutine inside may wait for one that has yet to enter.
//
// Work that may take long (a start, a dump) calls begin and end instead: close waits for it
// before it shuts the gate, so that it delays no container's output.
type Gate struct {
	mu      sync.Mutex
	in      int           // guarded by mu
	long    int           // guarded by mu
	closing chan struct{} // not nil from close to open, which closes it; guarded by mu
	shut    bool          // guarded by mu
	idle    chan struct{} // not nil while close waits, closed when it may go on; guarded by mu
}

// Begin is enter for work that may take long. It blocks as soon as close has been called.
func (g *Gate) Begin() {
	g.mu.Lock()
	for g.closing != nil {
		g.await(g.closing)
	}
	g.long++
	g.mu.Unlock()
}

func (g *Gate) End() {
	g.mu.Lock()
	g.long--
	g.wake(g.long)
	g.mu.Unlock()
}

// await waits for a channel with the lock released.
func (g *Gate) await(c chan struct{}) {
	g.mu.Unlock()
	<-c
	g.mu.Lock()
}

// wake lets close continue if none are left of those that it waits for.
func (g *Gate) wake(left int) {
	if left == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Enter waits while the gate is shut.
func (g *Gate) Enter() {
	g.mu.Lock()
	for g.shut {
		g.await(g.closing)
	}
	g.in++
	g.mu.Unlock()
}

func (g *Gate) Leave() {
	g.mu.Lock()
	g.in--
	if g.shut {
		g.wake(g.in)
	}
	g.mu.Unlock()
}

// Close waits until no long work is under way, shuts the gate and waits until no goroutine is
// inside. If either takes longer than its patience it gives up and returns false, with the gate
// open again.
func (g *Gate) Close(long, short time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing != nil {
		return false // another goroutine closes it
	}
	g.closing = make(chan struct{})
	if g.drained(&g.long, long) {
		g.shut = true
		if g.drained(&g.in, short) {
			return true
		}
	}
	g.reopen()
	return false
}

// State returns how much work is inside, how much of it may take long, and whether the gate is shut.
func (g *Gate) State() (inside, long int, shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.in, g.long, g.shut
}

// drained waits until *n is 0. The caller holds mu.
func (g *Gate) drained(n *int, patience time.Duration) bool {
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

func (g *Gate) Open() {
	g.mu.Lock()
	g.reopen()
	g.mu.Unlock()
}

// reopen is open with mu held.
func (g *Gate) reopen() {
	close(g.closing)
	g.closing, g.shut, g.idle = nil, false, nil
}

// Retries bounds how often one container's goroutine is restarted.
const Retries = 10

// Retry calls f, and again when it panics, up to Retries times: a container's output, or its
// exit, must not end the parent of all the others. The work in progress is lost; f must release
// its locks and leave the gate by defer. Retry reports whether f finally returned.
func Retry(log *slog.Logger, what, container string, f func()) bool {
	for range Retries {
		if Recover(log, what, container, f) {
			return true
		}
	}
	return false
}

// Recover calls f, logs its panic, and reports whether it returned without one.
func Recover(log *slog.Logger, what, container string, f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("work for a container panicked", "work", what, "container", container, "err", p, "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}
