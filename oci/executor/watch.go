package executor

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/wire"
)

// watch sees a container to its end: it waits for its init, kills the remaining processes, reads
// the rest of its output, writes the exit record, removes its cgroups and notifies the subscribers.
// The init is reaped only when its exit is on disk: until then a successor can find its exit code.
// After an upgrade watch is called again with the saved state.
func (x *Executor) watch(c *container) {
	if x.table.ending(c) == nil {
		if err := c.proc.Wait(); err != nil {
			x.log.Error("container cannot be waited for", "container", c.ID, "err", err)
		}
		// First of all, because systemd is about to remove the cgroup.
		lost := c.lost()
		x.learnExit(c, lost)
	}
	if !c.ownPID && (len(c.ref.Cgroups) > 0 || kernel.NoCgroups()) {
		if err := proc.End(c.rest); err != nil {
			x.log.Warn("processes of an ended container remain", "container", c.ID, "err", err)
		}
	}
	if c.task != nil {
		if x.table.ending(c).Reason == wire.ReasonShimGone {
			c.task.Forget() // its processes have the output open
		}
		c.io.AwaitEnd(shimWords)
	}
	c.io.Drain()
	select {
	case <-c.gone: // called again after a panic
	default:
		x.record(c)
		if c.task != nil {
			c.task.Forget()
		}
		limits.RemoveEnded(c.ref.Cgroups)
		x.finish(c)
	}
	c.io.Release()
}

// attend watches a container to its end. If that panics time and again, the container ends all the
// same: otherwise it could neither be stopped nor removed.
func (x *Executor) attend(c *container) {
	if gate.Retry(x.log, "exit", c.ID, func() { x.watch(c) }) {
		return
	}
	if x.table.ending(c) == nil {
		_ = c.proc.Signal(unix.SIGKILL)
		x.table.reaped(c, &wire.Exit{ID: c.ID, Code: 255, At: time.Now(), Reason: wire.ReasonUnknown, Message: "its executor could not watch it"})
	}
	select {
	case <-c.gone:
	default:
		gate.Recover(x.log, "exit", c.ID, func() { x.finish(c) })
	}
}

// learnExit asks the kernel how c ended.
func (x *Executor) learnExit(c *container, lost bool) {
	x.gate.Enter()
	defer x.gate.Leave()
	code, err := c.proc.Code()
	now := time.Now()
	if at := c.proc.EndedAt(); !at.IsZero() && at.After(c.ref.StartedAt) {
		now = at
	}
	e := exitOf(c.ID, code, lost && c.outOfMemory(code, now), now)
	if err != nil {
		e.Reason, e.Message = wire.ReasonUnknown, err.Error()
		if errors.Is(err, runtime.ErrShimGone) && !e.OOMKilled {
			e.Reason = wire.ReasonShimGone
		} else if e.OOMKilled {
			e.Reason = wire.ReasonOOMKilled
		}
	}
	x.table.reaped(c, e)
}

// lost reports whether the OOM killer killed a process of c, whose init has ended. If c has a PID
// namespace, no process is left.
func (c *container) lost() bool {
	if c.task != nil && c.task.LostSome() {
		return true
	}
	if c.ownPID {
		return c.oom.LostAll()
	}
	return c.oom.Lost()
}

// outOfMemory reports whether c, which has lost a process to the OOM killer, ended for that: with
// the code of SIGKILL, or by failing soon afterwards. A signal that was asked for explains a code
// better, and who exits with 0 has not failed.
func (c *container) outOfMemory(code int32, at time.Time) bool {
	if sig := code - 128; code == 0 || sig > 0 && sig <= 64 && c.sent.Load()>>(sig-1)&1 != 0 {
		return false
	}
	return code == 128+int32(unix.SIGKILL) || c.oom != nil && c.oom.LostSince(at.Add(-oomBlame))
}

// oomBlame is for how long the loss of a child explains that its parent fails.
const oomBlame = 10 * time.Second

// record reads for the last time how many processes of c the OOM killer has killed, and writes how
// c has ended to disk.
func (x *Executor) record(c *container) {
	x.gate.Enter()
	defer x.gate.Leave()
	e := x.table.ending(c)
	// It may have killed a process in the cgroup at the very end, after the init was gone.
	if !e.OOMKilled && e.Reason != wire.ReasonUnknown && c.oom.LostAll() && c.outOfMemory(e.Code, e.At) {
		e = exitOf(c.ID, e.Code, true, e.At)
		x.table.reaped(c, e)
	}
	x.oom.Flush(c.oom)
	if c.ExitPath == "" {
		return
	}
	if err := atomicfile.WriteJSON(c.ExitPath, e); err != nil {
		x.log.Error("exit could not be recorded", "container", c.ID, "err", err)
	}
}

// finish reports an exit, once, even if it panics.
func (x *Executor) finish(c *container) {
	x.gate.Enter()
	defer x.gate.Leave()
	e := x.table.ending(c)
	defer func() {
		x.table.edit(func() { c.exit, c.phase = e, ended })
		close(c.gone)
		x.log.Info("container exited", "container", c.ID, "pid", c.ref.Pid, "code", e.Code, "reason", e.Reason)
		x.subscribers.publish(wire.Event{Kind: wire.EventExit, ID: c.ID, Exit: e})
	}()
	if !c.proc.Foreign() {
		c.proc.Reap()
		x.reaper.Forget(c.proc.PID)
	}
	c.oom.Close()
	c.io.End()
	c.proc.Close()
}

// oomHappened is called when a container has lost a process; kills is the total.
func (x *Executor) oomHappened(id string, kills int64) {
	x.log.Info("container lost a process to the OOM killer", "container", id)
	x.subscribers.publish(wire.Event{Kind: wire.EventOOM, ID: id, Kills: kills})
}
