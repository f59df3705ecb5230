package executor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// criuOpts returns libcontainer's options for a dump and for its restore.
//
// Cgroups are "soft": CRIU enters the cgroup that we created and creates those that the
// container had created below it, with the namespace in which it sees them.
func criuOpts(dir string) *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{
		ImagesDirectory:   filepath.Join(dir, "checkpoint"),
		WorkDirectory:     dir,
		LeaveRunning:      true,
		FileLocks:         true,
		ManageCgroupsMode: "soft",
		StatusFd:          -1,
	}
}

// checkDestinations refuses a container with a mount or device whose place, after the links of its
// image, contains "]:". CRIU before 4.3.1 keeps them as "mnt[PLACE]:SOURCE", unescaped, so such a
// place names the directory of the node that a restore mounts there (CVE-2026-119101). libcontainer
// refuses it too, as an internal error.
func checkDestinations(config *configs.Config) error {
	check := func(what, place string) error {
		at, err := securejoin.SecureJoin(config.Rootfs, strings.TrimPrefix(place, config.Rootfs))
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, place, err)
		}
		if at = strings.TrimPrefix(at, config.Rootfs); at == "" || strings.Contains(at, "]:") {
			return fault.WrongState.Errorf("%s %s is at %q in the image, which CRIU cannot record", what, place, at)
		}
		return nil
	}
	for _, m := range config.Mounts {
		if m.IsBind() {
			if err := check("mount", m.Destination); err != nil {
				return err
			}
		}
	}
	for _, d := range config.Devices {
		if d.Path != "" {
			if err := check("device", d.Path); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkpoint serves wire.CheckpointRequest.
func (x *Executor) checkpoint(ctx context.Context, req wire.CheckpointRequest) error {
	c, err := x.table.runs(req.ID)
	if err != nil {
		return err
	}
	if err := x.criu.ready(ctx); err != nil {
		return err
	}
	x.gate.begin()
	defer x.gate.end()
	c.dumping.Lock()
	defer c.dumping.Unlock()
	if req.Frozen && !x.table.isFrozen(c) {
		return fault.WrongState.Errorf("container %s is not frozen any more", c.ID)
	}
	end, err := x.table.beginDump(ctx, c)
	if err != nil {
		return err
	}
	defer end()
	return c.runtime.checkpoint(ctx, req.Dir, c.proc)
}

// restore serves wire.RestoreRequest.
func (x *Executor) restore(ctx context.Context, from *wire.Conn, req wire.RestoreRequest) (*wire.RunReply, []*os.File, error) {
	spec, err := specOf(req.RunRequest)
	if err != nil {
		return nil, nil, err
	}
	if req.Engine != "" {
		return nil, nil, fault.Invalid.Errorf("container %s is for %s: only libcontainer can restore", req.ID, req.Engine)
	}
	if err := x.criu.ready(ctx); err != nil {
		return nil, nil, err
	}
	reply, files, err := x.create(ctx, from, settings{Settings: req.Settings}, spec, req.RunRequest, func(_ context.Context, lc *libcontainer.Container, p *plan, group map[string]string) error {
		config := lc.Config()
		if err := checkDestinations(&config); err != nil {
			return fmt.Errorf("restore container %s: %w", req.ID, err)
		}
		defer endingCRIU(ctx, req.Dir)()
		if err := lc.Restore(p.process, criuOpts(req.Dir)); err != nil {
			return criuFailure(ctx, "restore container "+req.ID, filepath.Join(req.Dir, "restore.log"), err)
		}
		with := maps.Clone(group)
		delete(with, "")
		if len(with) == 0 {
			return nil // without v1, all of them are in v2
		}
		pids, err := members(with)
		if err != nil {
			return err
		}
		return joinAll(group, pids...)
	})
	if err != nil || spec.Process.OOMScoreAdj == nil {
		return reply, files, err
	}
	// CRIU restores the previous limits of the processes.
	if serr := make(scores).replace(reply.Cgroups, *spec.Process.OOMScoreAdj); serr != nil {
		x.log.Warn("oom_score_adj of a restored container is not as requested", "container", req.ID, "err", serr)
	}
	return reply, files, nil
}
