package crix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// makeVolume makes the volume's directory, or checks that it is what the
// manifest says.
func (d *Driver) makeVolume(pod *v1.Pod, v *v1.Volume) error {
	if v.HostPath != nil {
		return checkHostPath(v.HostPath)
	}
	return d.makeEmptyDir(pod, v)
}

// emptyDirs is the directory of a pod's emptyDir volumes, named as the kubelet's.
func (d *Driver) emptyDirs(uid string) string {
	return filepath.Join(d.podDir(uid), "volumes", "kubernetes.io~empty-dir")
}

func (d *Driver) volumePath(pod *v1.Pod, v *v1.Volume) string {
	if v.HostPath != nil {
		return v.HostPath.Path
	}
	return filepath.Join(d.emptyDirs(string(pod.UID)), v.Name)
}

func (d *Driver) makeEmptyDir(pod *v1.Pod, v *v1.Volume) error {
	path := d.volumePath(pod, v)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if v.EmptyDir.Medium == v1.StorageMediumMemory {
		if err := mountMemory(path, v.EmptyDir); err != nil {
			return err
		}
	}
	return os.Chmod(path, 0o777) // any user of the containers may write
}

// mountMemory mounts a tmpfs unless there is one: the content of a volume lives
// as long as the pod, whatever becomes of its sandbox. A reboot empties it.
func mountMemory(path string, e *v1.EmptyDirVolumeSource) error {
	var here, above unix.Stat_t
	if err := unix.Stat(path, &here); err != nil {
		return err
	}
	if err := unix.Stat(filepath.Dir(path), &above); err != nil {
		return err
	}
	if here.Dev != above.Dev {
		return nil
	}
	options := "mode=0777"
	if e.SizeLimit != nil {
		options += ",size=" + strconv.FormatInt(e.SizeLimit.Value(), 10)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", path, err)
	}
	return nil
}

// hostPathKinds are what must be at the path for each type; 0 stands for a
// regular file. The types ...OrCreate make it if there is nothing.
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
		return nil // no type: the runtime takes what it finds
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
