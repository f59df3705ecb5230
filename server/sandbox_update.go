package server

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdatePodSandboxResources records the new resources of the pod's cgroup. The kubelet owns the
// cgroup and has set them, so there is nothing to apply. The verbose status shows them.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	// Plugins are notified of updates in the order in which they are recorded.
	err = s.tasks.alone(ctx, "update of sandbox "+sb.ID(), func(ctx context.Context) error {
		return s.notifyPodUpdate(ctx, sb, req)
	})
	if err != nil {
		return nil, fmt.Errorf("update sandbox %s: %w", sb.ID(), err)
	}
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}
