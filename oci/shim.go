package oci

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Shim is a containerd shim that runs containers: gVisor's, Kata's, one for WebAssembly. A sandbox
// with a shim has a container of its own, which the shim is started with: the containers of a VM or
// of another kernel are in what that one makes.
type Shim = wire.Shim

// ShimNamespace returns the name under which the shims of an instance, by its state directory, keep what
// is theirs.
func ShimNamespace(state string) string { return wire.ShimNamespace(filepath.Join(state, "executor")) }

// shimOf returns the shim of a new container: its own, or its sandbox's.
func shimOf(sb *Sandbox, own *Shim) *Shim {
	all := sb.Config().Shim
	if own != nil || all == nil {
		return own
	}
	joined := *all
	joined.Sandbox = sb.id
	return &joined
}

// elsewhere reports whether the container runs outside of the host's cgroups, or at least not in its
// own: its shim has its counters.
func (c *Container) elsewhere() bool {
	st := c.status.Load()
	return c.record.Load().Config.Shim != nil && st.Pid != 0 && len(st.Cgroups) == 0
}

// statsTime bounds a call for counters.
const statsTime = 5 * time.Second

// shimStats asks the shim for the counters.
func (c *Container) shimStats() (Stats, error) {
	s, err := c.rt.shimStats(c.id)
	return s, c.notRunning("read the counters of", err)
}

func (r *Runtime) shimStats(id string) (s Stats, err error) {
	ctx, cancel := context.WithTimeout(r.closing, statsTime)
	defer cancel()
	var reply wire.StatsReply
	if _, err := r.link.call(ctx, wire.MethodStats, wire.Ref{ID: id}, &reply); err != nil {
		return s, err
	}
	if s, err = decodeStats(reply.Type, reply.Data); err != nil {
		return s, fmt.Errorf("counters of container %s: %w", id, err)
	}
	s.At = time.Now()
	s.Pids.Current = max(s.Pids.Current, reply.Processes)
	return s, nil
}

// elsewhere reports whether the sandbox has been made by its shim, and not in its cgroup: a virtual
// machine outside of it, say. The shim has its counters.
func (sb *Sandbox) elsewhere() bool {
	st, shim := sb.status.Load(), sb.Config().Shim
	return shim != nil && shim.SandboxAPI && st.Pid != 0 && len(st.Cgroups) == 0
}

// StartShim starts the shim of a sandbox that is being created, and in it the sandbox's own
// container, whose ID is the sandbox's. Its end breaks the sandbox, as that of an init. spec has no
// cgroup: it gets one with the sandbox's name. A shim with a Sandbox API makes no container of it, but
// a sandbox with its annotations and namespaces of pod, CRI's configuration as a message.
func (sb *Sandbox) StartShim(ctx context.Context, spec *specs.Spec, pod []byte) error {
	shim := sb.Config().Shim
	if shim == nil || spec == nil || spec.Process == nil || spec.Root == nil {
		return fault.Invalid.Errorf("sandbox %s: a shim, and a spec with a process and a root, are needed", sb.id)
	}
	if st := sb.State(); st != SandboxCreating {
		return fault.WrongState.Errorf("sandbox %s is %s: cannot start its shim", sb.id, st)
	}
	own, linux := *spec, specs.Linux{}
	if spec.Linux != nil {
		linux = *spec.Linux
	}
	linux.CgroupsPath = initCgroup(sb.CgroupParent(), sb.id, sb.rt.o.SystemdCgroup)
	own.Linux = &linux
	with := *shim
	with.Sandbox, with.Pod = "", pod
	req := wire.RunRequest{
		Settings: wire.Settings{ID: sb.id}, Spec: &own, SystemdCgroup: sb.rt.o.SystemdCgroup, Shim: &with,
	}
	_, err := sb.begin(ctx, "shim", wire.MethodRun, req)
	return err
}
