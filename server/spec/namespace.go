package spec

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sysctls are the sandbox's, with dots as separators. One that belongs to a
// namespace which the sandbox shares with the host, or to none, is
// fault.Invalid: it would change the host.
func Sysctls(sandbox *cri.PodSandboxConfig) (map[string]string, error) {
	return sysctls(sandbox)
}
