package server

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
)

// resourcesNow returns the limits of c for its status: those of its cgroup while it is alive,
// else those it was given. The kubelet considers a resize done when it sees them.
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
		now.MemorySwapLimitInBytes = 0 // there is no swap, and nobody asked for it
	}
	return &cri.ContainerResources{Linux: spec.MergeResources(given, now)}
}
