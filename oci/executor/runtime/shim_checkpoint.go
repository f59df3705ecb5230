package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/shim"
)

// A shim makes checkpoints if it can, in a form of its own. Of runc's we know more: it has CRIU write
// what libcontainer has it write.

// isRunc reports whether the shim is runc's.
func (t *Task) isRunc() bool {
	return t.OptionsType == shim.RuncOptions || t.OptionsType == "" && strings.Contains(filepath.Base(t.Path), "runc")
}

// CanCheckpoint implements Runtime. A shim that makes no checkpoints says so of any container, even
// of one that it does not have: no program is stopped for the answer.
func (t *Task) CanCheckpoint(ctx context.Context) error {
	err := t.ask(ctx, shimCall, func(ctx context.Context, c *shim.Client) error { return c.Checkpoint(ctx, "", "", nil) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errors.ErrUnsupported):
		return t.refused(err)
	case fault.KindOf(err) == fault.Unavailable: // it does not answer
		return reported(err)
	case t.isRunc():
		return t.all.criu.Ready(ctx)
	}
	return nil
}

// refused is an error of a shim that does not stop a container, or make a checkpoint of it.
func (t *Task) refused(err error) error {
	if err == nil || fault.KindOf(err) == fault.Unavailable {
		return reported(err)
	}
	return fault.WrongState.Errorf("container %s cannot be checkpointed or restored: %v", t.id, err)
}

// Pause stops the container's processes.
func (t *Task) Pause(ctx context.Context) error {
	return t.refused(t.ask(ctx, shimCall, func(ctx context.Context, c *shim.Client) error { return c.Pause(ctx, t.id) }))
}

// Resume lets the container's processes go on. It is no error if they were not stopped, or have ended.
func (t *Task) Resume() error {
	err := t.askAnyway(context.Background(), shimCall, func(ctx context.Context, c *shim.Client) error { return c.Resume(ctx, t.id) })
	if err == nil || fault.KindOf(err) == fault.NotFound || refuses(err) {
		return nil
	}
	if state, serr := t.state(""); serr == nil && state.Status != shim.Paused && state.Status != shim.Pausing {
		return nil
	}
	return reported(err)
}

// Checkpoint implements Runtime.
func (t *Task) Checkpoint(ctx context.Context, dir string, init *proc.Process) error {
	images := filepath.Join(dir, "checkpoint")
	if err := os.Mkdir(images, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.dump.Store(&cancel)
	defer t.dump.Store(nil)
	write := func(ctx context.Context, options *shim.Any) error {
		return t.ask(ctx, shimDump, func(ctx context.Context, c *shim.Client) error { return c.Checkpoint(ctx, t.id, images, options) })
	}
	if !t.isRunc() {
		err := write(ctx, nil)
		if err != nil && ctx.Err() != nil {
			return fault.Unavailable.Errorf("checkpoint container %s was given up: %w", t.id, ctx.Err())
		}
		return t.refused(err)
	}
	spec := new(specs.Spec)
	data, err := os.ReadFile(filepath.Join(t.dir, specFile))
	if err == nil {
		err = json.Unmarshal(data, spec)
	}
	if err == nil {
		err = t.checkPlaces(spec)
	}
	if err != nil {
		return fmt.Errorf("checkpoint container %s: %w", t.id, err)
	}
	// The shim's other calls wait for this one, which ends when CRIU is killed.
	late, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(shimCall, stop) })()
	end := endingCRIU(ctx, dir)
	err = write(late, shim.RuncCheckpoint(dir))
	end()
	return t.all.criu.dumped(ctx, t.id, dir, init, err)
}

// restoring adds a checkpoint to the request of a container that is to be restored. end is called when
// that is over. A shim that makes no checkpoints takes none: gVisor's would begin the program anew.
func (t *Task) restoring(ctx context.Context, p *Plan, req *shim.CreateRequest) (end func(), err error) {
	req.Checkpoint = filepath.Join(p.restore.Dir, "checkpoint")
	if err := t.CanCheckpoint(ctx); err != nil {
		return nil, err
	}
	if !t.isRunc() {
		return func() {}, nil
	}
	if err := t.checkPlaces(p.spec); err != nil {
		return nil, fmt.Errorf("restore container %s: %w", t.id, err)
	}
	req.Options = shim.RuncWork(t.options(), p.restore.Dir)
	return endingCRIU(p.restore.Context, p.restore.Dir), nil
}

// strayed ends and refuses a container that runc's shim has restored outside of its cgroup: runc before
// 1.2 does so on cgroup v2.
func (t *Task) strayed(ctx context.Context, p *Plan, pid int) error {
	if p.restore == nil || !t.isRunc() || !cgroups.IsCgroup2UnifiedMode() || len(t.Cgroups) > 0 {
		return nil
	}
	if pids, err := proc.Members(t.Group); err == nil && slices.Contains(pids, pid) {
		return nil // below it
	}
	_ = t.ask(ctx, shimCall, func(ctx context.Context, c *shim.Client) error { // it may find no other process
		return c.Kill(ctx, t.id, "", int(unix.SIGKILL), false)
	})
	return fault.WrongState.Errorf("container %s was restored outside of its cgroup: runc behind %s must be 1.2 or newer", t.id, t.Path)
}

// checkPlaces is checkDestinations for what runc's shim is given.
func (t *Task) checkPlaces(spec *specs.Spec) error {
	config := &configs.Config{Rootfs: spec.Root.Path}
	if !filepath.IsAbs(config.Rootfs) {
		config.Rootfs = filepath.Join(t.dir, config.Rootfs)
	}
	for _, m := range spec.Mounts { // of any type: how runc reads their options is its own affair
		config.Mounts = append(config.Mounts, &configs.Mount{Destination: m.Destination, Flags: unix.MS_BIND})
	}
	for _, d := range spec.Linux.Devices {
		config.Devices = append(config.Devices, &devices.Device{Path: d.Path})
	}
	return checkDestinations(config)
}
