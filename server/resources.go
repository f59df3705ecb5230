package server

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// resourcesNow are the limits of c for its status: of one that is alive those
// that its cgroup has, else those that it was given. The kubelet takes a resize
// for done when it sees them.
func resourcesNow(c *oci.Container, rec *containerRecord) *cri.ContainerResources {
	given := rec.resources
	now := limitsOf(c.Resources())
	if now == nil {
		if given == nil {
			return nil
		}
		return &cri.ContainerResources{Linux: given}
	}
	if given.GetMemorySwapLimitInBytes() == 0 && now.MemorySwapLimitInBytes == now.MemoryLimitInBytes {
		now.MemorySwapLimitInBytes = 0 // nobody asked for swap, and there is none
	}
	return &cri.ContainerResources{Linux: spec.MergeResources(given, now)}
}
