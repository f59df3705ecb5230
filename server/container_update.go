package server

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// UpdateContainerResources changes the limits of a container that has not exited. A field that
// is zero in the request leaves its limit unchanged; the status shows the limits in force. A
// memory limit below the container's usage is refused.
//
// CRI: "If runtime fails to transactionally update the requested resources, an error is
// returned": oci.Apply has then restored the old limits.
func (s *Server) UpdateContainerResources(ctx context.Context, req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if req.Linux == nil {
		return nil, fault.Invalid.Errorf("update of container %s names no resources of Linux", c.ID())
	}
	// Plugins are notified of requests in the order in which these take effect. Updates that plugins
	// want do not wait for that: two requests could wait for each other.
	err = s.tasks.alone(ctx, "requested update of container "+c.ID(), func(ctx context.Context) error {
		change, updated, err := s.notifyUpdate(ctx, c, req.Linux)
		if err != nil {
			return err
		}
		// Each update must see the result of the previous one.
		err = s.tasks.alone(ctx, "update of container "+c.ID(), func(ctx context.Context) error { return s.updateContainer(ctx, c, change) })
		if err == nil {
			updated()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID(), err)
	}
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (s *Server) updateContainer(ctx context.Context, c *oci.Container, change *cri.LinuxContainerResources) error {
	if st := c.Status().State; st >= oci.Exited {
		return fault.WrongState.Errorf("container %s is %s: cannot update it", c.ID(), st)
	}
	rec := *s.index.container(c)
	rec.resources = spec.MergeResources(rec.resources, change)
	limits, err := spec.Resources(rec.resources, s.o.SpecHost)
	if err != nil {
		return err
	}
	apply := oci.Change{Resources: limits}
	if change.OomScoreAdj != 0 {
		adj := max(int(change.OomScoreAdj), s.o.SpecHost.MinOOMScoreAdj)
		apply.OOMScoreAdj = &adj
	}
	return s.index.applyContainer(ctx, c, apply, &rec)
}
