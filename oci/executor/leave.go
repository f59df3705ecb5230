package executor

import "github.com/crisp-cri/crisp/internal/fault"

// Leaving is decided under Executor.mu, as is every container's place in the table
// (reserve): a container that was accepted keeps the executor, and from the decision
// on none is accepted. Clients see their connections end (wire.Serve) and go to the
// next executor, which cannot begin before this process has ended: it holds the lock.

// errLeaving is what is said to who comes after the decision. The kind is that of a
// connection lost, and as there nothing was done.
var errLeaving = fault.Unavailable.Errorf("executor is about to end")

// Close ends the executor if it has no containers, else it is fault.WrongState:
// they would lose their stdio, and their exit codes.
func (x *Executor) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.containers); n > 0 {
		return fault.WrongState.Errorf("executor has %d containers", n)
	}
	x.leave()
	return nil
}

// CloseIdle is Close for the end of the machine: only containers that are alive
// prevent it, and execs whose code was not told. How the others ended is on disk, for
// whoever wants to know.
func (x *Executor) CloseIdle() error {
	n := x.execs.count()
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, c := range x.containers {
		if c.phase == starting || c.phase == running {
			return fault.WrongState.Errorf("container %s is alive", id)
		}
	}
	if n > 0 { // which end with their container, or their client
		return fault.WrongState.Errorf("executor has %d execs", n)
	}
	x.leave()
	return nil
}

// leave has Serve return. The caller holds mu.
func (x *Executor) leave() {
	if x.left() {
		return
	}
	x.listener.Close() // removes the socket
	close(x.quit)
}

// left tells whether leave was called. With mu held it stays as it is.
func (x *Executor) left() bool {
	select {
	case <-x.quit:
		return true
	default:
		return false
	}
}
