package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
