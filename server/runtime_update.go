package server

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdateRuntimeConfig is told the node's pod CIDR. It changes nothing: the
// network's configuration names its own subnets, and what it names is in use.
func (s *Server) UpdateRuntimeConfig(context.Context, *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}
