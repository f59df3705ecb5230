package server

import (
	"context"
	"errors"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// UpdateContainerResources changes the limits of a container that has not
// exited. What is zero in the request stays as it is; the status shows what is in
// force.
//
// CRI: "If runtime fails to transactionally update the requested resources, an
// error is returned": then the old limits are in force again.
func (s *Server) UpdateContainerResources(ctx context.Context, req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if req.Linux == nil {
		return nil, fault.Invalid.Errorf("update of container %s names no resources of Linux", c.ID())
	}
	change, updated, err := s.tellUpdate(ctx, c, req.Linux)
	if err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID(), err)
	}
	// One after the other: each must see what the one before it made.
	err = s.tasks.alone(ctx, "update of container "+c.ID(), func(ctx context.Context) error { return s.updateContainer(ctx, c, change) })
	if err != nil {
		return nil, err
	}
	updated()
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (s *Server) updateContainer(ctx context.Context, c *oci.Container, change *cri.LinuxContainerResources) (err error) {
	if st := c.Status().State; st >= oci.Exited {
		return fault.WrongState.Errorf("container %s is %s: cannot update it", c.ID(), st)
	}
	rec := *s.index.container(c)
	before, err := spec.Resources(unlimited(rec.resources), s.o.SpecHost)
	if err != nil {
		return err
	}
	adj := rec.resources.GetOomScoreAdj() // belongs to the processes, not to their cgroup: it stays
	rec.resources = spec.MergeResources(rec.resources, change)
	rec.resources.OomScoreAdj = adj
	after, err := spec.Resources(rec.resources, s.o.SpecHost)
	if err != nil {
		return err
	}
	var steps undo.Stack
	defer steps.RunIf(&err)
	steps.Add("limits", func() error {
		ctx, cancel := undo.Context(ctx)
		defer cancel()
		if err := c.Update(ctx, before); err != nil && !errors.Is(err, fault.WrongState) {
			return err // WrongState: it has exited meanwhile
		}
		return nil
	})
	if err := c.Update(ctx, after); err != nil {
		return err
	}
	return s.index.saveContainer(c, &rec)
}

// unlimited is r with the kernel's defaults where it sets nothing, so that going
// back to it takes away what was set since.
func unlimited(r *cri.LinuxContainerResources) *cri.LinuxContainerResources {
	defaults := &cri.LinuxContainerResources{
		CpuPeriod: 100_000, CpuQuota: -1, CpuShares: 1024, // sched-bwc.rst, cgroup-v1/cpuacct
		MemoryLimitInBytes: -1, MemorySwapLimitInBytes: -1,
	}
	if r.GetMemoryLimitInBytes() != 0 {
		defaults.MemorySwapLimitInBytes = 0 // follows the limit
	}
	return spec.MergeResources(defaults, r)
}
