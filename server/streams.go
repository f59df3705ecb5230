package server

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A message of a streamed list holds up to batchItems items and about batchBytes
// bytes: annotations may be 256 KiB each, and a message at most 16 MiB.
const (
	batchItems = 256
	batchBytes = 1 << 20
)

// StreamPodSandboxes is ListPodSandbox in as many messages as it takes.
func (s *Server) StreamPodSandboxes(req *cri.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[cri.StreamPodSandboxesResponse]) error {
	return inBatches(s.listSandboxes(req.Filter), func(batch []*cri.PodSandbox) error {
		return stream.Send(&cri.StreamPodSandboxesResponse{PodSandboxes: batch})
	})
}

// StreamContainers is ListContainers in as many messages as it takes.
func (s *Server) StreamContainers(req *cri.StreamContainersRequest, stream grpc.ServerStreamingServer[cri.StreamContainersResponse]) error {
	return inBatches(s.listContainers(req.Filter), func(batch []*cri.Container) error {
		return stream.Send(&cri.StreamContainersResponse{Containers: batch})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in as many messages as it takes.
func (s *Server) StreamPodSandboxStats(req *cri.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[cri.StreamPodSandboxStatsResponse]) error {
	return inBatches(s.listSandboxStats(req.Filter), func(batch []*cri.PodSandboxStats) error {
		return stream.Send(&cri.StreamPodSandboxStatsResponse{PodSandboxStats: batch})
	})
}

// StreamContainerStats is ListContainerStats in as many messages as it takes.
func (s *Server) StreamContainerStats(req *cri.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[cri.StreamContainerStatsResponse]) error {
	return inBatches(s.listContainerStats(req.Filter), func(batch []*cri.ContainerStats) error {
		return stream.Send(&cri.StreamContainerStatsResponse{ContainerStats: batch})
	})
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in as many messages as it takes.
func (s *Server) StreamPodSandboxMetrics(_ *cri.StreamPodSandboxMetricsRequest, stream grpc.ServerStreamingServer[cri.StreamPodSandboxMetricsResponse]) error {
	return inBatches(s.listSandboxMetrics(), func(batch []*cri.PodSandboxMetrics) error {
		return stream.Send(&cri.StreamPodSandboxMetricsResponse{PodSandboxMetrics: batch})
	})
}

// StreamImages is ListImages in as many messages as it takes.
func (i imageService) StreamImages(req *cri.StreamImagesRequest, stream grpc.ServerStreamingServer[cri.StreamImagesResponse]) error {
	list, err := i.listImages(req.Filter)
	if err != nil {
		return err
	}
	return inBatches(list, func(batch []*cri.Image) error {
		return stream.Send(&cri.StreamImagesResponse{Images: batch})
	})
}

// inBatches sends each item once, in messages of at least one item. Without items it sends
// nothing: the end of the stream is the answer.
func inBatches[T proto.Message](items []T, send func([]T) error) error {
	var begin, size int
	for i, item := range items {
		n := proto.Size(item)
		if i > begin && (i-begin == batchItems || size+n > batchBytes) {
			if err := send(items[begin:i]); err != nil {
				return err
			}
			begin, size = i, 0
		}
		size += n
	}
	if begin == len(items) {
		return nil
	}
	return send(items[begin:])
}
