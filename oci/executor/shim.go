package executor

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// shimWords bounds how long a shim may copy output after the exit of the program. It may be kept
// from that by a process elsewhere that has the output open.
const shimWords = 10 * time.Second

// closesStdin has a shim told when the stdin of its container has been closed: it has the FIFO open
// for writing, too.
func (c *container) closesStdin() {
	if c.task != nil {
		task := c.task
		c.io.OnStdinClosed(task.CloseStdin)
	}
}

// reopen opens what is missing of the stdio of a shim's container that is adopted.
func (x *Executor) reopen(c *container, have [4]*os.File) [4]*os.File {
	ends, err := c.task.Reopen(have)
	if err != nil && c.LogPath != "" { // a silent one has none
		x.log.Warn("stdio of a container cannot be opened again", "container", c.ID, "err", err)
	}
	return ends
}

// resize serves MethodResize.
func (x *Executor) resize(req wire.ResizeRequest) error {
	c, err := x.table.runs(req.ID)
	switch {
	case err != nil:
		return err
	case c.task != nil:
		return c.task.Resize(req.Width, req.Height)
	}
	return c.io.Resize(req.Width, req.Height)
}

// stats serves MethodStats.
func (x *Executor) stats(ctx context.Context, id string) (any, []*os.File, error) {
	c, err := x.table.runs(id)
	if err != nil {
		return nil, nil, err
	}
	if c.task == nil {
		return nil, nil, fault.WrongState.Errorf("container %s is run by no shim: its cgroup has the counters", id)
	}
	reply, err := c.task.Stats(ctx)
	return reply, nil, err
}

// relay takes an exec that a shim has started into service. What its client types goes through us:
// only we can tell the shim when that ends.
func (x *Executor) relay(e *execution, begun *runtime.Started, req wire.ExecRequest) error {
	e.task, e.proc = begun.Exec, begun.Process
	stdin := begun.Stdio.Ours[0]
	if stdin == nil {
		return nil
	}
	begun.Stdio.Ours[0] = nil
	e.input = stdio.NewStreams(e.inputSettings(!req.TTY), nil, stdin, nil, nil, nil)
	e.input.OnStdinClosed(e.task.CloseStdin)
	e.input.Start(&x.gate, x.buffers, x.log)
	pid := 0
	if e.owner != nil {
		pid = e.owner.Pid()
	}
	files, err := e.input.Attach(pid, true, false, &x.gate, x.log)
	if err != nil {
		e.input.Release()
		return err
	}
	begun.Stdio.Ours[0] = files[0]
	return nil
}

// inputSettings are those of the streams that an exec's input goes through: with a terminal, its end
// is no end.
func (e *execution) inputSettings(ends bool) wire.Settings {
	return wire.Settings{ID: e.c.ID, StdinOnce: ends}
}

// isHere reports whether the process of an exec that a shim has started is one of this kernel's: then
// its descendants can be found. On another kernel the shim alone can kill it.
func (e *execution) isHere() bool {
	if len(e.c.ref.Cgroups) == 0 {
		return false
	}
	pids, err := proc.Members(e.c.ref.Cgroups)
	return err == nil && slices.Contains(pids, e.proc.PID)
}

// forgetTask has the shim forget an exec that has ended.
func (e *execution) forgetTask() {
	if e.input != nil {
		e.input.End()
		e.input.Release()
	}
	e.task.Forget()
}

// resumeTask continues an exec in a shim's container after an upgrade.
func (t *execs) resumeTask(e *execution, s savedExec) {
	e.task = e.c.task.ResumeExec(s.ID, s.Pid)
	e.proc = e.task.Process
	if s.Ended {
		go e.task.Forget() // again, if that was not over
		return
	}
	if s.Input != nil {
		e.input = stdio.ResumeStreams(e.inputSettings(s.InputEnds), *s.Input, take, t.gate, t.log)
		e.input.OnStdinClosed(e.task.CloseStdin)
	}
}

// resize serves MethodExecResize.
func (t *execs) resize(req wire.ExecResizeRequest) error {
	t.mu.Lock()
	e, ok := t.all[req.ExecID]
	t.mu.Unlock()
	switch {
	case !ok:
		return fault.NotFound.Errorf("no exec %q", req.ExecID)
	case e.task == nil:
		return fault.Invalid.Errorf("terminal of exec %s is its caller's", req.ExecID)
	}
	return e.task.Resize(req.Width, req.Height)
}
