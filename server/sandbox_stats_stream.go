package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxStats is ListPodSandboxStats in as many messages as it takes.
func (s *Server) StreamPodSandboxStats(req *cri.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[cri.StreamPodSandboxStatsResponse]) error {
	return inBatches(s.listSandboxStats(req.Filter), func(batch []*cri.PodSandboxStats) error {
		return stream.Send(&cri.StreamPodSandboxStatsResponse{PodSandboxStats: batch})
	})
}
