package executor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// A libcontainer container with hooks has a bundle for them: a directory with config.json, like
// the one that callers give to runtimes that are programs. The state on a hook's stdin names it
// (runtime-spec, "State"), and GPU hooks find the root file system and the environment there.

// bundleLabel, in a container's configuration, names the bundle in the state that hooks get.
const bundleLabel = "bundle="

// bundle returns the directory of container id. Unlike the executor's own, its parents are
// searchable by others: a hook may run in the container's user namespace.
func (b *builtins) bundle(id string) string { return filepath.Join(b.state, "bundles", id) }

// nameBundle makes hooks find the bundle of container id, which writeBundle creates.
func (b *builtins) nameBundle(id string, config *configs.Config) {
	config.Labels = slices.DeleteFunc(config.Labels, func(l string) bool { return strings.HasPrefix(l, bundleLabel) })
	config.Labels = append(config.Labels, bundleLabel+b.bundle(id))
}

// writeBundle creates the bundle of a container with hooks. Only the owner of the container's
// user namespace may read it: environments contain secrets.
func (b *builtins) writeBundle(p *plan) error {
	if !hasHooks(p.config) {
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

func hasHooks(config *configs.Config) bool {
	for _, list := range config.Hooks {
		if len(list) > 0 {
			return true
		}
	}
	return false
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
