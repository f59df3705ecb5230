package server

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/stage"
)

// StartContainer runs a container's program. If the program cannot be run, the
// container exits with code 128 and reason StartError, for the kubelet to show
// and count.
func (s *Server) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if _, err := s.readySandbox(c.SandboxID()); err != nil {
		return nil, fmt.Errorf("start container %s: %w", c.ID(), err)
	}
	stage.Next(ctx, "plugins")
	if err := s.notifyStart(ctx, c); err != nil {
		return nil, fmt.Errorf("start container %s: %w", c.ID(), err)
	}
	stage.Next(ctx, "start")
	if err := c.Start(ctx); err != nil {
		return nil, fmt.Errorf("start container %s: %w", c.ID(), err)
	}
	s.notifyStarted(ctx, c)
	return &cri.StartContainerResponse{}, nil
}
