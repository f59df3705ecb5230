package server

import (
	"context"
	"errors"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// RemovePodSandbox removes a sandbox and everything in it.
//
// CRI: "If there are any running containers in the sandbox, they must be forcibly
// terminated and removed. This call is idempotent, and must not return an error
// if the sandbox has already been removed."
func (s *Server) RemovePodSandbox(ctx context.Context, req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if errors.Is(err, fault.NotFound) {
		return &cri.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	err = s.tasks.do(ctx, "removal of sandbox "+sb.ID(), func(ctx context.Context) error {
		if err := s.tasks.do(ctx, "stop of sandbox "+sb.ID(), func(ctx context.Context) error { return s.stopSandbox(ctx, sb) }); err != nil {
			return err
		}
		return s.removeSandbox(ctx, sb)
	})
	if err != nil {
		return nil, fmt.Errorf("remove sandbox %s: %w", sb.ID(), err)
	}
	return &cri.RemovePodSandboxResponse{}, nil
}

// removeSandbox removes a stopped sandbox and its containers. One that cannot be removed does not
// keep the others.
func (s *Server) removeSandbox(ctx context.Context, sb *oci.Sandbox) error {
	var errs []error
	for _, c := range sb.Containers() {
		if err := s.tasks.do(ctx, "removal of container "+c.ID(), func(ctx context.Context) error { return s.removeContainer(ctx, c) }); err != nil {
			errs = append(errs, fmt.Errorf("remove container %s: %w", c.ID(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.removePodAndNotify(ctx, sb)
}

// removeContainer removes a container and its file systems.
func (s *Server) removeContainer(ctx context.Context, c *oci.Container) error {
	rec := s.index.container(c)
	stage.Next(ctx, "kill")
	// No process may run in a file system that is being removed, or start in what is left of it.
	for begun := false; !begun; {
		if err := s.killAll(ctx, []*oci.Container{c}); err != nil {
			return err
		}
		err := c.BeginRemove()
		begun = err == nil
		if !begun && !errors.Is(err, fault.WrongState) { // else it was started meanwhile, which happens once
			return err
		}
	}
	stage.Next(ctx, "rootfs")
	// Both wait for the kernel to synchronize its CPUs, so they run side by side.
	forgotten := make(chan error, 1)
	go func() { forgotten <- fault.Protect(func() error { return c.Forget(ctx) }) }()
	err := s.unmountAll(ctx, append([]string{c.ID()}, rec.volumes...))
	if err := errors.Join(err, <-forgotten); err != nil {
		return err
	}
	stage.Next(ctx, "record")
	return s.removeAndNotify(ctx, c)
}

// unmountAll removes root file systems and what was written to them.
func (s *Server) unmountAll(ctx context.Context, keys []string) error {
	for _, key := range keys {
		if err := s.rootfs.Unmount(ctx, key, true); err != nil {
			return fmt.Errorf("release file system %s: %w", key, err)
		}
	}
	return nil
}
