package server

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// ImageStatus returns one image, found by any of its names.
//
// CRI: "If the image is not present, returns a response with ImageStatusResponse.Image set to
// nil." The verbose response then still lists the image's pulls under way; crictl does not show
// them here, but in "crictl info".
func (i imageService) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	if req.GetImage().GetImage() == "" {
		return nil, fault.Invalid.Errorf("the request names no image")
	}
	resp, about := &cri.ImageStatusResponse{}, map[string]any{}
	img, err := i.images.Get(req.Image.Image)
	switch {
	case err == nil:
		resp.Image = criImage(img)
		about["imageSpec"], about["firstSeen"] = img.Config, img.CreatedAt
	case !errors.Is(err, fault.NotFound):
		return nil, err
	}
	if !req.Verbose {
		return resp, nil
	}
	if list := i.pullsOf(append(slices.Clip(img.Tags), req.Image.Image)); len(list) > 0 {
		about["pulls"] = list
	}
	if len(about) == 0 {
		return resp, nil
	}
	info, err := json.Marshal(about)
	if err != nil {
		return nil, fault.Internal.Errorf("encode info of image %s: %w", req.Image.Image, err)
	}
	resp.Info = map[string]string{"info": string(info)}
	return resp, nil
}

// pullsOf returns the pulls under way of images with one of these names.
func (i imageService) pullsOf(names []string) []pulls.Pull {
	return slices.DeleteFunc(i.images.Pulls(), func(p pulls.Pull) bool { return !slices.ContainsFunc(names, p.Same) })
}

// criImage converts an image to CRI's form. The image's user is a number or a name, never both,
// and has no group.
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
