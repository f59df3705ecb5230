package oci

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A container that does not die (its processes wait for a disk, say) gets SIGKILL again after
// killRetry, twice that, and so on up to killRetryMax.
const (
	killRetry    = 500 * time.Millisecond
	killRetryMax = 30 * time.Second
)

// Stop asks the container to exit with sig, kills it with all of its processes once grace has
// passed, and returns when its exit is recorded. A grace of 0 or less kills at once. Stopping a
// container that is not alive is no error.
//
// Stops may overlap: sig is sent once, and the earliest deadline counts. A Stop abandoned by ctx
// still kills when its grace is over.
func (c *Container) Stop(ctx context.Context, sig unix.Signal, grace time.Duration) error {
	err := c.move(stop, nil)
	if errors.Is(err, fault.WrongState) {
		return nil // Created, Exited or Removing: nothing is alive
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	first, at := c.killAt.IsZero(), time.Now().Add(max(grace, 0))
	if first || at.Before(c.killAt) {
		c.killAt = at
	}
	c.mu.Unlock()
	if first {
		c.rt.work.Go(func() { c.terminate(c.rt.closing, sig) })
	} else {
		poke.Wake(c.stopAgain)
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// terminate does the work of all Stops: a container that does not die may be stopped again and
// again for days. It ends with the container, or with ctx.
func (c *Container) terminate(ctx context.Context, sig unix.Signal) {
	settled := c.settled // a start in flight can only be killed
	for {
		c.mu.Lock()
		left := time.Until(c.killAt)
		c.mu.Unlock()
		if left <= 0 {
			break
		}
		select {
		case <-settled:
			settled = nil
			c.signal(ctx, sig, false)
		case <-c.stopAgain:
		case <-time.After(left):
		case <-c.done:
			return
		case <-ctx.Done():
			return
		}
	}
	for pause := backoff.New(killRetry, killRetryMax); ; {
		c.signal(ctx, unix.SIGKILL, true)
		select {
		case <-c.stopAgain: // another Stop need not wait for the next attempt
		case <-c.done:
			return
		case <-ctx.Done():
			return
		case <-time.After(pause.Next()):
		}
	}
}

// signal signals the container's init, or all of its processes. No caller waits for the result, so
// an error is logged.
func (c *Container) signal(ctx context.Context, sig unix.Signal, all bool) {
	select {
	case <-c.done:
		return
	default:
	}
	err := c.rt.link.again(ctx, wire.MethodSignal, wire.SignalRequest{ID: c.id, Signal: int(sig), All: all}, nil)
	if err != nil && ctx.Err() == nil {
		c.rt.log.WarnContext(ctx, "container could not be signalled", "container", c.id, "signal", int(sig), "err", err)
	}
}
