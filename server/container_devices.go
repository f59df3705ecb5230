package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/spec"
)

// notDevices are paths below /dev that are not devices of the host, or that every container has its
// own of.
var notDevices = []string{"/dev/pts", "/dev/shm", "/dev/fd", "/dev/mqueue", "/dev/hugepages", "/dev/console", "/dev/ptmx", "/dev/.udev"}

// resolveDevices looks up the device nodes that a container asks for. CRI: with
// privilege, "all devices from the host's /dev are available within the
// container."
func resolveDevices(asked []*cri.Device, privileged bool) ([]spec.Device, error) {
	var list []spec.Device
	if privileged {
		all, err := devicesBelow("/dev", "/dev", "rwm")
		if err != nil {
			return nil, err
		}
		list = all
	}
	for _, d := range asked {
		found, err := resolveDevice(d)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			list = slices.DeleteFunc(list, func(have spec.Device) bool { return have.Path == f.Path })
			list = append(list, f)
		}
	}
	return list, nil
}

// resolveDevice looks up one device: a node, a symlink to one, or a directory of
// nodes.
func resolveDevice(d *cri.Device) ([]spec.Device, error) {
	// CRI: "Cgroups permissions of the device, candidates are one or more of" r, w and m.
	if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
		return nil, fault.Invalid.Errorf("device %s: permissions %q are not of \"rwm\"", d.HostPath, d.Permissions)
	}
	to := cmp.Or(d.ContainerPath, d.HostPath)
	real, err := filepath.EvalSymlinks(d.HostPath)
	if err != nil {
		return nil, fault.Invalid.Errorf("device %s: %w", d.HostPath, err)
	}
	if info, err := os.Stat(real); err == nil && info.IsDir() {
		found, err := devicesBelow(real, to, d.Permissions)
		if err == nil && len(found) == 0 {
			err = fault.Invalid.Errorf("device %s: no device is in the directory", d.HostPath)
		}
		return found, err
	}
	node, ok, err := deviceAt(real, to, d.Permissions)
	if err != nil {
		return nil, fault.Invalid.Errorf("device %s: %w", d.HostPath, err)
	}
	if !ok {
		return nil, fault.Invalid.Errorf("device %s is not a device node", d.HostPath)
	}
	return []spec.Device{node}, nil
}

// devicesBelow returns the device nodes in and below dir, with their paths in the container
// below to.
func devicesBelow(dir, to, access string) ([]spec.Device, error) {
	var list []spec.Device
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil // unplugged while we look
			}
			return err
		}
		if slices.Contains(notDevices, path) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type()&fs.ModeDevice == 0 {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		node, ok, err := deviceAt(path, filepath.Join(to, rel), access)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if ok {
			list = append(list, node)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for devices: %w", err)
	}
	return list, nil
}

// deviceAt reads the node at path; false means that the file is not a device.
func deviceAt(path, to, access string) (spec.Device, bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return spec.Device{}, false, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	var kind string
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind = "c"
	case unix.S_IFBLK:
		kind = "b"
	default:
		return spec.Device{}, false, nil
	}
	mode := os.FileMode(st.Mode &^ unix.S_IFMT)
	return spec.Device{
		LinuxDevice: specs.LinuxDevice{
			Path: to, Type: kind,
			Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
			FileMode: &mode, UID: &st.Uid, GID: &st.Gid,
		},
		Source: path, Access: access,
	}, true, nil
}
