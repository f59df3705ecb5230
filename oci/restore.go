package oci

import (
	"fmt"
	"os"
	"path/filepath"
)

// RestoreDir creates a directory for the checkpoint from which a container will be restored,
// before a container with this ID exists. The caller fills it and names it in
// ContainerConfig.Restore: Create then makes the container its owner, and it is removed with the
// container or once the processes run. drop removes it if Create is not called; if the daemon
// dies first, the next Open does.
func (r *Runtime) RestoreDir(id string) (dir string, drop func() error, err error) {
	own := filepath.Join(r.o.Root, containerKind, id)
	dir = filepath.Join(own, "restore")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make restore directory of container %s: %w", id, err)
	}
	return dir, func() error { return os.RemoveAll(own) }, nil
}
