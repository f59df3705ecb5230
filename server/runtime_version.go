package server

import (
	"context"
	"regexp"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version says who answers. The kubelet wants all four fields; the first is the
// version of its own API, which has been this one for ever.
func (s *Server) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: "crisp", RuntimeVersion: numbered(s.o.Version), RuntimeApiVersion: "v1"}, nil
}

var (
	numbers  = regexp.MustCompile(`^v?[0-9]+\.[0-9]`)
	noSemver = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// numbered makes the name of a build that no tag is on, such as git's 58dadf3, the
// build metadata (semver.org, 10) of version 0.0.0: the kubelet tells the version
// only if it begins with numbers, and "Unknown" otherwise.
func numbered(version string) string {
	if numbers.MatchString(version) {
		return version
	}
	return "0.0.0+" + noSemver.ReplaceAllString(version, "-")
}
