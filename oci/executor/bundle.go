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

// A container of libcontainer that has hooks has a bundle for them: a directory with config.json,
// as runtimes that are programs have it of their callers. The state that a hook reads names it
// (runtime-spec, "State"), and those of GPUs find the root file system and the environment there.

// bundleLabel, in a container's configuration, names the bundle in the state that hooks get.
const bundleLabel = "bundle="

// bundle returns the directory of container id. Unlike the executor's own, its parents may be
// passed through: a hook may run in the container's user namespace.
func (b *builtins) bundle(id string) string { return filepath.Join(b.state, "bundles", id) }

// nameBundle has hooks find the bundle of container id, which writeBundle makes.
func (b *builtins) nameBundle(id string, config *configs.Config) {
	config.Labels = slices.DeleteFunc(config.Labels, func(l string) bool { return strings.HasPrefix(l, bundleLabel) })
	config.Labels = append(config.Labels, bundleLabel+b.bundle(id))
}

// writeBundle makes the bundle of a container that has hooks. The owner of the container's user
// namespace may read it, and nobody else: environments have secrets.
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

// bearPoststop lets the poststop hooks fail: "the runtime MUST log a warning, but the remaining
// hooks and lifecycle continue as if the hook had succeeded" (runtime-spec, "Lifecycle").
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
