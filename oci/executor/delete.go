package executor

// delete serves MethodDelete: it removes the cgroup and libcontainer's state of a container that
// has ended, after killing its remaining processes. An unknown container is no error, and
// leftovers of a crash are removed for it, too.
//
// The error is fault.Unavailable if a process does not die yet; try again.
func (x *Executor) delete(id string) error {
	x.gate.begin()
	defer x.gate.end()
	c, err := x.table.beginDelete(id)
	if err != nil {
		return err
	}
	if c == nil {
		x.hands.forget(id)
		return x.sweep(id)
	}
	if err := x.remove(c); err != nil {
		x.table.cancelDelete(c)
		return err
	}
	x.table.release(c)
	return nil
}

func (x *Executor) remove(c *container) error {
	if err := endAll(c.ref.Cgroups); err != nil {
		return err
	}
	return c.runtime.remove()
}
