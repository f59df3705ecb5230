package executor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An execution is one exec: a process beside a container's own, which can be killed with everything
// that it started: by a cgroup below the container's (groupsExecs), or by its session.
type execution struct {
	id    string
	c     *container
	proc  *child
	group map[string]string // its sub-cgroup by hierarchy; nil if it has none
	owner *wire.Conn        // guarded by execs.mu; nil after an upgrade until claimed
	ended chan struct{}     // closed when code is known
	gone  chan struct{}     // closed when it has left the table
	code  int32
}

// exec serves wire.ExecRequest.
func (x *Executor) exec(ctx context.Context, from *wire.Conn, req wire.ExecRequest) (*wire.ExecReply, []*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, execBound)
	defer cancel()
	e, ends, err := x.newExec(ctx, from, req)
	if err != nil {
		return nil, nil, err
	}
	files := ends.passed()
	if ctx.Err() != nil { // nobody will ask for its exit code
		wire.CloseAll(files)
		go x.execs.abandon(e)
		return nil, nil, givenUp(ctx, "exec in container "+req.ID)
	}
	return &wire.ExecReply{ExecID: e.id, Pid: e.proc.pid}, files, nil
}

// newExec starts an exec and adds it to the table, or leaves nothing behind.
func (x *Executor) newExec(ctx context.Context, from *wire.Conn, req wire.ExecRequest) (*execution, *stdioEnds, error) {
	x.gate.begin()
	defer x.gate.end() // not before it is in the table, or a failure is rolled back
	e, ends, err := x.beginExec(ctx, from, req)
	if err != nil {
		return nil, nil, err
	}
	x.execs.register(e)
	// The container's processes may have been killed before this one was in its cgroup.
	if c := e.c; !c.ownPID && c.proc.ends() {
		if err := e.kill(); err != nil {
			x.log.Warn("exec in an ended container could not be killed", "container", c.ID, "pid", e.proc.pid, "err", err)
		}
	}
	return e, ends, nil
}

// beginExec starts an exec.
func (x *Executor) beginExec(ctx context.Context, from *wire.Conn, req wire.ExecRequest) (_ *execution, _ *stdioEnds, err error) {
	c, err := x.table.runs(req.ID)
	if err != nil {
		return nil, nil, err
	}
	leave, err := x.table.enter(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	var failed error
	defer func() { // after the rollback
		if stuck := new(stuckError); errors.As(failed, &stuck) {
			stuck.whenOver(leave) // it may start a process yet
		} else {
			leave()
		}
	}()
	var steps undo.Stack
	defer steps.RunIf(&err)
	if req.Fast || !cgroups.IsCgroup2UnifiedMode() {
		x.warmer.warm() // on v2 libcontainer starts it in its cgroup
	}
	var spec specs.Process
	if err := json.Unmarshal(req.Process, &spec); err != nil {
		return nil, nil, fault.Invalid.Errorf("process in container %s: %w", c.ID, err)
	}
	if req.Width > 0 && req.Height > 0 {
		spec.ConsoleSize = &specs.Box{Width: uint(req.Width), Height: uint(req.Height)}
	}
	x.limits.clamp(&spec)
	process, err := newProcess(&spec, req.Env)
	if err != nil {
		return nil, nil, err
	}

	e := x.execs.open(c, from)
	if c.groupsExecs() && c.runtime.subgroups() {
		process.SubCgroupPaths = e.makeGroup()
	}
	steps.Add("cgroup of exec", e.endGroup)
	p := &plan{settings: settings{Settings: wire.Settings{TTY: req.TTY, Stdin: req.Stdin}}, process: process, spec: &specs.Spec{Process: &spec}, fast: req.Fast}
	begun, err := c.runtime.exec(ctx, e, p)
	closeExtra(process, err)
	if failed = err; err != nil {
		if ended := x.table.endsUnder(c); ended != nil {
			return nil, nil, ended
		}
		return nil, nil, err
	}
	steps.Add("stdio", begun.stdio.closeOurs)
	steps.Add("process", begun.end)
	if e.proc, err = newChild(begun.pid); err != nil {
		return nil, nil, err
	}
	begun.served()
	return e, begun.stdio, nil
}

// passed returns the ends that the caller gets.
func (ends *stdioEnds) passed() []*os.File {
	return slices.DeleteFunc(append(ends.ours[:], ends.pty), func(f *os.File) bool { return f == nil })
}

// kill kills the process and everything that it started: what is in the sub-cgroup, which all
// inherit, or else what endTree finds.
func (e *execution) kill() error {
	if e.group == nil {
		return e.endTree()
	}
	err := signalAll(e.group, unix.SIGKILL)
	if perr := e.proc.signal(unix.SIGKILL); err == nil {
		err = perr
	}
	return err
}
