package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/limits"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A freezeOp is one freeze, of one or more containers.
type freezeOp struct {
	over chan struct{} // closed when it has been thawed
}

func (x *Executor) freeze(ctx context.Context, from *wire.Conn, req wire.FreezeRequest) error {
	for _, id := range req.IDs { // before any is stopped
		c, err := x.table.runs(id)
		if err == nil {
			err = c.runtime.CanCheckpoint(ctx)
		}
		if err != nil {
			return err
		}
	}
	x.gate.Begin()
	defer x.gate.End()
	op, err := x.table.freezeAll(ctx, req.IDs)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-from.Done():
			if err := x.table.thawOp(req.IDs, op); err != nil {
				x.log.Error("containers could not be thawed", "err", err)
			}
		case <-op.over:
		}
	}()
	return nil
}

// freezeAll freezes the containers, all or none. If ctx ends first, or they are thawed
// meanwhile, it fails, and none stays frozen.
func (t *table) freezeAll(ctx context.Context, ids []string) (_ *freezeOp, err error) {
	var all []*container
	for _, id := range ids {
		c, err := t.runs(id)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	op := &freezeOp{over: make(chan struct{})}
	if err := t.take(op, all); err != nil {
		return nil, err
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	steps.Add("freeze", func() error { return t.thawOp(ids, op) })
	for _, c := range all {
		if err := t.freezeWhole(ctx, op, c); err != nil {
			return nil, fmt.Errorf("freeze container %s: %w", c.ID, err)
		}
	}
	return op, ctx.Err() // its caller may have thawed them before they were frozen
}

// take records that op freezes the containers: all of them, or none.
func (t *table) take(op *freezeOp, all []*container) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range all {
		if c.frozen != nil {
			return fault.WrongState.Errorf("container %s is frozen already", c.ID)
		}
	}
	for _, c := range all {
		c.frozen = op
	}
	return nil
}

// isFrozen reports whether a freeze keeps c frozen.
func (t *table) isFrozen(c *container) bool { return t.freezeOf(c) != nil }

// freezeOf returns the freeze that keeps c frozen, or nil.
func (t *table) freezeOf(c *container) *freezeOp {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.frozen
}

func (x *Executor) thaw(req wire.ThawRequest) error {
	ended := false
	var err error
	if req.Dir != "" {
		ended, err = runtime.EndCRIU(req.Dir)
	}
	return errors.Join(err, x.table.thawAll(req.IDs, nil, ended))
}

// thawOp thaws those of the containers that op keeps frozen, and leaves those of other freezes
// alone.
func (t *table) thawOp(ids []string, op *freezeOp) error { return t.thawAll(ids, op, false) }

func (t *table) thawAll(ids []string, only *freezeOp, criu bool) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, t.thawOne(id, only, criu))
	}
	return errors.Join(errs...)
}

// thawOne thaws a container, unless only is not nil and another freeze keeps it frozen. criu is
// set if a CRIU at work was killed.
func (t *table) thawOne(id string, only *freezeOp, criu bool) error {
	c := t.get(id)
	if c == nil || c.proc == nil {
		return nil // gone; or starting, and never frozen
	}
	c.dumping.Lock() // CRIU freezes it again when it exits
	defer c.dumping.Unlock()
	c.freezing.Lock()
	defer c.freezing.Unlock()
	op := t.freezeOf(c)
	if only != nil && op != only {
		return nil
	}
	var errs []error
	if err := c.thaw(); err != nil {
		errs = append(errs, fmt.Errorf("thaw container %s: %w", id, err))
	}
	if criu {
		errs = append(errs, runtime.UnlockNetwork(c.proc, runtime.UnlockTime))
	}
	t.mu.Lock()
	c.frozen = nil
	if op != nil {
		select {
		case <-op.over:
		default:
			close(op.over)
		}
	}
	t.mu.Unlock()
	return errors.Join(errs...)
}

func (c *container) thaw() error {
	if c.task != nil {
		return c.task.Resume()
	}
	return proc.Thaw(c.ref.Cgroups)
}

// freezePatience bounds how long a cgroup may take to freeze: a process in uninterruptible sleep
// does not freeze, and must not keep the others stopped.
const freezePatience = 10 * time.Second

// freezeWhole freezes c's cgroup for op, when no exec is being started in it any more, and returns
// when all its processes have stopped. It does nothing once op is over.
func (t *table) freezeWhole(ctx context.Context, op *freezeOp, c *container) error {
	if err := t.awaitEntered(ctx, c, func() bool { return t.freezeOf(c) == op }); err != nil {
		return err
	}
	try := func() (frozen bool, err error) {
		c.freezing.Lock()
		defer c.freezing.Unlock()
		if t.freezeOf(c) != op {
			return false, fault.WrongState.Errorf("it was thawed meanwhile")
		}
		if c.task != nil {
			return true, c.task.Pause(ctx)
		}
		proc.Freeze(c.ref.Cgroups, true)
		return proc.Frozen(c.ref.Cgroups)
	}
	return repeat(ctx, try, func() error {
		return fault.Unavailable.Errorf("its processes have not stopped within %v", freezePatience)
	})
}

// repeat calls try until it returns true or an error. If ctx ends first, it returns why; after
// freezePatience it returns the error of late.
func repeat(ctx context.Context, try func() (done bool, err error), late func() error) error {
	deadline := time.NewTimer(freezePatience)
	defer deadline.Stop()
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		if done, err := try(); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return late()
		case <-time.After(pause.Next()):
		}
	}
}

// thawSoon bounds how long an exec waits for a frozen cgroup: a change of limits freezes one for
// milliseconds (cgroup v1).
const thawSoon = time.Second

// enter is called before an exec is started in c, and leave after that. Meanwhile c is not frozen
// or dumped: the exec would stop half-started. On cgroup v2 libcontainer forks it in c's cgroup,
// where it would halt the executor, too (see endChildren); another process that freezes the cgroup
// can still do that, until it is thawed. The error is fault.WrongState if c is frozen or being
// dumped.
func (t *table) enter(ctx context.Context, c *container) (leave func(), err error) {
	for deadline := time.Now().Add(thawSoon); ; time.Sleep(5 * time.Millisecond) {
		t.mu.Lock()
		frozen, dumped := c.frozen != nil, c.dumped
		open := !frozen && !dumped
		if open {
			c.entering++
		}
		t.mu.Unlock()
		leave := func() { t.edit(func() { c.entering-- }) }
		if open && !proc.Freezing(c.ref.Cgroups) {
			return leave, nil
		}
		if open {
			leave()
		}
		switch {
		case dumped && time.Now().After(deadline):
			return nil, fault.WrongState.Errorf("container %s is being checkpointed", c.ID)
		case frozen || time.Now().After(deadline):
			return nil, fault.WrongState.Errorf("container %s is frozen", c.ID)
		case ctx.Err() != nil:
			return nil, proc.GivenUp(ctx, "exec in container "+c.ID)
		}
	}
}

// beginDump keeps execs from being started in c until end is called, as a freeze does. The caller
// holds c.dumping.
func (t *table) beginDump(ctx context.Context, c *container) (end func(), err error) {
	end = func() { t.edit(func() { c.dumped = false }) }
	t.edit(func() { c.dumped = true })
	if err := t.awaitEntered(ctx, c, func() bool { return true }); err != nil {
		end()
		return nil, fmt.Errorf("checkpoint container %s: %w", c.ID, err)
	}
	return end, nil
}

// awaitEntered waits for the execs that are being started in c, as long as wanted returns true; the
// caller has seen to it that no other enters.
func (t *table) awaitEntered(ctx context.Context, c *container, wanted func() bool) error {
	n := 0
	return repeat(ctx, func() (bool, error) {
		t.edit(func() { n = c.entering })
		if !wanted() {
			return false, fault.WrongState.Errorf("it was thawed meanwhile")
		}
		return n == 0, nil
	}, func() error {
		return fault.Unavailable.Errorf("%d execs are still being started in it after %v", n, freezePatience)
	})
}

func (x *Executor) checkpoint(ctx context.Context, req wire.CheckpointRequest) error {
	c, err := x.table.runs(req.ID)
	if err != nil {
		return err
	}
	if err := c.runtime.CanCheckpoint(ctx); err != nil {
		return err
	}
	x.gate.Begin()
	defer x.gate.End()
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
	return c.runtime.Checkpoint(ctx, req.Dir, c.proc)
}

func (x *Executor) restore(ctx context.Context, from *wire.Conn, req wire.RestoreRequest) (*wire.RunReply, []*os.File, error) {
	spec, err := specOf(req.RunRequest)
	if err != nil {
		return nil, nil, err
	}
	if req.Engine != "" {
		return nil, nil, fault.Invalid.Errorf("container %s is for %s: no OCI runtime is asked to restore", req.ID, req.Engine)
	}
	if req.Shim == nil {
		if err := x.runtimes.CRIU.Ready(ctx); err != nil {
			return nil, nil, err
		}
	}
	reply, files, err := x.create(ctx, from, settings{Settings: req.Settings}, spec, req.RunRequest, &runtime.Restore{Context: ctx, Dir: req.Dir})
	if err != nil || spec.Process.OOMScoreAdj == nil || len(reply.Cgroups) == 0 {
		return reply, files, err
	}
	// CRIU restores the previous limits of the processes.
	if serr := make(limits.Scores).Replace(reply.Cgroups, *spec.Process.OOMScoreAdj); serr != nil {
		x.log.Warn("oom_score_adj of a restored container is not as requested", "container", req.ID, "err", serr)
	}
	return reply, files, nil
}
