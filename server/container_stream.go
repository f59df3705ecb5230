package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamContainers is ListContainers in as many messages as it takes.
func (s *Server) StreamContainers(req *cri.StreamContainersRequest, stream grpc.ServerStreamingServer[cri.StreamContainersResponse]) error {
	return inBatches(s.listContainers(req.Filter), func(batch []*cri.Container) error {
		return stream.Send(&cri.StreamContainersResponse{Containers: batch})
	})
}
