package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A hold is one freeze, of one or more containers.
type hold struct {
	over chan struct{} // closed when it has been undone
}

// freeze is "freeze", see wire.FreezeRequest.
func (x *Executor) freeze(ctx context.Context, from *wire.Conn, req wire.FreezeRequest) error {
	if err := x.readyCRIU(ctx); err != nil {
		return err
	}
	var all []*container
	for _, id := range req.IDs {
		c, err := x.runs(id)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	h := &hold{over: make(chan struct{})}
	if err := x.take(h, all); err != nil {
		return err
	}
	for _, c := range all {
		if err := freezeWhole(c.ref.Cgroups); err != nil {
			return errors.Join(fmt.Errorf("freeze container %s: %w", c.ID, err), x.thaw(wire.ThawRequest{IDs: req.IDs}))
		}
	}
	go func() {
		select {
		case <-from.Done():
			if err := x.thaw(wire.ThawRequest{IDs: req.IDs}); err != nil {
				x.log.Error("containers could not be thawed", "err", err)
			}
		case <-h.over:
		}
	}()
	return nil
}

// take notes that h freezes the containers: all of them, or none.
func (x *Executor) take(h *hold, all []*container) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range all {
		if c.frozen != nil {
			return fault.WrongState.Errorf("container %s is frozen already", c.ID)
		}
	}
	for _, c := range all {
		c.frozen = h
	}
	return nil
}

// isFrozen tells whether somebody keeps c frozen.
func (x *Executor) isFrozen(c *container) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return c.frozen != nil
}

// thaw is "thaw", see wire.ThawRequest.
func (x *Executor) thaw(req wire.ThawRequest) error {
	var errs []error
	ended := false
	if req.Dir != "" {
		var err error
		ended, err = endCRIU(req.Dir)
		errs = append(errs, err)
	}
	for _, id := range req.IDs {
		x.mu.Lock()
		c := x.containers[id]
		x.mu.Unlock()
		if c == nil || c.proc == nil {
			continue // gone; or starting, and never frozen
		}
		c.dumping.Lock() // CRIU freezes it again when it ends
		if err := thawWhole(c.ref.Cgroups); err != nil {
			errs = append(errs, fmt.Errorf("thaw container %s: %w", id, err))
		}
		if ended {
			errs = append(errs, unlock(c.proc.pid))
		}
		x.mu.Lock()
		h := c.frozen
		c.frozen = nil
		if h != nil {
			select {
			case <-h.over:
			default:
				close(h.over)
			}
		}
		x.mu.Unlock()
		c.dumping.Unlock()
	}
	return errors.Join(errs...)
}

// freezePatience bounds how long a cgroup may take to freeze: a process in
// uninterruptible sleep does not, and must not keep the others from running.
const freezePatience = 10 * time.Second

// freezeWhole freezes a cgroup and returns when all in it have stopped.
func freezeWhole(paths map[string]string) error {
	deadline := time.Now().Add(freezePatience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		freeze(paths, true)
		frozen, err := freezerState(paths)
		if err != nil || frozen {
			return err
		}
		if time.Now().After(deadline) {
			return fault.Unavailable.Errorf("its processes have not stopped within %v", freezePatience)
		}
		time.Sleep(pause)
	}
}

// thawWhole undoes freezeWhole. A cgroup that has gone is thawed.
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

// freezerState tells whether all processes of the cgroup have stopped: in v2 by
// the line of cgroup.events, which follows what was written to cgroup.freeze.
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
