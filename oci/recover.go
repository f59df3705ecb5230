package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// What a crash leaves of a container, and what becomes of it:
//
//	directory without record   Create died: swept
//	Created                    nothing ran: kept, if its sandbox is; removed otherwise
//	Starting                   unknown: alive at the executor → Running, else Exited
//	Running, Stopping          was alive: ask the executor, or read exit.json
//	any, but the machine was restarted
//	                           exit.json → Exited with its code, else Exited, Reboot
//	Exited                     kept
//	Removing                   finished
//
// A container that was started is kept also if the record of its sandbox is lost: it runs on, or
// its client wants to know how it ended. It goes when that client removes it.
//
// load does the first half, from disk alone; reconcile does the second, for every new connection
// to an executor, at Open and after a loss.

// reasonReboot is the reason of a container that ended with its kernel.
const reasonReboot = "Reboot"

// load creates the objects of all records. Afterwards each is in a state that reconcile can take
// further.
func (r *Runtime) load() error {
	ids, err := r.o.Records.IDs(sandboxKind)
	if err != nil {
		return fmt.Errorf("load sandboxes: %w", err)
	}
	for _, id := range ids {
		var rec sandboxRecord
		err := r.o.Records.Load(sandboxKind, id, &rec)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err // sweep would remove the objects that were not loaded
		}
		if err != nil {
			r.log.Error("sandbox was not loaded", "sandbox", id, "err", err)
			continue
		}
		r.sandboxes.restore(r.loadSandbox(id, &rec), r.log)
	}
	ids, err = r.o.Records.IDs(containerKind)
	if err != nil {
		return fmt.Errorf("load containers: %w", err)
	}
	for _, id := range ids {
		var rec containerRecord
		err := r.o.Records.Load(containerKind, id, &rec)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err // sweep would remove the objects that were not loaded
		}
		if err != nil {
			r.log.Error("container was not loaded", "container", id, "err", err)
			continue
		}
		c, err := r.loadContainer(id, &rec)
		if err != nil {
			return err
		}
		r.containers.restore(c, r.log)
	}
	return nil
}

// loadContainer determines a container's state as far as the disk tells.
func (r *Runtime) loadContainer(id string, rec *containerRecord) (*Container, error) {
	sb, ok := r.sandboxes.exact(rec.Config.SandboxID)
	if !ok {
		r.log.Warn("container has lost its sandbox", "container", id, "sandbox", rec.Config.SandboxID)
		sb = nil
	}
	c := r.newContainer(id, sb, rec)
	r.clock.Store(max(r.clock.Load(), rec.CreatedAt.UnixNano()))
	if sb != nil {
		sb.restore(c)
	}
	if err := makePrivate(c.runDir); err != nil {
		return nil, fmt.Errorf("make directory of container %s: %w", id, err)
	}

	var st containerStatus
	if err := r.readState(filepath.Join(c.runDir, "status.json"), &st); err != nil {
		// A missing status means that it was never started; the executor knows about any other
		// cause.
		st = containerStatus{}
		if !errors.Is(err, fs.ErrNotExist) {
			r.log.Error("status was unreadable", "container", id, "err", err)
			st.State = Starting
		}
	}
	exit, ended := c.readExit()
	switch {
	case st.State == Removing:
		close(c.settled)
	case ended || st.State == Exited:
		if ended {
			if st.StartedAt.IsZero() && exit.Reason != reasonStartError {
				st.StartedAt = rec.CreatedAt // lost with /run; the nearest time we know
			}
			st.apply(exit)
		}
		st.State = Exited
		close(c.settled)
	case r.o.Rebooted:
		// Whether it was ever started is unknown. It cannot be started any more: its sandbox and
		// its root are gone.
		close(c.settled)
		c.status.Store(&containerStatus{Status: Status{State: Starting, StartedAt: rec.CreatedAt}})
		return c, c.lost(reasonReboot, "the machine was restarted while the container was there")
	case st.State == Running || st.State == Stopping:
		close(c.settled)
		if st.StartTime == 0 {
			st.State = Starting // stopped before its start was settled
			c.settled = make(chan struct{})
		}
	}
	c.orphan.Store(true)
	c.status.Store(&st)
	if st.State >= Exited {
		close(c.done)
		close(c.notified)
	}
	return c, nil
}

// readState reads a file below State. After a reboot it does not exist, even if the directory is on
// a disk.
func (r *Runtime) readState(path string, v any) error {
	if r.o.Rebooted {
		return fs.ErrNotExist
	}
	return atomicfile.ReadJSON(path, v)
}

// readExit returns the content of exit.json, if it exists.
func (c *Container) readExit() (wire.Exit, bool) {
	var e wire.Exit
	data, err := os.ReadFile(c.exitPath())
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if c.rt.o.Rebooted && err != nil && atomicfile.IsPart(data, err) {
		return e, false // as it was not written out
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.rt.log.Error("exit was unreadable", "container", c.id, "err", err)
	}
	e.Reason = cmp.Or(e.Reason, wire.ReasonOf(e.Code, e.OOMKilled))
	return e, err == nil
}

// reconcile brings all objects in line with the answers of a newly connected executor. No call
// is answered before it returns. fault.Unavailable = the executor went away meanwhile: objects
// that it was not asked about are unchanged, and the next one is asked about them.
func (r *Runtime) reconcile(ctx context.Context, conn ExecutorConn) error {
	// In this order no exit is missed; one that is reported twice is handled once.
	if _, err := conn.Call(ctx, wire.MethodSubscribe, nil, nil); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	var infos []wire.Info
	if _, err := conn.Call(ctx, wire.MethodList, nil, &infos); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	known := make(map[string]*wire.Info, len(infos))
	for i := range infos {
		known[infos[i].ID] = &infos[i]
	}
	for _, sb := range r.sandboxes.list() {
		err := sb.reconcile(ctx, conn, known[sb.id])
		if unanswered(ctx, err) {
			return err
		}
		if err != nil {
			r.log.Error("sandbox could not be recovered", "sandbox", sb.id, "err", err)
		}
	}
	for _, c := range r.containers.list() {
		err := c.reconcile(ctx, conn, known[c.id])
		if unanswered(ctx, err) {
			return err
		}
		if err != nil {
			r.log.Error("container could not be recovered", "container", c.id, "err", err)
		}
	}
	return nil
}

// unanswered reports whether err leaves the outcome unknown: the executor went away, or we did
// not wait.
func unanswered(ctx context.Context, err error) bool {
	return err != nil && (errors.Is(err, fault.Unavailable) || ctx.Err() != nil)
}

// reconcile takes c to the state that info reports; nil = the executor does not know it.
func (c *Container) reconcile(ctx context.Context, conn ExecutorConn, info *wire.Info) error {
	switch c.status.Load().State {
	case Created:
		// Nothing ran, unless its status was lost.
		if info == nil && c.sandbox == nil {
			// Its Create could not be undone. It can never start, and finish removes it.
			return c.move(remove, nil)
		}
		if info == nil || !c.orphan.Load() {
			return nil
		}
		if err := c.move(start, nil); err != nil {
			return err
		}
		return c.settle(ctx, conn, info)
	case Starting:
		// Its starter asks by itself, unless it was an earlier daemon.
		if !c.orphan.Load() {
			return nil
		}
		return c.settle(ctx, conn, info)
	case Running, Stopping:
		select {
		case <-c.settled:
		default:
			return nil // Stopping while its Start, which asks by itself, is under way
		}
		switch {
		case info != nil && info.Exit == nil:
			c.fetch(ctx, conn)
			return nil
		case info != nil:
			c.rt.work.Go(func() { c.exit(c.rt.closing, *info.Exit) })
			return nil
		}
		return c.handOver(ctx, conn)
	case Exited:
		if info != nil && info.Exit == nil {
			// Its exit is on disk and has been reported. It must not run on unseen.
			_, err := conn.Call(ctx, wire.MethodSignal, wire.SignalRequest{ID: c.id, Signal: int(unix.SIGKILL), All: true}, nil)
			return err
		}
		return nil
	case Removing:
		return nil // finish, or the call that removes it, continues
	}
	return nil
}

// settle determines the outcome of a start whose caller is gone.
func (c *Container) settle(ctx context.Context, conn ExecutorConn, info *wire.Info) error {
	if !c.orphan.Swap(false) {
		return nil
	}
	if info == nil {
		// The executor may still be working on it, for the daemon that died.
		c.rt.work.Go(func() {
			if err := c.settleLate(c.rt.closing); err != nil {
				c.rt.log.Error("start could not be settled", "container", c.id, "err", err)
			}
		})
		return nil
	}
	defer close(c.settled)
	if info.Exit == nil {
		c.fetch(ctx, conn)
	}
	return c.found(info)
}

// settleLate is settle for a container that the executor does not list, or not yet.
func (c *Container) settleLate(ctx context.Context) error {
	info, err := c.outcome(ctx)
	if err != nil {
		return nil // we are closed; the next Open settles it
	}
	defer close(c.settled)
	if info == nil {
		return c.lost(wire.ReasonUnknown, "the daemon ended while the container was being started")
	}
	if info.Exit == nil {
		if conn, err := c.rt.link.get(ctx); err == nil {
			c.fetch(ctx, conn)
		}
	}
	return c.found(info)
}

// found records that the container ran and, if so, that it has ended.
func (c *Container) found(info *wire.Info) error {
	if err := c.ran(info.RunReply); err != nil {
		return err
	}
	if info.Exit != nil {
		c.rt.work.Go(func() { c.exit(c.rt.closing, *info.Exit) })
	}
	return nil
}

// handOver gives a container whose executor is gone to the new one. If it has ended meanwhile,
// the new executor reports its exit.
func (c *Container) handOver(ctx context.Context, conn ExecutorConn) error {
	if exit, ended := c.readExit(); ended {
		c.rt.work.Go(func() { c.exit(c.rt.closing, exit) })
		return nil
	}
	st := c.status.Load()
	files, err := c.lend()
	if err == nil && len(files) == 0 {
		// We are new as well. At most the process can be found again; if it cannot, the executor
		// reports that as its exit.
		files = c.rt.find(st.Pid, st.StartTime)
	}
	defer wire.CloseAll(files)
	if err == nil {
		_, err = conn.Call(ctx, wire.MethodAdopt, wire.AdoptRequest{
			Settings: c.settings(),
			RunReply: wire.RunReply{Pid: st.Pid, StartTime: st.StartTime, StartedAt: st.StartedAt, Cgroups: st.Cgroups},
			OOMKills: st.OOMKills,
		}, nil, files...)
	}
	if err == nil {
		c.rt.log.Info("container was handed over", "container", c.id, "pid", st.Pid)
		return nil
	}
	if unanswered(ctx, err) {
		return fmt.Errorf("hand over container %s: %w", c.id, err)
	}
	// It can have no parent: its remaining processes must not run unseen.
	for _, f := range files {
		if f.Name() == wire.FDPid {
			_ = unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0)
		}
	}
	if kerr := removeCgroups(c.id, st.Cgroups); kerr != nil {
		c.rt.log.Error("cgroup could not be removed", "container", c.id, "err", kerr)
	}
	return c.lost(wire.ReasonUnknown, "the executor died, and the container could not be handed over: "+err.Error())
}
