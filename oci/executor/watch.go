package executor

import (
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/oci/wire"
)

// watch sees a container to its end: it waits for its init, kills the remaining processes, reads
// the rest of its output, writes the exit record, removes its cgroups and notifies the subscribers.
// The init is reaped only when its exit is on disk: until then a successor can find its exit code.
// After an upgrade watch is called again with the saved state.
func (x *Executor) watch(c *container) {
	if x.table.ending(c) == nil {
		if err := c.proc.wait(); err != nil {
			x.log.Error("container cannot be waited for", "container", c.ID, "err", err)
		}
		// First of all, because systemd is about to remove the cgroup.
		killed := c.killed()
		x.learnExit(c, killed)
	}
	if !c.ownPID {
		if err := endAll(c.ref.Cgroups); err != nil {
			x.log.Warn("processes of an ended container remain", "container", c.ID, "err", err)
		}
	}
	c.io.drain()
	select {
	case <-c.gone: // called again after a panic
	default:
		x.record(c)
		removeEnded(c.ref.Cgroups)
		x.finish(c)
	}
	c.io.release()
}

// learnExit asks the kernel how c ended.
func (x *Executor) learnExit(c *container, killed bool) {
	x.gate.enter()
	defer x.gate.leave()
	code, err := c.proc.look()
	e := exitOf(c.ID, code, killed, time.Now())
	if err != nil {
		e.Reason, e.Message = wire.ReasonUnknown, err.Error()
	}
	x.table.reaped(c, e)
}

// killed reports whether the OOM killer killed a process of c, whose init has ended. If c has a
// PID namespace, no process is left.
func (c *container) killed() bool {
	if c.ownPID {
		return c.oom.lostAll()
	}
	return c.oom.lost()
}

// record reads for the last time how many processes of c the OOM killer has killed, and writes how
// c has ended to disk.
func (x *Executor) record(c *container) {
	x.gate.enter()
	defer x.gate.leave()
	e := x.table.ending(c)
	// It may have killed a process in the cgroup at the very end, after the init was gone.
	if !e.OOMKilled && e.Reason != wire.ReasonUnknown && c.oom.lostAll() {
		e = exitOf(c.ID, e.Code, true, e.At)
		x.table.reaped(c, e)
	}
	x.oom.flush(c.oom)
	if c.ExitPath == "" {
		return
	}
	if err := atomicfile.SaveJSON(c.ExitPath, e); err != nil {
		x.log.Error("exit could not be recorded", "container", c.ID, "err", err)
	}
}

// finish reports an exit, once.
func (x *Executor) finish(c *container) {
	x.gate.enter()
	defer x.gate.leave()
	e := x.table.ending(c)
	c.proc.reap()
	x.reaper.forget(c.proc.pid)
	c.oom.close()
	c.io.end()
	c.proc.close()
	x.table.end(c, e)
	close(c.gone)
	x.log.Info("container exited", "container", c.ID, "pid", c.ref.Pid, "code", e.Code, "reason", e.Reason)
	x.subscribers.publish(wire.Event{Kind: wire.EventExit, ID: c.ID, Exit: e})
}

// oomHappened is called when a container has lost a process; kills is the total.
func (x *Executor) oomHappened(id string, kills int64) {
	x.log.Info("container lost a process to the OOM killer", "container", id)
	x.subscribers.publish(wire.Event{Kind: wire.EventOOM, ID: id, Kills: kills})
}
