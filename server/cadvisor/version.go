package cadvisor

import (
	"context"

	version "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A versionService is containerd.services.version.v1.Version.
type versionService struct {
	version.UnimplementedVersionServer
	server *Server
}

// Version returns crisp's version. It is also called without a namespace.
func (v versionService) Version(ctx context.Context, _ *emptypb.Empty) (*version.VersionResponse, error) {
	_ = v.server.begin(ctx)
	return &version.VersionResponse{Version: v.server.source.Version()}, nil
}
