package server

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// PullImage pulls an image and returns its ID, the same as Image.id and
// ContainerStatus.image_id.
//
// The store's error is returned without a prefix: the kubelet recognizes two errors by their
// first word.
func (i imageService) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	if req.GetImage().GetImage() == "" {
		return nil, fault.Invalid.Errorf("the request names no image")
	}
	if _, err := i.server.handler(req.Image.RuntimeHandler); err != nil {
		return nil, err
	}
	as := registry.Caller{Namespace: req.GetSandboxConfig().GetMetadata().GetNamespace(), Pod: podName(req.GetSandboxConfig().GetMetadata())}
	if a := req.Auth; a != nil {
		as.Auth = &registry.Auth{
			Username: a.Username, Password: a.Password, Auth: a.Auth,
			IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken, ServerAddress: a.ServerAddress,
		}
	}
	img, err := i.images.Pull(ctx, req.Image.Image, as)
	if err != nil {
		return nil, err
	}
	return &cri.PullImageResponse{ImageRef: img.ID}, nil
}

// podName names a pod for people; "" without one.
func podName(m *cri.PodSandboxMetadata) string {
	if m.GetName() == "" {
		return ""
	}
	return m.Namespace + "/" + m.Name
}

// Pulls implements pullapi.Lister: it returns the pulls under way.
func (i imageService) Pulls() []pulls.Pull { return i.images.Pulls() }

// Closing ends the streams of pullapi when the server closes.
func (i imageService) Closing() <-chan struct{} { return i.server.ctx.Done() }
