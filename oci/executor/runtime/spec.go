package runtime

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
)

// hookBound bounds a hook without a timeout.
const hookBound = time.Minute

// boundHooks gives a timeout to each hook that has none.
func boundHooks(h *specs.Hooks) {
	if h == nil {
		return
	}
	//lint:ignore SA1019 OCI still has prestart hooks, and NVIDIA's runtime hook is one
	for _, list := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} {
		for i := range list {
			if list[i].Timeout == nil {
				seconds := int(hookBound / time.Second)
				list[i].Timeout = &seconds
			}
		}
	}
}

// markHooks marks the hooks that run outside of the container. A hook without an environment gets
// ours.
func markHooks(h *specs.Hooks, mark string) {
	if h == nil {
		return
	}
	//lint:ignore SA1019 OCI still has prestart hooks, and NVIDIA's runtime hook is one
	for _, list := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.Poststart, h.Poststop} {
		for i := range list {
			if list[i].Env == nil {
				list[i].Env = os.Environ()
			}
			list[i].Env = append(slices.Clip(list[i].Env), mark)
		}
	}
}

// dropMovedDevices drops the network devices that an earlier container of the pod has brought into its
// network. They stay there until that is gone, and cannot be moved again. From this look at them
// until they are moved, no other start may come between: it would find them on the host as well.
func dropMovedDevices(l *specs.Linux) {
	i := slices.IndexFunc(l.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.NetworkNamespace })
	if i < 0 || l.Namespaces[i].Path == "" {
		return
	}
	maps.DeleteFunc(l.NetDevices, func(host string, d specs.LinuxNetDevice) bool {
		return !hasDevice("", host) && hasDevice(l.Namespaces[i].Path, cmp.Or(d.Name, host))
	})
}

// hasDevice reports whether a network namespace, "" for our own, has a device of that name.
func hasDevice(netNS, name string) bool {
	return thread.Run(func() error {
		if netNS != "" {
			ns, err := os.Open(netNS)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
		}
		_, err := net.InterfaceByName(name)
		return err
	}) == nil
}

// A libcontainer container with hooks has a bundle for them: a directory with config.json, like
// the one that callers give to runtimes that are programs. The state on a hook's stdin names it
// (runtime-spec, "State"), and GPU hooks find the root file system and the environment there.

// bundleLabel, in a container's configuration, names the bundle in the state that hooks get.
const bundleLabel = "bundle="

// bundle returns the directory of container id. Unlike the executor's own, its parents are
// searchable by others: a hook may run in the container's user namespace.
func (b *builtins) bundle(id string) string { return filepath.Join(b.state, "bundles", id) }

// writeBundle creates the bundle of a container with hooks. Only the owner of the container's
// user namespace may read it: environments contain secrets.
func (b *builtins) writeBundle(p *Plan) error {
	if len(slices.Concat(slices.Collect(maps.Values(p.config.Hooks))...)) == 0 {
		return nil
	}
	gid, err := p.config.HostRootGID()
	if err != nil {
		return err
	}
	spec, process := *p.spec, *p.spec.Process
	process.Env = p.process.Env
	spec.Process = &process
	data, err := json.Marshal(&spec)
	if err != nil {
		return err
	}
	dir := b.bundle(p.ID)
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o710); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	file := filepath.Join(dir, "config.json")
	return errors.Join(os.WriteFile(file, data, 0o640), os.Chown(file, -1, gid), os.Chown(dir, -1, gid))
}

// bearPoststop makes failures of poststop hooks harmless: "the runtime MUST log a warning, but
// the remaining hooks and lifecycle continue as if the hook had succeeded" (runtime-spec,
// "Lifecycle").
func (b *builtins) bearPoststop(id string, config *configs.Config) {
	for i, h := range config.Hooks[configs.Poststop] {
		config.Hooks[configs.Poststop][i] = configs.NewFunctionHook(func(s *specs.State) error {
			if err := h.Run(s); err != nil {
				b.log.Warn("poststop hook failed", "container", id, "hook", i, "err", err)
			}
			return nil
		})
	}
}
