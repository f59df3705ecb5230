package server

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version says who answers. The kubelet wants all four fields; the first is the
// version of its own API, which has been this one for ever.
func (s *Server) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: "crisp", RuntimeVersion: s.o.Version, RuntimeApiVersion: "v1"}, nil
}
