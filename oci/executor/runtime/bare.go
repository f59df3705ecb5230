package runtime

import (
	"slices"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// An executor in a user namespace may have no cgroups (kernel.Bare): its containers have no limits, and their processes
// end with their own PID namespace, or are found as proc.Rest does.

// withoutCgroups returns what such an executor can make of a spec.
func withoutCgroups(id string, spec *specs.Spec) (*specs.Spec, error) {
	if !kernel.Bare() {
		return spec, nil
	}
	if !slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.PIDNamespace }) {
		return nil, fault.Invalid.Errorf("container %s has the host's PID namespace: crispd is in a user namespace without cgroups", id)
	}
	own, linux := *spec, *spec.Linux
	linux.CgroupsPath, linux.Resources = "", &specs.LinuxResources{}
	linux.Namespaces = slices.DeleteFunc(slices.Clone(linux.Namespaces), func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace })
	own.Linux = &linux
	own.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(m specs.Mount) bool { return m.Destination == "/sys/fs/cgroup" })
	return &own, nil
}

// managerOf returns the manager of a container's cgroups, which are at group; one without any, where
// there are none, does nothing.
func managerOf(config *cgroups.Cgroup, group map[string]string) (cgroups.Manager, error) {
	if config.Rootless {
		return fs.NewManager(config, group)
	}
	return manager.NewWithPaths(config, group)
}
