package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// baseImage finds the image of the original, and pulls it if it is missing; for a checkpoint
// image it asks a registry whether the pod may have it. For a pod's checkpoint it is the image
// that the request names, which must be the original's.
func (s *Server) baseImage(ctx context.Context, sb *oci.Sandbox, config *cri.ContainerConfig, r *restoration) (err error) {
	names := slices.DeleteFunc([]string{r.was.RootfsImageRef, r.was.RootfsImageName, r.was.RootfsImage}, func(n string) bool { return n == "" })
	if r.from.dir != "" {
		names = []string{config.Image.Image}
	}
	if len(names) == 0 {
		return fault.Invalid.Errorf("the checkpoint does not say which image its container had")
	}
	id := imageID(r.was.RootfsImageRef)
	for i, name := range names {
		r.base, err = s.images.Get(name)
		if err == nil && id != "" && r.base.ID != id && i < len(names)-1 {
			continue // the tag now refers to another image
		}
		if err == nil {
			break
		}
	}
	as := registry.Caller{Namespace: s.index.sandbox(sb).config.GetMetadata().GetNamespace()}
	switch {
	case errors.Is(err, fault.NotFound):
		if r.base, err = s.images.Pull(ctx, names[len(names)-1], as); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("image of the checkpoint: %w", err)
	case r.from.image != "":
		if err := s.mayPull(ctx, r.base, as); err != nil {
			return err
		}
	}
	if id != "" && r.base.ID != id {
		return fault.Invalid.Errorf("the checkpoint is of a container of image %s, and %s is another one: %s", id, names[len(names)-1], r.base.ID)
	}
	r.imaged = config.Image
	if r.from.dir == "" {
		r.imaged = &cri.ImageSpec{Image: names[len(names)-1]}
	}
	return s.allowImage(ctx, sb, r.imaged, r.base)
}

// mayPull asks a registry whether as may have img, which is on the node: a checkpoint image can
// name any image, and a pull by somebody else does not entitle its pod to it. An image that was
// never in a registry was loaded by the administrator, for all pods.
func (s *Server) mayPull(ctx context.Context, img image.Image, as registry.Caller) error {
	var first error
	for _, name := range img.Digests {
		got, err := s.images.Pull(ctx, name, as)
		if err == nil && got.ID == img.ID {
			return nil
		}
		if err == nil {
			err = fault.Invalid.Errorf("image of the checkpoint: %s is %s, not %s", name, got.ID, img.ID)
		}
		first = cmp.Or(first, err)
	}
	return first
}

// imageID returns ref in full if it is an image ID, else "".
func imageID(ref string) string {
	hex := strings.TrimPrefix(ref, "sha256:")
	if len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" {
		return "sha256:" + hex
	}
	return ""
}
