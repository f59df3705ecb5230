package oci

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Update changes the resources of a container that was created or runs. What is
// nil in res stays as it is. The container's Config shows the result, which is
// durable.
func (c *Container) Update(ctx context.Context, res *specs.LinuxResources) error {
	st := c.status.Load().State
	switch st {
	case Created:
	case Running:
		data, err := json.Marshal(res)
		if err != nil {
			return fmt.Errorf("encode resources of container %s: %w", c.id, err)
		}
		if err := c.rt.link.again(ctx, wire.MethodUpdate, wire.UpdateRequest{ID: c.id, Resources: data}); err != nil {
			return err
		}
	default:
		return fault.WrongState.Errorf("container %s is %s: cannot update it", c.id, st)
	}
	return c.edit(func(cfg *ContainerConfig) error {
		if now := c.status.Load().State; st == Created && now != Created {
			return fault.WrongState.Errorf("container %s is %s: cannot update it", c.id, now)
		}
		spec := *cfg.Spec
		linux := specs.Linux{}
		if spec.Linux != nil {
			linux = *spec.Linux
		}
		merged, err := merge(linux.Resources, res)
		if err != nil {
			return fmt.Errorf("resources of container %s: %w", c.id, err)
		}
		linux.Resources = merged
		spec.Linux = &linux
		cfg.Spec = &spec
		return nil
	})
}

// merge returns a copy of old with what is set in change. Every field of
// LinuxResources is left out of its JSON when unset, so that decoding one onto
// the other is the merge.
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
