package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An ociRuntime creates one container and its processes, changes it and removes it. It is a
// builtin, which is libcontainer, or an engine, which is a program. Between the start and the
// end of a process the executor is in charge, whichever started it.
type ociRuntime interface {
	// start starts the container's init, or leaves nothing behind, except after a
	// stuckStartError.
	start(ctx context.Context, p *plan) (*started, error)
	// exec starts a process beside the init, or leaves nothing behind except e's cgroup.
	exec(ctx context.Context, e *execution, p *plan) (*started, error)
	// subgroups reports whether exec can use a cgroup below the container's.
	subgroups() bool
	// facts returns whether the container has its own PID namespace, even with an error, and its
	// cgroups by controller.
	facts() (ownPID bool, cgroups map[string]string, err error)
	// update applies r on top of the current limits. fault.Invalid: they are refused;
	// fault.WrongState: now. score, if not nil, is the oom_score_adj of later execs that do not
	// specify one.
	update(r *specs.LinuxResources, score *int) error
	// checkpoint has CRIU write the container, whose init is init, to dir.
	checkpoint(ctx context.Context, dir string, init *child) error
	// remove removes a container that has no process. It may be repeated.
	remove() error
	// sweep is remove for the leftovers of an earlier executor, whose processes it kills.
	sweep() error
}

// A plan describes a process to be started, and its stdio. The plan of an init also describes
// its container; that of an exec has no config and no request.
type plan struct {
	settings
	process *libcontainer.Process
	spec    *specs.Spec // for an exec, only its process is set
	config  *configs.Config
	req     wire.RunRequest
	fast    bool // wire.RunRequest.Fast, or ExecRequest's
	start   startFunc
	target  *container // wire.RunRequest.PIDTarget; nil = none
}

// joins returns an error if the container whose PID namespace p joins has been reaped: the path
// of the namespace has its PID, which may be another process's by now.
func (p *plan) joins() error {
	if p.target == nil || p.target.proc.exists() {
		return nil
	}
	return fault.WrongState.Errorf("container %s, whose PID namespace is joined, has ended", p.target.ID)
}

// A started is a started process. Exactly one of its functions must be called, once.
type started struct {
	pid    int
	stdio  *stdioEnds
	served func()       // call it when the process is known by its pidfd
	end    func() error // call it when the process cannot be taken into service
}

// A stuckStartError is a start that cannot be ended. Nothing of it can be removed before it ends
// after all; then release does that.
type stuckStartError struct {
	*stuckError
	release func() error
}

func (e *stuckStartError) Unwrap() error { return e.stuckError }

// newRuntime creates the container that p describes, after removing what a crash may have left
// under the same ID.
func (x *Executor) newRuntime(p *plan) (ociRuntime, error) {
	if p.req.Engine == "" {
		c, err := x.builtins.create(p.ID, p.config, x.sweep)
		if err != nil {
			return nil, err
		}
		if err := x.builtins.writeBundle(p); err != nil {
			return nil, errors.Join(fmt.Errorf("bundle of container %s: %w", p.ID, err), c.remove())
		}
		return c, nil
	}
	if err := x.sweep(p.ID); err != nil {
		return nil, err
	}
	return x.engines.create(p.ID, p.req.Engine, p.req.SystemdCgroup, p.config)
}

// runtimeOf returns the runtime of an earlier executor's container.
func (x *Executor) runtimeOf(id string) ociRuntime {
	if e := x.engines.find(id); e != nil {
		return e
	}
	return x.builtins.of(id)
}
