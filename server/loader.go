package server

import (
	"context"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Load implements loaderapi.Loader: it imports the images of an archive.
func (i imageService) Load(ctx context.Context, archive io.Reader) ([]string, error) {
	list, err := i.images.Load(ctx, archive)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fault.Invalid.Errorf("no image is in the archive")
	}
	var names []string
	for _, img := range list {
		if len(img.Tags) == 0 {
			names = append(names, img.ID)
		}
		names = append(names, img.Tags...)
	}
	return names, nil
}

// Save implements loaderapi.Loader: it writes an image as an archive.
func (i imageService) Save(ctx context.Context, image string, begin func(id string) (io.Writer, error)) error {
	if image == "" {
		return fault.Invalid.Errorf("want the name of an image")
	}
	return i.images.Save(ctx, image, begin)
}

// Tag implements loaderapi.Loader: it adds a tag to an image.
func (i imageService) Tag(_ context.Context, image, tag string) (string, error) {
	if image == "" || tag == "" {
		return "", fault.Invalid.Errorf("want the name of an image and its new tag")
	}
	img, err := i.images.Tag(image, tag)
	if err != nil {
		return "", err
	}
	return tagOf(img.Tags, tag), nil
}
