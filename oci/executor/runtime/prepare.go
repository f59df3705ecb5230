package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
)

// Prepared mounts. On cgroup v1 the executor makes the tree of a container's cgroups, for /sys/fs/cgroup,
// where no other process can reach it, and the fast init brings a copy along. Ours is detached as soon as
// the container has its own.

// preparedMounts are what was mounted for a container beforehand; the zero value is nothing.
type preparedMounts struct {
	dir  string       // wire.RunRequest.PrepareDir; "" = nothing is mounted
	make func() error // makes the cgroups for the fast init; nil = it needs none
}

const dataOnly = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

func isCgroupV1(m *configs.Mount) bool {
	return m.Device == "cgroup" && !cgroups.IsCgroup2UnifiedMode()
}

// covers reports whether the container has a cgroup in each hierarchy of the host.
func (b *builtins) covers(paths map[string]string) bool {
	for _, h := range b.hierarchies {
		if dirIn(h, paths) == "" {
			return false
		}
	}
	return len(b.hierarchies) > 0
}

// dirIn returns the directory in h among paths, by libcontainer's keys; "" = none.
func dirIn(h kernel.Hierarchy, paths map[string]string) string {
	for _, c := range h.Controllers {
		if dir := cmp.Or(paths[c], paths[strings.TrimPrefix(c, "name=")]); dir != "" {
			return dir
		}
	}
	return ""
}

// prepareCgroups binds the container's cgroup of each hierarchy, which it makes, below root. m is the mount
// that they are for. The caller undoes it, complete or not, with detach.
func (b *builtins) prepareCgroups(root string, config *configs.Config, m *configs.Mount, paths map[string]string) error {
	data := "mode=755"
	if config.Namespaces.Contains(configs.NEWUSER) {
		uid, uerr := config.HostRootUID()
		gid, gerr := config.HostRootGID()
		if err := errors.Join(uerr, gerr); err != nil {
			return err
		}
		data = fmt.Sprintf("%s,uid=%d,gid=%d", data, uid, gid)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", uintptr(m.Flags&^unix.MS_RDONLY), label.FormatMountLabel(data, config.MountLabel)); err != nil {
		return &os.PathError{Op: "mount", Path: m.Destination, Err: err}
	}
	for _, h := range b.hierarchies {
		if err := bindHierarchy(root, filepath.Base(h.Dir), dirIn(h, paths)); err != nil {
			return err
		}
	}
	attr := &unix.MountAttr{Attr_set: dataOnly, Propagation: unix.MS_PRIVATE}
	if m.Flags&unix.MS_RDONLY != 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	// As with libcontainer, the directory above them is writable.
	return os.NewSyscallError("mount_setattr", errors.Join(
		unix.MountSetattr(-1, root, unix.AT_RECURSIVE, attr),
		unix.MountSetattr(-1, root, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})))
}

// bindHierarchy binds a cgroup at name, such as "cpu,cpuacct", in root, and links each controller to it.
func bindHierarchy(root, name, cgroup string) error {
	target := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(cgroup, 0o755), os.Mkdir(target, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount(cgroup, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", cgroup, target, err)
	}
	for _, c := range strings.Split(name, ",") {
		if c == name {
			break
		}
		if err := os.Symlink(name, filepath.Join(root, c)); err != nil {
			return err
		}
	}
	return nil
}

// detach removes the executor's own mount of the tree, as far as it was made; a container keeps its own.
func (s *preparedMounts) detach() error {
	if s.dir == "" {
		return nil
	}
	root := filepath.Join(s.dir, "cgroup")
	err := unix.Unmount(root, unix.MNT_DETACH)
	if err == unix.EINVAL || err == unix.ENOENT { // nothing was mounted
		err = nil
	}
	for _, dir := range []string{root, s.dir} {
		if rerr := os.Remove(dir); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
