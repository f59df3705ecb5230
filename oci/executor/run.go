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
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// run is "run", see wire.RunRequest.
func (x *Executor) run(ctx context.Context, from *wire.Conn, req wire.RunRequest) (_ *wire.RunReply, files []*os.File, err error) {
	x.warmer.warm()
	var spec specs.Spec
	if err := json.Unmarshal(req.Spec, &spec); err != nil {
		return nil, nil, fault.Invalid.Errorf("spec of container %s: %w", req.ID, err)
	}
	if spec.Process == nil || spec.Root == nil || spec.Linux == nil {
		return nil, nil, fault.Invalid.Errorf("spec of container %s has no process, root or linux", req.ID)
	}
	s := settings{req.ID, req.Stdin, req.StdinOnce, req.TTY, req.LogPath, req.LogMaxLine, req.ExitPath, false}
	spec.Process.Terminal = req.TTY
	if req.Engine != "" {
		return x.createWith(ctx, from, s, &spec, req)
	}
	return x.create(ctx, from, s, &spec, req, x.execute)
}

// A beginning gives a new container its first process.
type beginning func(*libcontainer.Container, *libcontainer.Process) error

// execute is how most containers begin.
func (x *Executor) execute(lc *libcontainer.Container, process *libcontainer.Process) error {
	if err := lc.Start(process); err != nil {
		return err
	}
	pid, err := process.Pid()
	if err != nil {
		return err
	}
	return letRun(filepath.Join(x.root, lc.ID(), "exec.fifo"), pid)
}

// create starts a container and leaves nothing behind if it cannot.
func (x *Executor) create(ctx context.Context, from *wire.Conn, s settings, spec *specs.Spec, req wire.RunRequest, begin beginning) (_ *wire.RunReply, files []*os.File, err error) {
	x.gate.begin()
	defer x.gate.end() // not before what failed is undone
	var steps undo.Stack
	defer steps.RunIf(&err)

	ctx, cancel := outliving(ctx, startBound)
	defer cancel(nil)
	c, err := x.table.reserve(s, from, cancel)
	if err != nil {
		return nil, nil, err
	}
	steps.Add("reservation", func() error { x.table.release(c); return nil })

	config, process, err := x.plan(s, spec, req)
	if err != nil {
		return nil, nil, err
	}
	defer wire.CloseAll(process.ExtraFiles)
	process.Init = true
	c.ownPID = config.Namespaces.IsPrivate(configs.NEWPID)

	lc, err := x.libcontainer(s.ID, config)
	if err != nil {
		return nil, nil, short(err)
	}
	steps.Add("container", func() error { return destroy(s.ID, lc) })
	group, err := cgroupPaths(lc)
	if err != nil {
		return nil, nil, err
	}

	trees := x.staged(lc, config, req)
	steps.Add("staged mounts", trees.detach)

	log, err := openLog(s, x.log)
	if err != nil {
		return nil, nil, fmt.Errorf("log of container %s: %w", s.ID, err)
	}
	if log != nil {
		steps.Add("log", log.Close)
	}
	wires, err := connect(process, s)
	if err != nil {
		return nil, nil, err
	}
	steps.Add("stdio", wires.closeOurs)
	if err := trees.null(process, wires); err != nil {
		return nil, nil, err
	}
	if err := giveStdio(process, config); err != nil {
		return nil, nil, err
	}
	err = attempt(ctx, "start of container "+s.ID, group, func() error {
		if err := begin(lc, process); err != nil {
			return short(err)
		}
		return x.reaper.knowProcess(process)
	})
	wires.closeTheirs()
	if stuck := new(stuckError); errors.As(err, &stuck) {
		steps = undo.Stack{} // libcontainer holds all of it
		go x.awaitStuck(c, lc, stuck, func() { wires.closeOurs(); trees.detach() })
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	steps.Add("process", func() error { return x.reaper.end(process) })
	if err := wires.receive(); err != nil {
		return nil, nil, err
	}
	if pid, err := process.Pid(); err != nil {
		return nil, nil, err
	} else if err := awaitExec(pid, wires); err != nil {
		return nil, nil, err
	}
	c.ref.StartedAt = time.Now()
	if err := c.started(process, lc); err != nil {
		return nil, nil, err
	}
	steps.Add("pidfd", c.proc.pidfd.Close)
	if ctx.Err() != nil {
		return nil, nil, givenUp(ctx, "start of container "+s.ID)
	}
	reply, files, err := x.serve(c, log, wires)
	if err == nil {
		go trees.detach() // 2 ms; what an upgrade cuts short goes with the sandbox
	}
	return reply, files, err
}

// serve takes a started container into service; it fails before that or not at all.
func (x *Executor) serve(c *container, log *crilog.Writer, wires *wires) (*wire.RunReply, []*os.File, error) {
	c.io = newStdio(c.settings, log, wires.ours[0], wires.ours[1], wires.ours[2], wires.pty)
	var err error
	if c.oom, err = newOOMCounter(c.ref); err != nil {
		x.log.Warn("memory events cannot be read", "container", c.ID, "err", err)
	}
	files, err := c.held()
	if err != nil {
		return nil, nil, err
	}
	x.live(c)
	reply := c.reply()
	return &reply, files, nil
}

// started learns who the new process is.
func (c *container) started(process *libcontainer.Process, lc *libcontainer.Container) error {
	pid, err := process.Pid()
	if err != nil {
		return err
	}
	if c.proc, err = newChild(pid); err != nil {
		return err
	}
	if c.ref.StartTime, err = startTime(pid); err != nil {
		return err
	}
	c.ref.Pid = pid
	if c.ref.Cgroups, err = cgroupPaths(lc); err != nil {
		return err
	}
	c.lease.put(lc)
	return nil
}

// held are the descriptors of "run" and "hold".
func (c *container) held() ([]*os.File, error) {
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

// plan says what a container and its first process are to be, whoever makes them.
func (x *Executor) plan(s settings, spec *specs.Spec, req wire.RunRequest) (*configs.Config, *libcontainer.Process, error) {
	if spec.Process.OOMScoreAdj == nil {
		spec.Process.OOMScoreAdj = new(int) // else it would inherit ours, and be spared
	}
	x.limits.clamp(spec.Process)
	boundHooks(spec.Hooks)
	config, err := x.config(s.ID, spec, req.SystemdCgroup)
	if err != nil {
		return nil, nil, err
	}
	process, err := newProcess(spec.Process, req.Env)
	return config, process, err
}

// awaitStuck keeps the place of a container whose start cannot be ended until it has
// ended after all. Nothing of it can be taken away before.
func (x *Executor) awaitStuck(c *container, lc *libcontainer.Container, stuck *stuckError, release func()) {
	x.table.strand(c)
	x.log.Error("start of a container cannot be ended", "container", c.ID, "err", stuck)
	<-stuck.over
	x.gate.begin()
	defer x.gate.end()
	release()
	if err := destroy(c.ID, lc); err != nil {
		x.log.Warn("container was not removed", "container", c.ID, "err", err)
	}
	x.table.release(c)
}

// sweep removes what is left of a container that is not in the table: its executor
// died and nobody gave it to us. Processes of it that still run are killed.
func (x *Executor) sweep(id string) error {
	if filepath.Base(id) != id {
		return fault.Invalid.Errorf("container ID %q", id)
	}
	if e := x.engineOf(id); e != nil {
		if err := endAll(e.Cgroups); err != nil {
			return err
		}
		return e.remove()
	}
	dir := filepath.Join(x.root, id)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lc, err := libcontainer.Load(x.root, id)
	if err != nil { // it died before its state was written
		return os.RemoveAll(dir)
	}
	if paths, err := cgroupPaths(lc); err == nil {
		if err := endAll(paths); err != nil {
			return err
		}
	}
	if err := endInit(lc); err != nil {
		return err
	}
	if err := destroy(id, lc); err != nil {
		return fault.Unavailable.Errorf("remove container %s: %w", id, err)
	}
	return nil
}
