package executor

import "github.com/crisp-cri/crisp/internal/fault"

// Leaving is decided under table.mu, which also guards every container's place in the table
// (reserve): an accepted container keeps the executor running, and after the decision none is
// accepted. Clients see their connections end (wire.Serve) and connect to the next executor,
// which cannot begin before this process has exited: it holds the lock.

// errLeaving is the error of calls that come after the decision. Its kind is that of a lost
// connection: in both cases nothing was done.
var errLeaving = fault.Unavailable.Errorf("executor is about to end")

// Close ends the executor if it has no containers; otherwise the error is fault.WrongState,
// as they would lose their stdio and their exit codes.
func (x *Executor) Close() error {
	return x.leave(func(containers map[string]*container) error {
		if n := len(containers); n > 0 {
			return fault.WrongState.Errorf("executor has %d containers", n)
		}
		return nil
	})
}

// CloseIdle is Close for a shutdown of the machine: only live containers prevent it, and execs
// whose code was not reported. The exits of other containers are on disk.
func (x *Executor) CloseIdle() error {
	execs := x.execs.count()
	return x.leave(func(containers map[string]*container) error {
		for id, c := range containers {
			if c.phase == starting || c.phase == running {
				return fault.WrongState.Errorf("container %s is alive", id)
			}
		}
		if execs > 0 { // they end with their container, or their client
			return fault.WrongState.Errorf("executor has %d execs", execs)
		}
		return nil
	})
}

// leave makes Serve return if may, called with table.mu held, returns nil.
func (x *Executor) leave(may func(map[string]*container) error) error {
	if err := x.table.leave(may); err != nil {
		return err
	}
	x.kept.listener.Close() // removes the socket
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

// left reports whether the executor is about to exit. With mu held that cannot change.
func (t *table) left() bool {
	select {
	case <-t.quit:
		return true
	default:
		return false
	}
}

// unlessLeft calls f, unless the executor is about to exit, which cannot be decided meanwhile.
func (t *table) unlessLeft(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left() {
		return errLeaving
	}
	return f()
}
