package spec

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeccompOf says which seccomp profile sc asks for, the deprecated string
// included, and for Localhost the file it is in. Nothing asked for, and
// anything asked for with privilege, is Unconfined.
func SeccompOf(sc *cri.LinuxContainerSecurityContext) (kind cri.SecurityProfile_ProfileType, file string, err error) {
	return seccompOf(sc)
}

// DefaultSeccomp is the built-in profile for a container with the given
// capabilities (CAP_…) on the given architecture (as runtime.GOARCH).
func DefaultSeccomp(caps []string, arch string) *specs.LinuxSeccomp {
	return defaultSeccomp(caps, arch)
}

// ParseSeccomp reads a profile file: OCI's own form, or the one of the field
// with "archMap" and rules that include or exclude capabilities and architectures.
func ParseSeccomp(profile []byte, caps []string, arch string) (*specs.LinuxSeccomp, error) {
	return parseSeccomp(profile, caps, arch)
}
