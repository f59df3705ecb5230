package server

import (
	"context"
	"errors"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
)

// ListImages lists the images, or the one that the filter names.
func (i imageService) ListImages(_ context.Context, req *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	list, err := i.listImages(req.Filter)
	if err != nil {
		return nil, err
	}
	return &cri.ListImagesResponse{Images: list}, nil
}

func (i imageService) listImages(f *cri.ImageFilter) ([]*cri.Image, error) {
	found := []image.Image(nil)
	if name := f.GetImage().GetImage(); name != "" {
		img, err := i.images.Get(name)
		switch {
		case err == nil:
			found = append(found, img)
		case !errors.Is(err, fault.NotFound):
			return nil, err
		}
	} else {
		found = i.images.List()
	}
	var list []*cri.Image
	for _, img := range found {
		list = append(list, criImage(img))
	}
	return list, nil
}
