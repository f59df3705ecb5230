package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// run serves wire.RunRequest.
func (x *Executor) run(ctx context.Context, from *wire.Conn, req wire.RunRequest) (_ *wire.RunReply, files []*os.File, err error) {
	x.warmer.warm()
	spec, err := specOf(req)
	if err != nil {
		return nil, nil, err
	}
	return x.create(ctx, from, settings{Settings: req.Settings}, spec, req, nil)
}

// specOf returns the spec of a new container.
func specOf(req wire.RunRequest) (*specs.Spec, error) {
	spec := new(specs.Spec)
	if err := json.Unmarshal(req.Spec, spec); err != nil {
		return nil, fault.Invalid.Errorf("spec of container %s: %w", req.ID, err)
	}
	if spec.Process == nil || spec.Root == nil || spec.Linux == nil {
		return nil, fault.Invalid.Errorf("spec of container %s has no process, root or linux", req.ID)
	}
	spec.Process.Terminal = req.TTY
	return spec, nil
}

// A startFunc starts the first process of a new container, whose cgroups will be at group.
type startFunc func(ctx context.Context, lc *libcontainer.Container, p *plan, group map[string]string) error

// create starts a container and leaves nothing behind if it fails. A nil start is an ordinary
// one.
func (x *Executor) create(ctx context.Context, from *wire.Conn, s settings, spec *specs.Spec, req wire.RunRequest, start startFunc) (_ *wire.RunReply, files []*os.File, err error) {
	x.gate.begin()
	defer x.gate.end() // not before a failure is rolled back
	var steps undo.Stack
	defer steps.RunIf(&err)

	ctx, cancel := outliving(ctx, startBound)
	defer cancel(nil)
	c, err := x.table.reserve(s, from, cancel)
	if err != nil {
		return nil, nil, err
	}
	steps.Add("reservation", func() error { x.table.release(c); return nil })
	if len(spec.Linux.NetDevices) > 0 {
		select {
		case x.moving <- struct{}{}:
			defer func() { <-x.moving }()
		case <-ctx.Done():
			return nil, nil, givenUp(ctx, "start of container "+s.ID)
		}
	}
	p, err := x.plan(s, spec, req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { closeExtra(p.process, err) }()
	if req.PIDTarget != "" {
		if p.target, err = x.table.runs(req.PIDTarget); err != nil {
			return nil, nil, fmt.Errorf("join a PID namespace: %w", err)
		}
	}
	if p.start = start; start == nil {
		p.start, p.fast = x.builtins.execute, req.Fast
	}
	if c.runtime, err = x.newRuntime(p); err != nil {
		return nil, nil, err
	}
	steps.Add("container", c.runtime.remove)
	log, err := openLog(s, x.log)
	if err != nil {
		return nil, nil, fmt.Errorf("log of container %s: %w", s.ID, err)
	}
	if log != nil {
		steps.Add("log", log.Close)
	}
	init, err := c.runtime.start(ctx, p)
	if stuck := new(stuckStartError); errors.As(err, &stuck) {
		steps = undo.Stack{}
		go x.awaitStuck(c, stuck)
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	steps.Add("stdio", init.stdio.closeOurs)
	steps.Add("process", init.end)
	if err := awaitExec(init.pid, init.stdio); err != nil {
		return nil, nil, err
	}
	c.ref.StartedAt = time.Now()
	if c.proc, err = newChild(init.pid); err != nil {
		return nil, nil, err
	}
	steps.Add("pidfd", c.proc.pidfd.Close)
	if err := c.learn(); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, givenUp(ctx, "start of container "+s.ID)
	}
	reply, files, err := x.serve(c, log, init.stdio)
	if err == nil {
		init.served()
	}
	return reply, files, err
}

// serve takes a started container into service, as the last step that can fail.
func (x *Executor) serve(c *container, log *crilog.Writer, ends *stdioEnds) (*wire.RunReply, []*os.File, error) {
	c.io = newStdio(c.settings, log, ends.ours[0], ends.ours[1], ends.ours[2], ends.pty)
	x.countOOM(c)
	files, err := c.descriptors()
	if err != nil {
		return nil, nil, err
	}
	x.setRunning(c)
	reply := c.reply()
	return &reply, files, nil
}

// countOOM begins to count c's OOM kills.
func (x *Executor) countOOM(c *container) {
	var err error
	if c.oom, err = newOOMCounter(c.ref); err != nil {
		x.log.Warn("memory events cannot be read", "container", c.ID, "err", err)
	}
}

// learn determines what clients are told about a new process and its container.
func (c *container) learn() (err error) {
	c.ref.Pid = c.proc.pid
	if c.ref.StartTime, err = startTime(c.ref.Pid); err != nil {
		return err
	}
	c.ownPID, c.ref.Cgroups, err = c.runtime.facts()
	return err
}

// descriptors returns the descriptors of MethodRun and MethodDescriptors.
func (c *container) descriptors() ([]*os.File, error) {
	files, err := c.io.duplicates()
	if err != nil {
		return nil, err
	}
	pidfd, err := dup(c.proc.pidfd)
	if err != nil {
		wire.CloseAll(files)
		return nil, err
	}
	return slices.Insert(files, 0, pidfd), nil
}

// plan describes a container and its first process, for any runtime.
func (x *Executor) plan(s settings, spec *specs.Spec, req wire.RunRequest) (*plan, error) {
	if spec.Process.OOMScoreAdj == nil {
		spec.Process.OOMScoreAdj = new(int) // else it would inherit ours, and be spared
	}
	x.limits.clamp(spec.Process)
	leaveMoved(spec.Linux)
	boundHooks(spec.Hooks)
	ownHooks(spec.Hooks, owner(x.builtins.root, s.ID))
	config, err := x.builtins.config(s.ID, spec, req.SystemdCgroup)
	if err != nil {
		return nil, err
	}
	process, err := newProcess(spec.Process, req.Env)
	return &plan{settings: s, process: process, spec: spec, config: config, req: req}, err
}

// awaitStuck keeps the place of a container whose start cannot be ended until it ends after all.
func (x *Executor) awaitStuck(c *container, stuck *stuckStartError) {
	x.table.strand(c)
	x.log.Error("start of a container cannot be ended", "container", c.ID, "err", stuck)
	<-stuck.over
	x.gate.begin()
	defer x.gate.end()
	if err := stuck.release(); err != nil {
		x.log.Warn("container was not removed", "container", c.ID, "err", err)
	}
	x.table.release(c)
}

// sweep removes the leftovers of a container that is not in the table: its executor died and
// nobody handed it to us. It kills the remaining processes.
func (x *Executor) sweep(id string) error {
	if filepath.Base(id) != id {
		return fault.Invalid.Errorf("container ID %q", id)
	}
	if err := endOwned(owner(x.builtins.root, id)); err != nil {
		return err
	}
	if err := x.runtimeOf(id).sweep(); err != nil {
		return err
	}
	// An executor may have had no time to record the engine, or to write libcontainer's state.
	return errors.Join(os.RemoveAll(x.engines.bundle(id)), os.RemoveAll(x.builtins.bundle(id)))
}
