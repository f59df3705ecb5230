package executor

import "github.com/crisp-cri/crisp/internal/fault"

// Leaving is decided under table.mu, as is every container's place in the table
// (reserve): a container that was accepted keeps the executor, and from the decision
// on none is accepted. Clients see their connections end (wire.Serve) and go to the
// next executor, which cannot begin before this process has ended: it holds the lock.

// errLeaving is the error of calls that come after the decision. Its kind is that of a lost
// connection, and as with that nothing was done.
var errLeaving = fault.Unavailable.Errorf("executor is about to end")

// Close ends the executor if it has no containers, else it is fault.WrongState:
// they would lose their stdio, and their exit codes.
func (x *Executor) Close() error {
	return x.leave(func(containers map[string]*container) error {
		if n := len(containers); n > 0 {
			return fault.WrongState.Errorf("executor has %d containers", n)
		}
		return nil
	})
}

// CloseIdle is Close for the end of the machine: only containers that are alive
// prevent it, and execs whose code was not told. How the others ended is on disk, for
// whoever wants to know.
func (x *Executor) CloseIdle() error {
	execs := x.execs.count()
	return x.leave(func(containers map[string]*container) error {
		for id, c := range containers {
			if c.phase == starting || c.phase == running {
				return fault.WrongState.Errorf("container %s is alive", id)
			}
		}
		if execs > 0 { // which end with their container, or their client
			return fault.WrongState.Errorf("executor has %d execs", execs)
		}
		return nil
	})
}

// leave has Serve return, if may, called with table.mu held, returns nil.
func (x *Executor) leave(may func(map[string]*container) error) error {
	if err := x.table.leave(may); err != nil {
		return err
	}
	x.listener.Close() // removes the socket, once
	return nil
}

// leave decides that the executor ends, if may returns nil.
func (t *table) leave(may func(map[string]*container) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := may(t.containers); err != nil {
		return err
	}
	if !t.left() {
		close(t.quit)
	}
	return nil
}

// left tells whether the executor is to end. With mu held it stays as it is.
func (t *table) left() bool {
	select {
	case <-t.quit:
		return true
	default:
		return false
	}
}

// unlessLeft calls f, unless the executor is to end, which is not decided meanwhile.
func (t *table) unlessLeft(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left() {
		return errLeaving
	}
	return f()
}
