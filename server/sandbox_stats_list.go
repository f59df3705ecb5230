package server

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// ListPodSandboxStats returns the usage of the ready sandboxes that pass the filter.
func (s *Server) ListPodSandboxStats(_ context.Context, req *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	return &cri.ListPodSandboxStatsResponse{Stats: s.listSandboxStats(req.Filter)}, nil
}

func (s *Server) listSandboxStats(f *cri.PodSandboxStatsFilter) []*cri.PodSandboxStats {
	var list []*oci.Sandbox
	for _, sb := range s.visibleSandboxes() {
		if sb.State() == oci.SandboxReady && hasPrefix(sb.ID(), f.GetId()) &&
			selects(f.GetLabelSelector(), s.index.sandbox(sb).config.Labels) {
			list = append(list, sb)
		}
	}
	return sideBySide(list, s.sandboxStats)
}
