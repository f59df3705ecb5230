package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamContainerStats is ListContainerStats in as many messages as it takes.
func (s *Server) StreamContainerStats(req *cri.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[cri.StreamContainerStatsResponse]) error {
	return inBatches(s.listContainerStats(req.Filter), func(batch []*cri.ContainerStats) error {
		return stream.Send(&cri.StreamContainerStatsResponse{ContainerStats: batch})
	})
}
