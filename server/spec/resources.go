package spec

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resources translates limits; r may be nil. Zero means not set, but for
// oom_score_adj, which is no cgroup limit and not in here.
func Resources(r *cri.LinuxContainerResources, h Host) (*specs.LinuxResources, error) {
	return resources(r, h)
}

// MergeResources is old with what change sets in it. CRI's
// UpdateContainerResources leaves alone what is zero.
func MergeResources(old, change *cri.LinuxContainerResources) *cri.LinuxContainerResources {
	return mergeResources(old, change)
}

// CgroupsPath names a container's cgroup below the sandbox's parent: a path with
// the cgroupfs driver, "slice:prefix:name" with systemd's.
func CgroupsPath(parent, id string, systemd bool) string {
	return cgroupsPath(parent, id, systemd)
}
