package executor

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
)

// libcontainer saves a container's state only when its init is almost complete. An executor that
// is killed earlier leaves processes, and hooks that hang, in a cgroup that its successor would
// not know. So the cgroups are saved before anything enters them.

// begunFile, in libcontainer's directory of a container, holds a begun.
const begunFile = "begun.json"

// A begun says what may exist of a container before libcontainer saves its state.
type begun struct {
	Cgroups map[string]string // by controller
}

// noteCgroups saves the future cgroups of a new container.
func (b *builtins) noteCgroups(lc *libcontainer.Container) error {
	paths, err := cgroupPaths(lc)
	if err != nil {
		return err
	}
	data, err := json.Marshal(begun{paths})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.root, lc.ID(), begunFile), data, 0o600)
}

// sweepBegun removes a container whose state libcontainer has not saved, with its processes. dir
// is libcontainer's directory of the container.
func sweepBegun(dir string) error {
	var b begun
	if atomicfile.ReadJSON(filepath.Join(dir, begunFile), &b) == nil { // else it had not begun
		if err := endAll(b.Cgroups); err != nil {
			return err
		}
		if err := cgroups.RemovePaths(maps.Clone(b.Cgroups)); err != nil {
			return fault.Unavailable.Errorf("remove cgroup of container %s: %w", filepath.Base(dir), err)
		}
	}
	return os.RemoveAll(dir)
}
