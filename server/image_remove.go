package server

import (
	"context"
	"errors"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// RemoveImage removes an image with all its names. Layers that containers use stay on disk until
// the containers are gone.
//
// CRI: "This call is idempotent, and must not return an error if the image has
// already been removed. […] removing the image by a single tag will remove all of
// its tags."
func (i imageService) RemoveImage(ctx context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	if req.GetImage().GetImage() == "" {
		return nil, fault.Invalid.Errorf("the request names no image")
	}
	if err := i.images.Remove(ctx, req.Image.Image); err != nil && !errors.Is(err, fault.NotFound) {
		return nil, err
	}
	return &cri.RemoveImageResponse{}, nil
}
