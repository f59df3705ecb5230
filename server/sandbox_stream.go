package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxes is ListPodSandbox in as many messages as it takes.
func (s *Server) StreamPodSandboxes(req *cri.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[cri.StreamPodSandboxesResponse]) error {
	return inBatches(s.listSandboxes(req.Filter), func(batch []*cri.PodSandbox) error {
		return stream.Send(&cri.StreamPodSandboxesResponse{PodSandboxes: batch})
	})
}
