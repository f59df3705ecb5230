package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// BeginStop makes the sandbox Stopping: from here on it adopts no container and
// starts none, so that Containers is complete. It may be repeated; a sandbox
// that is NotReady stays so.
func (sb *Sandbox) BeginStop() error {
	_, err := sb.move(sandboxStop, nil)
	return err
}

// Unpin ends the sandbox's init and takes its namespaces and its shm away. It
// may be repeated. It does not wait for the caller: once begun, it is done.
func (sb *Sandbox) Unpin(ctx context.Context) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	var errs []error
	if sb.Config().SharedPID {
		errs = append(errs, sb.endInit(ctx))
	}
	errs = append(errs, sb.rt.host.Unpin(sb.runDir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unpin sandbox %s: %w", sb.id, err)
	}
	return nil
}

// endInit kills the init, and with it all that is left in its PID namespace.
func (sb *Sandbox) endInit(ctx context.Context) error {
	err := sb.rt.link.again(ctx, wire.MethodSignal, wire.SignalRequest{ID: sb.id, Signal: int(unix.SIGKILL)})
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	for wait := time.Millisecond; ; wait *= 2 {
		err := sb.rt.link.again(ctx, wire.MethodDelete, wire.Ref{ID: sb.id})
		if err == nil {
			break
		}
		if !errors.Is(err, fault.WrongState) { // it is on its way out
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
	sb.release()
	return nil
}

// Stopped makes a sandbox that is Stopping NotReady. It may be repeated.
func (sb *Sandbox) Stopped() error {
	changed, err := sb.move(sandboxStopped, nil)
	if changed {
		sb.emit(SandboxStopped)
	}
	return err
}

// podInitEnded: without its first process a PID namespace takes no other. The
// sandbox cannot be Ready any more; whoever sees that stops and replaces it.
func (sb *Sandbox) podInitEnded() {
	if sb.State() != SandboxReady {
		return
	}
	sb.rt.log.Warn("init of sandbox ended", "sandbox", sb.id)
	if err := sb.BeginStop(); err != nil {
		sb.rt.log.Error("sandbox could not be stopped", "sandbox", sb.id, "err", err)
	}
}
