package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// config translates a spec for libcontainer.
func (x *Executor) config(id string, spec *specs.Spec, systemd bool) (*configs.Config, error) {
	if spec.Linux.CgroupsPath == "" {
		return nil, fault.Invalid.Errorf("spec of container %s has no cgroups path", id)
	}
	if systemd {
		withoutTasksMax(spec.Linux)
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: systemd,
		Spec:             spec,
	})
	if err != nil {
		return nil, fault.Invalid.Errorf("spec of container %s: %w", id, err)
	}
	config.Labels = append(slices.DeleteFunc(config.Labels, isCRIULabel), criuLabel+x.criu.config)
	x.intern(config.Seccomp)
	return config, nil
}

// libcontainer makes the container, after removing what a crash may have left
// under the same ID.
func (x *Executor) libcontainer(id string, config *configs.Config) (*libcontainer.Container, error) {
	lc, err := libcontainer.Create(x.root, id, config)
	if !errors.Is(err, libcontainer.ErrExist) {
		return lc, err
	}
	if err := x.sweep(id); err != nil {
		return nil, err
	}
	return libcontainer.Create(x.root, id, config)
}

// destroy removes the cgroup and the state of a container that has no process.
func destroy(id string, lc *libcontainer.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeBound)
	defer cancel()
	return attempt(ctx, "removal of container "+id, nil, func() error {
		// Status makes it notice that its init has gone; else Destroy would signal
		// the PID, which may be somebody else's by now.
		if _, err := lc.Status(); err != nil {
			return err
		}
		return lc.Destroy()
	})
}

// short cuts the stages of libcontainer's start off its errors: users see them, and
// the last part is what they can act on.
func short(err error) error {
	text := err.Error()
	for cut := true; cut; {
		cut = false
		for _, p := range []string{
			"unable to create new parent process: ",
			"unable to start container process: ",
			"error during container init: ",
			"error executing setns process: ",
			"unable to start init: ",
			"error starting setns process: ",
		} {
			if rest, ok := strings.CutPrefix(text, p); ok {
				text, cut = rest, true
			}
		}
	}
	return fault.Internal.Errorf("%s", strings.ReplaceAll(text, " set in config.json", ""))
}

// endInit ends the init that an executor before has started, if it lives, and waits for
// it. One that was moved is no member of the container's cgroup, and one that is about to
// end is none for a while.
// fault.Unavailable: it would not go yet.
func endInit(lc *libcontainer.Container) error {
	state, err := lc.State()
	if err != nil || state.InitProcessPid <= 0 {
		return nil // what is wrong with it is told by who removes it
	}
	init, err := foster(state.InitProcessPid, state.InitProcessStartTime, nil)
	if err != nil {
		return nil // it has ended
	}
	defer init.close()
	if err := init.signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", init.pid, err)
	}
	init.pidfd.SetReadDeadline(time.Now().Add(endPatience))
	if err := init.wait(); err != nil {
		return fault.Unavailable.Errorf("process %d does not end when killed: %w", init.pid, err)
	}
	return nil
}
