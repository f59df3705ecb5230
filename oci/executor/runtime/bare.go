package runtime

import (
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// An executor in a user namespace may have no cgroups (kernel.NoCgroups): its containers have no limits, and their processes
// end with their own PID namespace, or are found as proc.Rest does. Or it has some, and no more controllers than were
// delegated (kernel.Bare).

// withoutCgroups returns what such an executor can make of a spec.
func (b *builtins) withoutCgroups(id string, spec *specs.Spec) (*specs.Spec, error) {
	if !kernel.Bare() {
		return spec, nil
	}
	if !kernel.NoCgroups() {
		own, linux := *spec, *spec.Linux
		own.Linux, linux.Resources = &linux, b.delegated(linux.Resources)
		return &own, nil
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

// delegated returns those of r for which there are controllers. crispd has told which there are.
func (b *builtins) delegated(r *specs.LinuxResources) *specs.LinuxResources {
	if !kernel.Bare() || r == nil {
		return r
	}
	own := *r
	if own.CPU != nil {
		cpu := *own.CPU
		if !b.host.Has("cpuset") {
			cpu.Cpus, cpu.Mems = "", ""
		}
		if !b.host.Has("cpu") {
			cpu = specs.LinuxCPU{Cpus: cpu.Cpus, Mems: cpu.Mems}
		}
		own.CPU = &cpu
	}
	if !b.host.Has("memory") {
		own.Memory = nil
	}
	if !b.host.Has("pids") {
		own.Pids = nil
	}
	if !b.host.Has("io") {
		own.BlockIO = nil
	}
	own.Unified = maps.Clone(own.Unified)
	maps.DeleteFunc(own.Unified, func(file, _ string) bool {
		controller, _, _ := strings.Cut(file, ".")
		return controller != "cgroup" && !b.host.Has(controller)
	})
	return &own
}

// managerOf returns the manager of a container's cgroups, which are at group; one without any, where
// there are none, does nothing.
func managerOf(config *cgroups.Cgroup, group map[string]string) (cgroups.Manager, error) {
	if config.Rootless {
		return fs.NewManager(config, group)
	}
	return manager.NewWithPaths(config, group)
}
