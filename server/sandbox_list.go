package server

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListPodSandbox lists the sandboxes that pass the filter, including those not ready.
func (s *Server) ListPodSandbox(_ context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: s.listSandboxes(req.Filter)}, nil
}

// listSandboxes returns a snapshot. CRI: "All those fields are combined with 'AND'."
func (s *Server) listSandboxes(f *cri.PodSandboxFilter) []*cri.PodSandbox {
	var list []*cri.PodSandbox
	for _, sb := range s.visibleSandboxes() {
		rec, state := s.index.sandbox(sb), sandboxState(sb.State())
		if !hasPrefix(sb.ID(), f.GetId()) ||
			f.GetState() != nil && f.GetState().State != state ||
			!selects(f.GetLabelSelector(), rec.config.Labels) {
			continue
		}
		list = append(list, &cri.PodSandbox{
			Id:             sb.ID(),
			Metadata:       rec.config.Metadata,
			State:          state,
			CreatedAt:      sb.CreatedAt().UnixNano(),
			Labels:         rec.config.Labels,
			Annotations:    rec.config.Annotations,
			RuntimeHandler: rec.handler,
		})
	}
	return list
}
