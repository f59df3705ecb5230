package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxMetrics is ListPodSandboxMetrics in as many messages as it takes.
func (s *Server) StreamPodSandboxMetrics(_ *cri.StreamPodSandboxMetricsRequest, stream grpc.ServerStreamingServer[cri.StreamPodSandboxMetricsResponse]) error {
	return inBatches(s.listSandboxMetrics(), func(batch []*cri.PodSandboxMetrics) error {
		return stream.Send(&cri.StreamPodSandboxMetricsResponse{PodSandboxMetrics: batch})
	})
}
