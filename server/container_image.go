package server

import (
	"cmp"
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/oci"
)

// allowImage asks the policy of the pod's namespace about an image that is in the
// store. The image may have been pulled under another policy, and the kubelet
// asks for a pull only if the image is not there. The signatures that count are
// those that came with the pull.
//
// The kubelet sends the image's ID together with the name in the pod; crictl
// sends what its user typed. If there is only an ID, the policy is asked about
// each of the image's names.
func (s *Server) allowImage(ctx context.Context, sb *oci.Sandbox, spec *cri.ImageSpec, img image.Image) error {
	name := cmp.Or(spec.UserSpecifiedImage, spec.Image)
	return s.images.Allowed(ctx, s.index.sandbox(sb).config.GetMetadata().GetNamespace(), name, img.ID)
}
