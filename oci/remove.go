package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Remove kills the container if it is alive and removes everything left of it: the executor's
// entry, its cgroup, its directories, its record, its name. An interrupted Remove leaves it
// Removing; the next one, or the next Open, continues.
func (c *Container) Remove(ctx context.Context) error {
	for range 3 { // a Created container may be started between the two
		if err := c.Stop(ctx, unix.SIGKILL, 0); err != nil {
			return err
		}
		err := c.move(remove, nil)
		if err == nil {
			return c.discard(ctx)
		}
		if !errors.Is(err, fault.WrongState) {
			return err
		}
	}
	return fault.WrongState.Errorf("container %s is being started: cannot remove it", c.id)
}

// Forget makes the executor forget an Exited container and remove its cgroups: half of Remove,
// which may run while the caller removes other parts of the container. In other states it does
// nothing.
func (c *Container) Forget(ctx context.Context) error {
	if c.status.Load().State != Exited { // the only way from there is removal
		return nil
	}
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	c.awaitNotified()
	if err := c.rt.expunge(ctx, c.id); err != nil {
		return fmt.Errorf("remove container %s: %w", c.id, err)
	}
	c.forgotten.Store(true)
	return nil
}

// discard removes the rest of a Removing container. Each step may be repeated. The record
// goes last: without it nobody could continue.
func (c *Container) discard(ctx context.Context) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	c.awaitNotified()
	if !c.forgotten.Load() {
		if err := c.rt.expunge(ctx, c.id); err != nil {
			return fmt.Errorf("remove container %s: %w", c.id, err)
		}
	}
	// An executor that took over from a dead one may not know them.
	if err := c.removeCgroups(); err != nil {
		return fmt.Errorf("remove container %s: %w", c.id, err)
	}
	c.release()
	if err := c.rt.o.Records.Remove(containerKind, c.id); err != nil {
		return fmt.Errorf("remove container %s: %w", c.id, err)
	}
	if err := os.RemoveAll(c.runDir); err != nil {
		return fmt.Errorf("remove container %s: %w", c.id, err)
	}
	if c.sandbox != nil {
		c.sandbox.disown(c)
	}
	if c.rt.containers.drop(c) {
		c.emit(ContainerRemoved)
	}
	return nil
}

// removeCgroups removes the cgroups that the executor reported or, if it died before that, those
// it was told to create.
func (c *Container) removeCgroups() error {
	dirs := c.status.Load().Cgroups
	if spec := c.record.Load().Config.Spec; len(dirs) == 0 && spec != nil && spec.Linux != nil {
		return c.rt.removeUnreported(c.id, spec.Linux.CgroupsPath)
	}
	return removeCgroups(c.id, dirs)
}

// removeUnreported removes the cgroup of a process of id that an executor was starting when it
// died, before there was a record of it. systemd removes a scope by itself.
func (r *Runtime) removeUnreported(id, cgroup string) error {
	if r.o.SystemdCgroup || !path.IsAbs(cgroup) {
		return nil
	}
	dirs, err := cgroupDirs(cgroup)
	if err != nil {
		return err
	}
	return removeCgroups(id, dirs)
}

// awaitNotified waits until listeners have been notified of the exit of c, if it has ended: they
// are notified of an object's transitions in order, and must find the object in that state.
func (c *Container) awaitNotified() {
	select {
	case <-c.done:
		<-c.notified
	default: // never started
	}
}

// expunge makes the executor forget id, and kill it if it still runs. It is no error if the
// executor does not know it.
func (r *Runtime) expunge(ctx context.Context, id string) error {
	for pause := backoff.New(time.Millisecond, time.Minute); ; {
		err := r.link.again(ctx, wire.MethodDelete, wire.Ref{ID: id}, nil)
		if !errors.Is(err, fault.WrongState) {
			return err
		}
		kill := wire.SignalRequest{ID: id, Signal: int(unix.SIGKILL), All: true}
		if kerr := r.link.again(ctx, wire.MethodSignal, kill, nil); kerr != nil && !errors.Is(kerr, fault.NotFound) {
			err = errors.Join(err, kerr)
		}
		if pause.Wait(ctx) != nil { // it is exiting
			return err
		}
	}
}
