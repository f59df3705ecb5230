package executor

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// signal serves wire.SignalRequest.
func (x *Executor) signal(req wire.SignalRequest) error {
	sig := unix.Signal(req.Signal)
	c, over, err := x.table.toSignal(req.ID, sig)
	if c == nil {
		return err
	}
	switch {
	case req.All:
		err := signalAll(c.ref.Cgroups, sig)
		if sig == unix.SIGKILL && !over {
			// It may have been moved to another cgroup. Its PID namespace ends with it.
			err = errors.Join(err, c.proc.signal(sig))
		}
		return err
	case over:
		return nil
	}
	if err := c.proc.signal(sig); err != nil {
		return err
	}
	if sig == unix.SIGKILL {
		thawAll(c.ref.Cgroups)
	}
	return nil
}

// toSignal returns the container to signal, and whether it has ended. nil without an error means
// that it was starting and its start has been cancelled.
func (t *table) toSignal(id string, sig unix.Signal) (c *container, over bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.containers[id]
	switch {
	case !ok:
		return nil, false, fault.NotFound.Errorf("no container %q", id)
	case c.phase != starting:
		return c, c.phase >= ended, nil
	case sig == unix.SIGKILL && c.giveUp != nil:
		c.toKill = true
		c.giveUp(errKilled)
		return nil, false, nil
	}
	return nil, false, fault.WrongState.Errorf("container %s is starting", id)
}
