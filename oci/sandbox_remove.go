package oci

import (
	"context"
	"fmt"
	"os"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
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
// except for the name: without it nobody could continue.
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
