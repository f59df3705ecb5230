package executor

import (
	"github.com/opencontainers/runc/libcontainer"

	"github.com/crisp-cri/crisp/internal/fault"
)

// delete is "delete": it removes the cgroup and libcontainer's state of a
// container that has ended, after killing what it left. A container that is not
// known is no error, but what a crash left of it is removed too.
//
// fault.Unavailable: some process does not die yet; try again.
func (x *Executor) delete(id string) error {
	x.gate.begin()
	defer x.gate.end()
	x.mu.Lock()
	c, ok := x.containers[id]
	was := starting
	if ok {
		was = c.phase
		if was == ended {
			c.phase = deleting
		}
	}
	x.mu.Unlock()
	if !ok {
		x.hands.forget(id)
		return x.sweep(id)
	}
	if was != ended {
		return fault.WrongState.Errorf("container %s has not ended", id)
	}
	if err := x.remove(c); err != nil {
		x.mu.Lock()
		c.phase = ended
		x.mu.Unlock()
		return err
	}
	x.release(c)
	return nil
}

func (x *Executor) remove(c *container) error {
	if err := endAll(c.ref.Cgroups); err != nil {
		return err
	}
	if c.engine != nil {
		return c.engine.remove()
	}
	lc, err := x.borrow(c)
	if err == libcontainer.ErrNotExist {
		return nil // removed before, but then not to the end
	}
	if err != nil {
		return err
	}
	if err := destroy(c.ID, lc); err != nil {
		c.lease.put(lc)
		return fault.Unavailable.Errorf("remove container %s: %w", c.ID, err)
	}
	return nil
}
