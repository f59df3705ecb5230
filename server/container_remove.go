package server

import (
	"context"
	"errors"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// RemoveContainer removes a container and its writable layer. Its log stays, because the kubelet
// owns it.
//
// CRI: "If the container is running, the container must be forcibly removed. This
// call is idempotent, and must not return an error if the container has already
// been removed."
func (s *Server) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if errors.Is(err, fault.NotFound) {
		return &cri.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.tasks.do(ctx, "removal of container "+c.ID(), func(ctx context.Context) error { return s.removeContainer(ctx, c) }); err != nil {
		return nil, fmt.Errorf("remove container %s: %w", c.ID(), err)
	}
	return &cri.RemoveContainerResponse{}, nil
}
