package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
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
		err := c.BeginRemove()
		if err == nil {
			return c.discard(ctx)
		}
		if !errors.Is(err, fault.WrongState) {
			return err
		}
	}
	return fault.WrongState.Errorf("container %s is being started: cannot remove it", c.id)
}

// BeginRemove makes a container that does not run Removing: from then on it cannot be started, so
// that the caller may remove its file systems before Remove. It may be repeated. The error is
// fault.WrongState if the container was started and has not ended.
func (c *Container) BeginRemove() error { return c.move(remove, nil) }

// Forget makes the executor forget a Removing container and remove its cgroups: half of Remove,
// which may run while the caller removes other parts of the container.
func (c *Container) Forget(ctx context.Context) error {
	if st := c.status.Load().State; st != Removing {
		return fault.WrongState.Errorf("container %s is %s: cannot forget it", c.id, st)
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
// goes last: without it the removal could not be continued.
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

// sweep removes objects without a record: those whose creation died before the record was
// written, and those whose record was corrupt. It looks only below our own directories and at
// our own executor, never at what others may have created.
func (r *Runtime) sweep(ctx context.Context) {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	infos, err := r.link.list(ctx)
	if err != nil {
		r.log.Error("executor could not be swept", "err", err)
	}
	for _, info := range infos {
		if !r.knows(info.ID) {
			r.swept("container", info.ID, r.expunge(ctx, info.ID))
		}
	}
	for _, id := range unknownDirs(filepath.Join(r.o.State, containerKind), r.containers.has) {
		r.swept("container", id, r.sweepContainer(ctx, id))
	}
	for _, id := range unknownDirs(filepath.Join(r.o.State, sandboxKind), r.sandboxes.has) {
		r.swept("sandbox", id, r.sweepSandbox(ctx, id))
	}
	for _, id := range r.strayNetNS() {
		r.swept("sandbox", id, r.sweepSandbox(ctx, id))
	}
	for _, id := range unknownDirs(filepath.Join(r.o.Root, containerKind), r.containers.has) {
		r.swept("container", id, r.o.Records.Remove(containerKind, id))
	}
	for _, id := range unknownDirs(filepath.Join(r.o.Root, sandboxKind), r.sandboxes.has) {
		r.swept("sandbox", id, errors.Join(r.sweepSandbox(ctx, id), r.o.Records.Remove(sandboxKind, id)))
	}
}

// sweepContainer removes a container without a record; its status names its cgroups.
func (r *Runtime) sweepContainer(ctx context.Context, id string) error {
	dir := filepath.Join(r.o.State, containerKind, id)
	errs := []error{r.expunge(ctx, id)}
	var st containerStatus
	if atomicfile.ReadJSON(filepath.Join(dir, "status.json"), &st) == nil {
		errs = append(errs, removeCgroups(id, st.Cgroups))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// sweepSandbox removes a sandbox without a record. The name of its own cgroup, if it had one,
// follows from its ID.
func (r *Runtime) sweepSandbox(ctx context.Context, id string) error {
	dir := filepath.Join(r.o.State, sandboxKind, id)
	err := errors.Join(
		r.expunge(ctx, id),
		r.host.Unpin(Pins{Dir: dir, NetNS: r.netNSPath(id)}),
		r.host.Cgroup(ownCgroup(id, r.o.SystemdCgroup), false),
	)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (r *Runtime) swept(what, id string, err error) {
	if err != nil {
		r.log.Error("leftover could not be removed", what, id, "err", err)
		return
	}
	r.log.Warn("leftover was removed", what, id)
}

func (r *Runtime) knows(id string) bool { return r.containers.has(id) || r.sandboxes.has(id) }

// has reports whether id is the full ID of an object.
func (s *store[T]) has(id string) bool {
	_, ok := s.exact(id)
	return ok
}

// unknownDirs lists the directories in dir for which known is false.
func unknownDirs(dir string, known func(string) bool) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // nothing there to sweep
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && !known(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}
