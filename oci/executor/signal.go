package executor

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// signal is "signal", see wire.SignalRequest.
func (x *Executor) signal(req wire.SignalRequest) error {
	x.mu.Lock()
	c, ok := x.containers[req.ID]
	ready := ok && c.phase != starting
	over := ok && c.phase >= ended
	sig := unix.Signal(req.Signal)
	if ok && !ready && sig == unix.SIGKILL && c.giveUp != nil {
		c.toKill = true
		c.giveUp(errKilled)
		x.mu.Unlock()
		return nil
	}
	x.mu.Unlock()
	switch {
	case !ok:
		return fault.NotFound.Errorf("no container %q", req.ID)
	case !ready:
		return fault.WrongState.Errorf("container %s is starting", req.ID)
	case req.All:
		err := signalAll(c.ref.Cgroups, sig)
		if sig == unix.SIGKILL && !over {
			// It may have been moved to another cgroup. With it goes its PID namespace.
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
		freeze(c.ref.Cgroups, false) // in v1, what is frozen does not die
	}
	return nil
}
