package server

import (
	"context"
	"regexp"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version returns the name and version of the runtime. The kubelet requires all four fields; the
// first is the version of the kubelet's own API, which has never changed.
func (s *Server) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: "crisp", RuntimeVersion: numbered(s.o.Version), RuntimeApiVersion: "v1"}, nil
}

var (
	numbers  = regexp.MustCompile(`^v?[0-9]+\.[0-9]`)
	noSemver = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// numbered turns the name of an untagged build, such as git's 58dadf3, into build metadata of
// version 0.0.0 (semver.org, item 10): the kubelet reports "Unknown" for a version that does not
// begin with numbers.
func numbered(version string) string {
	if numbers.MatchString(version) {
		return version
	}
	return "0.0.0+" + noSemver.ReplaceAllString(version, "-")
}
