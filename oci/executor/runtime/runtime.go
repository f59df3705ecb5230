// Package runtime starts containers and execs, changes and removes them: by a first process of its own
// where that can (package fastinit), by libcontainer, by an OCI runtime, a program on disk, or by a
// containerd shim, a program that has the container's processes itself. It knows
// of a container what a Plan says, and nothing of the executor's table.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Runtime creates one container and its processes, changes it and removes it. It is a
// builtin, which is libcontainer, an engine, which is a program, or a Task, which is a shim's. Between
// the start and the end of a process the executor is in charge, whichever started it; a shim is asked
// also then.
type Runtime interface {
	// Start starts the container's init, or leaves nothing behind, except after a
	// StuckStartError.
	Start(ctx context.Context, p *Plan) (*Started, error)
	// Exec starts a process beside the init, or leaves nothing behind except its own cgroup.
	Exec(ctx context.Context, p *Plan) (*Started, error)
	// Subgroups reports whether exec can use a cgroup below the container's.
	Subgroups() bool
	// Facts returns whether the container has its own PID namespace, even with an error, and its
	// cgroups by controller.
	Facts() (ownPID bool, cgroups map[string]string, err error)
	// Update applies r on top of the current limits. fault.Invalid: they are refused;
	// fault.WrongState: now. score, if not nil, is the oom_score_adj of later execs that do not
	// specify one.
	Update(r *specs.LinuxResources, score *int) error
	// CanCheckpoint returns why no checkpoint can be made of any such container: fault.WrongState.
	CanCheckpoint(ctx context.Context) error
	// Checkpoint has CRIU, or a shim, write the container, whose init is init, to dir.
	Checkpoint(ctx context.Context, dir string, init *proc.Process) error
	// Remove removes a container that has no process. It may be repeated.
	Remove() error
	// sweep is remove for the leftovers of an earlier executor, whose processes it kills.
	sweep() error
}

// A Plan describes a process to be started, and its stdio. The plan of an init also describes
// its container; that of an exec has no config and no request.
type Plan struct {
	wire.Settings
	Silent  bool // all of its stdio is /dev/null: a pod's init
	process *libcontainer.Process
	spec    *specs.Spec // for an exec, only its process is set
	config  *configs.Config
	req     wire.RunRequest
	fast    bool // wire.RunRequest.Fast, or ExecRequest's
	start   startFunc
	restore *Restore      // nil = the program is executed
	Target  *proc.Process // the init of wire.RunRequest.PIDTarget; nil = none
	shared  []string      // see enslave
	place   Place         // of an exec
}

// A startFunc starts the first process of a new container, whose cgroups will be at group.
type startFunc func(ctx context.Context, lc *libcontainer.Container, p *Plan, group map[string]string) error

// PlanRun describes a container and its first process.
func (r *Runtimes) PlanRun(c wire.Settings, silent bool, spec *specs.Spec, req wire.RunRequest, restore *Restore) (p *Plan, err error) {
	p = &Plan{Settings: c, Silent: silent, spec: spec, req: req, restore: restore}
	if req.Shim != nil { // which makes of the spec what it likes
		p.process, err = newProcess(spec.Process, req.Env)
		return p, err
	}
	if restore == nil {
		p.start, p.fast, p.shared = r.builtins.execute, req.Fast, enslave(spec)
	} else {
		p.start = restore.run
	}
	dropMovedDevices(spec.Linux)
	boundHooks(spec.Hooks)
	markHooks(spec.Hooks, proc.Mark(r.builtins.root, c.ID))
	if p.config, err = r.builtins.config(c.ID, spec, req.SystemdCgroup); err != nil {
		return nil, err
	}
	p.process, err = newProcess(spec.Process, req.Env)
	return p, err
}

func (r *Runtimes) PlanExec(spec *specs.Process, req wire.ExecRequest) (*Plan, error) {
	process, err := newProcess(spec, req.Env)
	if err != nil {
		return nil, err
	}
	return &Plan{Settings: wire.Settings{TTY: req.TTY, Stdin: req.Stdin}, process: process, spec: &specs.Spec{Process: spec}, fast: req.Fast}, nil
}

// In says where an exec runs.
func (p *Plan) In(at Place) {
	p.place = at
	for controller, dir := range at.Group {
		p.process.SubCgroupPaths = map[string]string{controller: filepath.Base(dir)}
	}
}

// Close closes the descriptors that the process was to get besides its stdio, after its start has
// ended with err: at once, or when a stuck attempt is over, which may still pass them on.
func (p *Plan) Close(err error) {
	if stuck := new(proc.StuckError); errors.As(err, &stuck) {
		stuck.WhenOver(func() { wire.CloseAll(p.process.ExtraFiles) })
		return
	}
	wire.CloseAll(p.process.ExtraFiles)
}

// complete does what comes last before the program of process pid is executed. It is an error if
// the container whose PID namespace p joins has been reaped: the path of the namespace has its PID,
// which may be another process's by now.
func (p *Plan) complete(pid int) error {
	if p.Target != nil && !p.Target.Exists() {
		return fault.WrongState.Errorf("container %s, whose PID namespace is joined, has ended", p.req.PIDTarget)
	}
	return share(pid, p.shared)
}

// A Started is a started process. Exactly one of its functions must be called, once.
type Started struct {
	PID   int
	Stdio *stdio.Ends
	// Process is that of a Task, which is no child of ours; nil = it is one, by its PID.
	Process *proc.Process
	Exec    *TaskExec    // of an exec in a Task
	Served  func()       // call it when the process is known by its pidfd
	End     func() error // call it when the process cannot be taken into service
}

// A StuckStartError is a start that cannot be ended. Nothing of it can be removed before it ends
// after all; then release does that.
type StuckStartError struct {
	*proc.StuckError
	Release func() error
}

func (e *StuckStartError) Unwrap() error { return e.StuckError }

// Runtimes are what an executor starts containers with.
type Runtimes struct {
	builtins *builtins
	engines  *engines
	tasks    *tasks
	CRIU     *CRIU
}

// NewRuntimes returns the runtimes of an executor, whose state directory is state; root is
// libcontainer's in it.
//
// oom is called when a shim has told of an OOM kill; kills is the container's total.
func NewRuntimes(root, state string, log *slog.Logger, r *proc.Reaper, oom func(id string, kills int64)) (*Runtimes, error) {
	criu := &CRIU{log: log, config: filepath.Join(state, "criu.conf")}
	builtins, err := newBuiltins(root, state, log, r, criu)
	return &Runtimes{builtins, &engines{root: root, state: state, log: log, reaper: r}, newTasks(root, state, criu, log, oom), criu}, err
}

// Create creates the container that p describes, after removing what a crash may have left
// under the same ID.
func (r *Runtimes) Create(p *Plan) (Runtime, error) {
	if p.req.Shim != nil {
		if err := r.Sweep(p.ID); err != nil {
			return nil, err
		}
		return r.tasks.create(p)
	}
	if p.req.Engine == "" {
		c, err := r.builtins.create(p.ID, p.config, r.Sweep)
		if err != nil {
			return nil, err
		}
		if err := r.builtins.writeBundle(p); err != nil {
			return nil, errors.Join(fmt.Errorf("bundle of container %s: %w", p.ID, err), c.Remove())
		}
		return c, nil
	}
	if err := r.Sweep(p.ID); err != nil {
		return nil, err
	}
	return r.engines.create(p.ID, p.req.Engine, p.req.SystemdCgroup, p.config)
}

// Of returns the runtime of an earlier executor's container.
func (r *Runtimes) Of(id string) Runtime {
	if e := r.engines.find(id); e != nil {
		return e
	}
	if t := r.tasks.find(id); t != nil {
		return t
	}
	return r.builtins.of(id)
}

// Sweep removes the leftovers of a container whose executor died without handing it over. It kills
// the remaining processes.
func (r *Runtimes) Sweep(id string) error {
	if filepath.Base(id) != id {
		return fault.Invalid.Errorf("container ID %q", id)
	}
	if err := proc.End(proc.Marked(proc.Mark(r.builtins.root, id))); err != nil {
		return err
	}
	if err := r.Of(id).sweep(); err != nil {
		return err
	}
	// An executor may have had no time to record the engine, or to write libcontainer's state.
	return errors.Join(os.RemoveAll(r.engines.bundle(id)), os.RemoveAll(r.builtins.bundle(id)))
}

// A Place is where an exec runs.
type Place struct {
	ID      string            // of the exec
	Init    *proc.Process     // of its container
	Cgroups map[string]string // of its container, by controller
	Group   map[string]string // its own below those; nil if it has none
}

// endRest ends what a process of the exec that is gone has left behind.
func (at Place) endRest(pid int) error {
	if at.Group != nil { // it is killed with that
		return nil
	}
	return proc.End(proc.Orphans(pid, at.Cgroups))
}

// join moves a process into the exec's cgroups: the container's, except where it has its own. It
// does not start there: until it has executed its program, a fork of Go shares the executor's
// memory, and the OOM killer would kill both if the container ran out of memory; and whoever
// freezes that cgroup would block all forks of the executor.
func (at Place) join(pid int) error {
	for controller, dir := range at.Cgroups {
		if own, ok := at.Group[controller]; ok {
			dir = own
		}
		err := cgroups.WriteCgroupProc(dir, pid)
		if _, own := at.Group[controller]; err != nil && !own && controller == "" && cgroups.IsCgroup2UnifiedMode() { // its init may have moved
			if in, perr := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", at.Init.PID)); perr == nil {
				err = cgroups.WriteCgroupProc(filepath.Join("/sys/fs/cgroup", in[""]), pid)
			}
		}
		if err != nil {
			return fmt.Errorf("error adding pid %d to cgroups: %w", pid, err)
		}
	}
	return nil
}
