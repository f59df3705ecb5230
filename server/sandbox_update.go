package server

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdatePodSandboxResources notes what the kubelet has set on the pod's cgroup,
// which is the kubelet's own: there is nothing to apply. It shows in the verbose
// status.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	sb, err := s.runtime.Sandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	rec := *s.index.sandbox(sb)
	rec.resources = req
	err = s.tellPodUpdate(ctx, pluginPod(sb, &rec), func() error { return s.index.saveSandbox(sb, &rec) })
	if err != nil {
		return nil, fmt.Errorf("update sandbox %s: %w", sb.ID(), err)
	}
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}
