package server

import (
	"cmp"
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/oci"
)

// allowImage checks an image in the store against the policy of the pod's namespace. The image
// may have been pulled under another policy, and the kubelet requests a pull only if the image
// is missing. The signatures that came with the pull decide.
//
// The kubelet sends the image's ID together with the name in the pod; crictl sends what its user
// typed. If there is only an ID, the policy is evaluated for each of the image's names.
func (s *Server) allowImage(ctx context.Context, sb *oci.Sandbox, spec *cri.ImageSpec, img image.Image) error {
	name := cmp.Or(spec.UserSpecifiedImage, spec.Image)
	return s.images.Allowed(ctx, s.index.sandbox(sb).config.GetMetadata().GetNamespace(), name, img.ID)
}
