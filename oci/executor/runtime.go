package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/oci/wire"
)

// An ociRuntime makes one container and its processes, changes it and removes it. It is a
// builtin, which is libcontainer, or an engine, which is a program. Between the start and
// the end of a process the executor is in charge, whichever has started it.
type ociRuntime interface {
	// start starts the container's init, or leaves nothing of it, except after a
	// stuckStartError.
	start(ctx context.Context, p *plan) (*started, error)
	// exec starts a process beside the init, or leaves nothing of it but e's cgroup.
	exec(ctx context.Context, e *execution, p *plan) (*started, error)
	// subgroups reports whether exec can use a cgroup below the container's.
	subgroups() bool
	// facts returns whether the container has a PID namespace of its own, even with an
	// error, and where its cgroups are, by controller.
	facts() (ownPID bool, cgroups map[string]string, err error)
	// update applies r on top of the limits in force. fault.Invalid: they are refused. score,
	// if not nil, is the oom_score_adj of execs from then on that do not name one.
	update(r *specs.LinuxResources, score *int) error
	// checkpoint has CRIU write the container, whose init is init, to dir.
	checkpoint(ctx context.Context, dir string, init *child) error
	// remove removes a container that has no process. It may be repeated.
	remove() error
	// sweep is remove for the leftovers of an earlier executor, whose processes it kills.
	sweep() error
}

// A plan describes a process to be made, and its stdio. The plan of an init describes its
// container as well; that of an exec has no config and no request.
type plan struct {
	settings
	process *libcontainer.Process
	spec    *specs.Spec // for an exec, only its process is set
	config  *configs.Config
	req     wire.RunRequest
	fast    bool // wire.RunRequest.Fast, or ExecRequest's
	start   startFunc
}

// A started is a process that was started. One of its functions must be called, once.
type started struct {
	pid    int
	stdio  *stdioEnds
	served func()       // for when it is known by its pidfd
	end    func() error // for when it cannot be taken into service
}

// A stuckStartError is a start that cannot be ended. Nothing of it can be removed before it has
// ended after all; then release does that.
type stuckStartError struct {
	*stuckError
	release func() error
}

// newRuntime makes the container that p describes, after removing what a crash may have
// left under the same ID.
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

// runtimeOf returns the runtime of a container of an earlier executor.
func (x *Executor) runtimeOf(id string) ociRuntime {
	if e := x.engines.find(id); e != nil {
		return e
	}
	return x.builtins.of(id)
}
