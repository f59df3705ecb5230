package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"
)

// hostPathKinds has the kind of file that each type requires at the path; 0 is a regular file.
// The types ...OrCreate create a missing one.
var hostPathKinds = map[v1.HostPathType]fs.FileMode{
	v1.HostPathDirectoryOrCreate: fs.ModeDir,
	v1.HostPathDirectory:         fs.ModeDir,
	v1.HostPathFileOrCreate:      0,
	v1.HostPathFile:              0,
	v1.HostPathSocket:            fs.ModeSocket,
	v1.HostPathCharDev:           fs.ModeDevice | fs.ModeCharDevice,
	v1.HostPathBlockDev:          fs.ModeDevice,
}

func checkHostPath(h *v1.HostPathVolumeSource) error {
	want, checked := hostPathKinds[*h.Type]
	if !checked {
		return nil // without a type, nothing is checked
	}
	info, err := os.Stat(h.Path)
	if errors.Is(err, fs.ErrNotExist) {
		switch *h.Type {
		case v1.HostPathDirectoryOrCreate:
			return os.MkdirAll(h.Path, 0o755)
		case v1.HostPathFileOrCreate:
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDWR, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	if err != nil {
		return err
	}
	if got := info.Mode().Type(); got != want {
		return fmt.Errorf("host path %s is not of the type %s", h.Path, *h.Type)
	}
	return nil
}
