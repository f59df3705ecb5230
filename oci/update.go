package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A Change is a change to a container by Apply. Nil fields change nothing.
type Change struct {
	Resources   *specs.LinuxResources // its nil fields change nothing, either
	OOMScoreAdj *int                  // of all its processes
	Extra       []byte                // what Extra returns
}

// applyTime bounds a change, for which the executor may have to wait for systemd or for
// an engine.
const applyTime = 2 * time.Minute

// Apply changes a container that was created or runs, atomically, one change after another. The
// container's Config shows the result, which is durable.
//
// A change abandoned by ctx continues: the executor may be about to make it, or to refuse it,
// and the record has to say which.
func (c *Container) Apply(ctx context.Context, ch Change) error {
	select {
	case c.applying <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	result := make(chan error, 1)
	c.rt.work.Go(func() {
		defer func() { <-c.applying }()
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTime)
		defer cancel()
		err := c.apply(own, ch)
		result <- err
		if err != nil && ctx.Err() != nil {
			c.rt.log.WarnContext(ctx, "change failed after its caller had left", "container", c.id, "err", err)
		}
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// apply does the work of Apply, one call at a time.
//
// The record is written first: after a crash before the kernel has the change, Resources
// corrects the record by the kernel's values, while an unrecorded change would be undone by the
// next one.
func (c *Container) apply(ctx context.Context, ch Change) (err error) {
	st := c.status.Load().State
	if st != Created && st != Running {
		return fault.WrongState.Errorf("container %s is %s: cannot update it", c.id, st)
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	var was ContainerConfig
	err = c.edit(func(cfg *ContainerConfig) error {
		if now := c.status.Load().State; st == Created && now != Created {
			return fault.WrongState.Errorf("container %s is %s: cannot update it", c.id, now)
		}
		was = *cfg
		return ch.record(cfg)
	})
	if err != nil || st == Created {
		return err
	}
	steps.Add("record", func() error {
		err := c.edit(func(cfg *ContainerConfig) error {
			cfg.Spec = was.Spec
			if ch.Extra != nil {
				cfg.Extra = was.Extra
			}
			return nil
		})
		if errors.Is(err, fault.WrongState) {
			return nil // it is being removed
		}
		return err
	})
	req := wire.UpdateRequest{ID: c.id, OOMScoreAdj: ch.OOMScoreAdj}
	if ch.Resources != nil {
		if req.Resources, err = json.Marshal(ch.Resources); err != nil {
			return fmt.Errorf("encode resources of container %s: %w", c.id, err)
		}
	}
	return c.notRunning("update", c.rt.link.again(ctx, wire.MethodUpdate, req, nil))
}

// record writes the change into cfg. What cfg points to is shared, so it is copied.
func (ch Change) record(cfg *ContainerConfig) error {
	spec := *cfg.Spec
	if ch.Resources != nil {
		linux := specs.Linux{}
		if spec.Linux != nil {
			linux = *spec.Linux
		}
		merged, err := merge(linux.Resources, ch.Resources)
		if err != nil {
			return fmt.Errorf("resources of container %s: %w", cfg.ID, err)
		}
		linux.Resources = merged
		spec.Linux = &linux
	}
	if ch.OOMScoreAdj != nil && spec.Process != nil {
		process := *spec.Process
		process.OOMScoreAdj = ch.OOMScoreAdj
		spec.Process = &process
	}
	cfg.Spec = &spec
	if ch.Extra != nil {
		cfg.Extra = ch.Extra
	}
	return nil
}

// merge returns a copy of old with the set fields of change. The JSON of LinuxResources omits
// unset fields, so decoding one onto the other merges them.
func merge(old, change *specs.LinuxResources) (*specs.LinuxResources, error) {
	merged := &specs.LinuxResources{}
	for _, res := range []*specs.LinuxResources{old, change} {
		if res == nil {
			continue
		}
		data, err := json.Marshal(res)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, merged); err != nil {
			return nil, err
		}
	}
	return merged, nil
}
