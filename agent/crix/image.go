package crix

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ensureImage brings the image of a container here, as its pull policy says.
func (d *Driver) ensureImage(ctx, interrupt context.Context, c *v1.Container, sandbox *cri.PodSandboxConfig) (*cri.Image, error) {
	spec := &cri.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image}
	resp, err := d.images.ImageStatus(ctx, spec, false)
	if err != nil {
		return nil, reasoned("ImageInspectError", Fault(err))
	}
	image := resp.GetImage()
	switch {
	case c.ImagePullPolicy == v1.PullNever && image == nil:
		return nil, reasoned("ErrImageNeverPull", fmt.Errorf("image %s is not present and the pull policy is Never", c.Image))
	case c.ImagePullPolicy == v1.PullNever, c.ImagePullPolicy == v1.PullIfNotPresent && image != nil:
		return image, nil
	}
	ref, err := d.images.PullImage(interrupt, spec, nil, sandbox)
	if err != nil {
		return nil, reasoned("ErrImagePull", fmt.Errorf("pull image %s: %w", c.Image, Fault(err)))
	}
	resp, err = d.images.ImageStatus(ctx, &cri.ImageSpec{Image: ref, UserSpecifiedImage: c.Image}, false)
	if err != nil {
		return nil, reasoned("ImageInspectError", Fault(err))
	}
	if resp.GetImage() == nil {
		return nil, reasoned("ImageInspectError", fmt.Errorf("image %s vanished after it was pulled", c.Image))
	}
	return resp.GetImage(), nil
}
