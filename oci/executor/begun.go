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

// libcontainer writes down what a container is when its init is nearly made. An executor that is
// killed before that leaves processes, and hooks that hang, in a cgroup that its successor
// would not know. So the cgroups are written down before anything is put into them.

// begunFile, in libcontainer's directory of a container, has a begun.
const begunFile = "begun.json"

// A begun is what there may be of a container before libcontainer tells of it.
type begun struct {
	Cgroups map[string]string // by controller
}

// noteCgroups writes down the cgroups that a new container is to have.
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

// sweepBegun removes a container of which libcontainer has written no state, with its
// processes. dir is libcontainer's directory of it.
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
