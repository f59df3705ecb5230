package oci

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Remove removes everything left of a sandbox that is NotReady, or whose creation the caller
// gave up. Its containers must be gone (fault.WrongState). An interrupted Remove leaves it
// Removing; the next one, or the next Open, continues.
func (sb *Sandbox) Remove(ctx context.Context) error {
	if n := len(sb.Containers()); n > 0 {
		return fault.WrongState.Errorf("sandbox %s has %d containers: cannot remove it", sb.id, n)
	}
	if _, err := sb.move(sandboxRemove, nil); err != nil {
		return err
	}
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	return sb.discard(ctx)
}

// discard removes the rest of a Removing sandbox. Each step may be repeated. The record goes last
// except for the name: without it the removal could not be continued.
func (sb *Sandbox) discard(ctx context.Context) error {
	sb.counters.close()
	if err := sb.Unpin(ctx); err != nil {
		return err
	}
	if sb.Config().CgroupParent == "" {
		// Of either driver: the configuration may have changed since.
		for _, viaSystemd := range []bool{false, true} {
			if err := sb.rt.host.Cgroup(ownCgroup(sb.id, viaSystemd), false); err != nil {
				return fmt.Errorf("remove sandbox %s: %w", sb.id, err)
			}
		}
	}
	if err := os.RemoveAll(sb.runDir); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", sb.id, err)
	}
	if err := sb.rt.o.Records.Remove(sandboxKind, sb.id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", sb.id, err)
	}
	if sb.rt.sandboxes.drop(sb) {
		sb.emit(SandboxRemoved)
	}
	return nil
}

// BeginStop makes the sandbox Stopping: from then on it adopts and starts no container, so that
// Containers is complete. It may be repeated; a NotReady sandbox stays NotReady.
func (sb *Sandbox) BeginStop() error {
	_, err := sb.move(sandboxStop, nil)
	return err
}

// Unpin ends the sandbox's init or its shim and removes its namespaces and its shm. It may be repeated. Once
// begun, it completes even if the caller gives up.
func (sb *Sandbox) Unpin(ctx context.Context) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	errs := []error{sb.RemoveStandIn()}
	if sb.Config().SharedPID {
		// The end of its first process ends all others in the PID namespace.
		errs = append(errs, sb.endInit(ctx))
	}
	errs = append(errs, sb.EndShim(ctx), sb.rt.host.Unpin(sb.pins()))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unpin sandbox %s: %w", sb.id, err)
	}
	return nil
}

// endInit ends the sandbox's own process.
func (sb *Sandbox) endInit(ctx context.Context) error {
	err := sb.rt.expunge(ctx, sb.id)
	if err == nil && len(sb.status.Load().Cgroups) == 0 {
		err = sb.rt.removeUnreported(sb.id, initCgroup(sb.CgroupParent(), sb.id, false))
	}
	sb.release()
	return err
}

// hasInit reports whether the sandbox has a process of its own: an init, or what its shim runs.
func (sb *Sandbox) hasInit() bool {
	cfg := sb.record.Load().Config
	return cfg.SharedPID || cfg.Shim != nil
}

// Stopped makes a Stopping sandbox NotReady. It may be repeated.
func (sb *Sandbox) Stopped() error {
	changed, err := sb.move(sandboxStopped, nil)
	if changed {
		sb.emit(SandboxStopped)
	}
	return err
}

// podInitEnded records that the sandbox's init has ended: without its first process a PID
// namespace accepts no other.
func (sb *Sandbox) podInitEnded(exit *wire.Exit) {
	if sb.Config().Shim == nil {
		sb.broken("init of sandbox ended")
		return
	}
	why := "container of sandbox ended"
	if exit != nil && exit.Message != "" {
		why += ": " + exit.Message
	}
	sb.broken(why)
}

// pinned reports whether the namespaces that the sandbox was given are still pinned.
func (sb *Sandbox) pinned() bool {
	pins := sb.pins()
	if sb.Config().SharedPID {
		pins.Pid = sb.status.Load().Pid
	}
	return sb.rt.host.Pinned(pins)
}

// broken makes the sandbox Stopping, because it cannot be Ready any more; a caller who sees that
// stops and replaces it.
func (sb *Sandbox) broken(why string) {
	if sb.State() > SandboxReady {
		return // that was intended
	}
	sb.rt.log.Warn(why, "sandbox", sb.id)
	if err := sb.BeginStop(); err != nil {
		sb.rt.log.Error("sandbox could not be stopped", "sandbox", sb.id, "err", err)
	}
	sb.emit(SandboxBroken)
}
