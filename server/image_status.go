package server

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
)

// ImageStatus returns one image, found by any of its names.
//
// CRI: "If the image is not present, returns a response with
// ImageStatusResponse.Image set to nil."
func (i imageService) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	if req.GetImage().GetImage() == "" {
		return nil, fault.Invalid.Errorf("the request names no image")
	}
	img, err := i.images.Get(req.Image.Image)
	if errors.Is(err, fault.NotFound) {
		return &cri.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &cri.ImageStatusResponse{Image: criImage(img)}
	if req.Verbose {
		info, err := json.Marshal(map[string]any{"imageSpec": img.Config, "firstSeen": img.CreatedAt})
		if err != nil {
			return nil, fault.Internal.Errorf("encode info of image %s: %w", img.ID, err)
		}
		resp.Info = map[string]string{"info": string(info)}
	}
	return resp, nil
}

// criImage converts an image to CRI's form. The image's user is a number or a
// name, never both, and has no group.
func criImage(img image.Image) *cri.Image {
	out := &cri.Image{
		Id:          img.ID,
		RepoTags:    img.Tags,
		RepoDigests: img.Digests,
		Size:        img.Size,
		Pinned:      img.Pinned,
	}
	user, _, _ := strings.Cut(img.Config.Config.User, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		out.Uid = &cri.Int64Value{Value: uid}
	} else {
		out.Username = user
	}
	return out
}
