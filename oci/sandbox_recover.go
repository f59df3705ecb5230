package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/crisp-cri/crisp/oci/wire"
)

// What a crash leaves of a sandbox, and what becomes of it:
//
//	directory without record   swept
//	Creating                   not continued: unpinned, NotReady, to be stopped and removed
//	Ready                      kept if its namespaces are there, else NotReady
//	Stopping                   kept: stopping it again does the rest
//	any, but the machine was restarted
//	                           NotReady; its record still has its network
//	Removing                   finished

// loadSandbox determines a sandbox's state as far as the disk tells.
func (r *Runtime) loadSandbox(id string, rec *sandboxRecord) *Sandbox {
	sb := r.newSandbox(id, rec)
	if beside := filepath.Join(sb.runDir, "ns", "net"); pinnedAt(beside) {
		sb.netNS = beside // by a release that kept all pins there
	}
	r.clock.Store(max(r.clock.Load(), rec.CreatedAt.UnixNano()))
	var st sandboxStatus
	err := r.readState(filepath.Join(sb.runDir, "status.json"), &st)
	switch {
	case r.o.Rebooted:
		st.State = SandboxNotReady
	case err != nil:
		if !errors.Is(err, fs.ErrNotExist) {
			r.log.Error("status was unreadable", "sandbox", id, "err", err)
		}
		st = sandboxStatus{State: SandboxCreating}
		if rec.Ready {
			st.State = SandboxReady // finish checks whether that is true
		}
	}
	sb.status.Store(&st)
	return sb
}

// reconcile finds the sandbox's init again, or gives it to a new executor.
func (sb *Sandbox) reconcile(ctx context.Context, conn ExecutorConn, info *wire.Info) error {
	st := sb.status.Load()
	if st.Pid == 0 || st.State >= SandboxNotReady {
		return nil
	}
	if info != nil && info.Exit != nil {
		sb.podInitEnded(info.Exit)
		return nil
	}
	if info != nil {
		return sb.fetch(ctx, conn)
	}
	files, err := sb.lend()
	if err == nil && len(files) == 0 {
		files = sb.rt.find(st.Pid, st.StartTime)
	}
	defer wire.CloseAll(files)
	if err == nil {
		_, err = conn.Call(ctx, wire.MethodAdopt, wire.AdoptRequest{
			Settings: wire.Settings{ID: sb.id}, RunReply: wire.RunReply{Pid: st.Pid, StartTime: st.StartTime, Cgroups: st.Cgroups},
		}, nil, files...)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("hand over init of sandbox %s: %w", sb.id, err)
	if !unanswered(ctx, err) {
		sb.podInitEnded(nil)
	}
	return err
}

// fetch gets and keeps the executor's descriptors of the sandbox's init.
func (sb *Sandbox) fetch(ctx context.Context, conn ExecutorConn) error {
	files, err := conn.Call(ctx, wire.MethodDescriptors, wire.Ref{ID: sb.id}, nil)
	if err != nil {
		return fmt.Errorf("fetch pidfd of sandbox %s: %w", sb.id, err)
	}
	sb.keep(files)
	return nil
}

// finishPatience is how long Open waits for removals: a disk that hangs delays each by some
// seconds, and all of them together would exceed a service's start timeout.
const finishPatience = 10 * time.Second

// finish completes, after Open has reached the executor, the work that a dead daemon left half
// done, and sweeps files without an owner. Failures are logged: the next Open tries again, and
// none of them keeps the daemon from serving.
func (r *Runtime) finish(ctx context.Context) {
	removed := make(chan struct{})
	r.work.Go(func() {
		defer close(removed)
		r.finishRemovals(r.closing)
	})
	select {
	case <-removed:
	case <-ctx.Done():
	case <-time.After(finishPatience):
		r.log.Warn("removals take long and continue in the background")
	}
	for _, sb := range r.sandboxes.list() {
		if sb.State() == SandboxRemoving {
			continue
		}
		if err := sb.finish(ctx); err != nil {
			r.log.Error("sandbox could not be recovered", "sandbox", sb.id, "err", err)
		}
	}
	r.sweep(ctx)
}

// finishRemovals removes what a dead daemon was removing, until ctx ends.
func (r *Runtime) finishRemovals(ctx context.Context) {
	for _, c := range r.containers.list() {
		if c.status.Load().State != Removing || ctx.Err() != nil {
			continue
		}
		if err := c.discard(ctx); err != nil {
			r.log.Error("removal could not be finished", "container", c.id, "err", err)
		}
	}
	for _, sb := range r.sandboxes.list() {
		if sb.State() != SandboxRemoving || ctx.Err() != nil {
			continue
		}
		if err := sb.Remove(ctx); err != nil {
			r.log.Error("removal could not be finished", "sandbox", sb.id, "err", err)
		}
	}
}

func (sb *Sandbox) finish(ctx context.Context) error {
	if err := makePrivate(sb.runDir); err != nil {
		return err
	}
	switch sb.State() {
	case SandboxReady:
		if sb.pinned() {
			return nil
		}
		sb.rt.log.Warn("namespaces of sandbox were missing", "sandbox", sb.id)
	case SandboxCreating:
	default:
		return nil
	}
	err := errors.Join(sb.BeginStop(), sb.Unpin(ctx))
	if err != nil {
		return err
	}
	return sb.Stopped()
}
