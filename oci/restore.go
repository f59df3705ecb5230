package oci

import (
	"fmt"
	"os"
	"path/filepath"
)

// RestoreDir makes a directory for the checkpoint that a container is to be restored
// from, before there is a container with this ID. The caller fills it and names it in
// ContainerConfig.Restore: Create makes it the container's, which it is removed with,
// or as soon as the processes run. drop removes it if Create is not called; if the
// daemon dies first, the next Open does.
func (r *Runtime) RestoreDir(id string) (dir string, drop func() error, err error) {
	own := filepath.Join(r.o.Root, containerKind, id)
	dir = filepath.Join(own, "restore")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make restore directory of container %s: %w", id, err)
	}
	return dir, func() error { return os.RemoveAll(own) }, nil
}
