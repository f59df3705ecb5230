package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A freezeOp is one freeze, of one or more containers.
type freezeOp struct {
	over chan struct{} // closed when it has been thawed
}

// freeze serves wire.FreezeRequest.
func (x *Executor) freeze(ctx context.Context, from *wire.Conn, req wire.FreezeRequest) error {
	if err := x.criu.ready(ctx); err != nil {
		return err
	}
	x.gate.begin()
	op, err := x.table.freezeAll(ctx, req.IDs)
	x.gate.end()
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
func (t *table) freezeAll(ctx context.Context, ids []string) (*freezeOp, error) {
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
	for _, c := range all {
		if err := t.freezeWhole(ctx, op, c); err != nil {
			return nil, errors.Join(fmt.Errorf("freeze container %s: %w", c.ID, err), t.thawOp(ids, op))
		}
	}
	if err := ctx.Err(); err != nil { // its caller may have thawed them before they were frozen
		return nil, errors.Join(err, t.thawOp(ids, op))
	}
	return op, nil
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

// thaw serves wire.ThawRequest.
func (x *Executor) thaw(req wire.ThawRequest) error {
	ended := false
	var err error
	if req.Dir != "" {
		ended, err = endCRIU(req.Dir)
	}
	errs := []error{err}
	for _, id := range req.IDs {
		errs = append(errs, x.table.thawOne(id, nil, ended))
	}
	return errors.Join(errs...)
}

// thawOp thaws those of the containers that op keeps frozen, and leaves those of other freezes
// alone.
func (t *table) thawOp(ids []string, op *freezeOp) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, t.thawOne(id, op, false))
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
	if err := thawWhole(c.ref.Cgroups); err != nil {
		errs = append(errs, fmt.Errorf("thaw container %s: %w", id, err))
	}
	if criu {
		errs = append(errs, unlock(c.proc, unlockTime))
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
		freeze(c.ref.Cgroups, true)
		return freezerState(c.ref.Cgroups)
	}
	deadline := time.NewTimer(freezePatience)
	defer deadline.Stop()
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		frozen, err := try()
		if err != nil || frozen {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fault.Unavailable.Errorf("its processes have not stopped within %v", freezePatience)
		case <-time.After(pause.Next()):
		}
	}
}

// thawWhole undoes freeze. A cgroup that is gone counts as thawed.
func thawWhole(paths map[string]string) error {
	freeze(paths, false)
	for range 100 {
		frozen, err := freezerState(paths)
		if errors.Is(err, os.ErrNotExist) || err == nil && !frozen {
			return nil
		}
		freeze(paths, false)
		time.Sleep(time.Millisecond)
	}
	return fault.Internal.Errorf("it stays frozen")
}

// thawSoon bounds how long an exec waits for a frozen cgroup: a change of limits freezes one for
// milliseconds (cgroup v1).
const thawSoon = time.Second

// enter is called before an exec is started in c, and leave after that. Meanwhile nobody freezes c
// or dumps it: the exec would stop half-started. On cgroup v2 libcontainer forks it in c's cgroup,
// where it would halt the executor, too (see endChildren); that can still be done by somebody else
// who freezes the cgroup, until it is thawed. The error is fault.WrongState if c is frozen or being
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
		leave := func() {
			t.mu.Lock()
			c.entering--
			t.mu.Unlock()
		}
		if open && !freezing(c.ref.Cgroups) {
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
			return nil, givenUp(ctx, "exec in container "+c.ID)
		}
	}
}

// beginDump keeps execs from being started in c until end is called, as a freeze does. The caller
// holds c.dumping.
func (t *table) beginDump(ctx context.Context, c *container) (end func(), err error) {
	set := func(dumped bool) {
		t.mu.Lock()
		c.dumped = dumped
		t.mu.Unlock()
	}
	set(true)
	if err := t.awaitEntered(ctx, c, func() bool { return true }); err != nil {
		set(false)
		return nil, fmt.Errorf("checkpoint container %s: %w", c.ID, err)
	}
	return func() { set(false) }, nil
}

// awaitEntered waits for the execs that are being started in c, as long as wanted returns true; the
// caller has seen to it that no other enters.
func (t *table) awaitEntered(ctx context.Context, c *container, wanted func() bool) error {
	deadline := time.NewTimer(freezePatience)
	defer deadline.Stop()
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		t.mu.Lock()
		n := c.entering
		t.mu.Unlock()
		switch {
		case !wanted():
			return fault.WrongState.Errorf("it was thawed meanwhile")
		case n == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fault.Unavailable.Errorf("%d execs are still being started in it after %v", n, freezePatience)
		case <-time.After(pause.Next()):
		}
	}
}

// freezing reports whether the cgroup is frozen or about to be.
func freezing(paths map[string]string) bool {
	if dir := paths["freezer"]; dir != "" {
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return err == nil && string(state) != "THAWED\n"
	}
	asked, err := os.ReadFile(filepath.Join(paths[""], "cgroup.freeze"))
	if err == nil && string(asked) == "1\n" {
		return true
	}
	frozen, err := freezerState(paths) // its pod's cgroup may be frozen
	return err == nil && frozen
}

// freezerState reports whether all processes of the cgroup have stopped: on v2 from a line of
// cgroup.events, which follows a write to cgroup.freeze.
func freezerState(paths map[string]string) (frozen bool, err error) {
	file, want := filepath.Join(paths["freezer"], "freezer.state"), "FROZEN"
	if paths["freezer"] == "" {
		file, want = filepath.Join(paths[""], "cgroup.events"), "frozen 1"
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return false, fault.WrongState.Errorf("its cgroup cannot be frozen: %w", err)
	}
	return bytes.Contains(data, []byte(want)), nil
}
