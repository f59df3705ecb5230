package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci/executor/fastinit"
	"github.com/crisp-cri/crisp/oci/wire"
)

// Prepared mounts. libcontainer's child makes a container's /dev, and on cgroup v1 its
// /sys/fs/cgroup, entry by entry in a root that it must not trust: some thirty entries at about
// forty system calls each, a third of a start. The executor makes the same two trees beforehand,
// where no other process can reach them and plain calls are safe (0.3 ms), and libcontainer
// bind-mounts each of them recursively. Our mounts are detached as soon as the container has its
// own.
//
// CRIU needs a container's mounts, and the /dev/null that is its stdin, as
// libcontainer makes them: where a working CRIU is installed, nothing is prepared.
//
// What cannot be prepared is left to libcontainer: a user namespace (which must own
// its devpts), a read-only /dev, a mount label, devices outside of /dev, and everything
// where we cannot make device nodes.

// preparedMounts are the trees that were made for a container beforehand.
type preparedMounts struct {
	dir   string // wire.RunRequest.PrepareDir
	names []string
	make  func() error // makes the cgroups for the fast init; nil = it needs none
}

// prepareMounts makes those of a container's mounts that it can; libcontainer makes those that
// fail.
func (b *builtins) prepareMounts(lc *libcontainer.Container, config *configs.Config, req wire.RunRequest) *preparedMounts {
	if !b.criu.absent.Load() || b.noNodes {
		return &preparedMounts{}
	}
	var paths map[string]string
	if len(b.hierarchies) > 0 && !req.SystemdCgroup { // systemd makes its cgroups itself
		paths, _ = cgroupPaths(lc)
	}
	s, err := b.prepare(req.PrepareDir, config, paths)
	if err != nil {
		b.log.Warn("mounts are left to libcontainer", "container", req.ID, "err", err)
		return &preparedMounts{}
	}
	return s
}

// prepare makes what it can of config's mounts in dir, and changes config to
// bind-mount it.
func (b *builtins) prepare(dir string, config *configs.Config, paths map[string]string) (_ *preparedMounts, err error) {
	dev, ok := canPrepare(config)
	if dir == "" || !ok {
		return &preparedMounts{}, nil
	}
	s := &preparedMounts{dir: dir}
	var steps undo.Stack
	defer steps.RunIf(&err)
	steps.Add("prepared mounts", s.detach)

	list := slices.Clone(config.Mounts)
	if err := s.mount("dev", list[dev]); err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "dev")
	if err := populateDev(root, config.Devices); err != nil {
		return nil, err
	}
	list[dev] = bindOf(root, list[dev])
	if i := slices.IndexFunc(list, isDevpts); i >= 0 {
		pts := list[i]
		if err := mountOn(filepath.Join(root, "pts"), pts.Source, pts.Device, pts.Flags, pts.Data); err != nil {
			return nil, err
		}
		list = slices.Delete(list, i, i+1)
	}
	if i := slices.IndexFunc(list, isShm); i >= 0 {
		shm := filepath.Join(root, "shm")
		if err := mountOn(shm, list[i].Source, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return nil, err
		}
		if err := restrict(shm, dataOnly); err != nil {
			return nil, err
		}
		list = slices.Delete(list, i, i+1)
	}
	if i := slices.IndexFunc(list, isCgroupV1); i >= 0 && !config.Namespaces.Contains(configs.NEWCGROUP) && b.covers(paths) {
		if err := b.prepareCgroups(s, config, list[i], paths); err != nil {
			return nil, err
		}
		list[i] = bindOf(filepath.Join(dir, "cgroup"), list[i])
	}
	config.Mounts = list
	if len(config.MaskPaths) == 0 {
		config.MaskPaths = []string{""} // is never there, but libcontainer examines /dev/null before
	}
	return s, nil
}

// canPrepare returns the index of /dev in config's mounts, if it can be prepared.
func canPrepare(config *configs.Config) (int, bool) {
	if config.Namespaces.Contains(configs.NEWUSER) || config.MountLabel != "" || !fastinit.InDev(config.Devices) {
		return 0, false
	}
	at := slices.IndexFunc(config.Mounts, func(m *configs.Mount) bool {
		return m.Destination == "/dev" && m.Device == "tmpfs" && m.Flags&unix.MS_RDONLY == 0
	})
	return at, at >= 0
}

func isDevpts(m *configs.Mount) bool {
	return m.Destination == "/dev/pts" && m.Device == "devpts"
}

// isShm reports whether m is the sandbox's /dev/shm.
func isShm(m *configs.Mount) bool {
	return m.Destination == "/dev/shm" && m.Device == "bind" && m.Flags == shmFlags
}

const (
	shmFlags = unix.MS_BIND | unix.MS_REC | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	dataOnly = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// mountOn mounts source on target, a new directory.
func mountOn(target, source, kind string, flags int, data string) error {
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, uintptr(flags), data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// restrict sets attributes of all mounts below path, and makes them private.
func restrict(path string, attr uint64) error {
	err := unix.MountSetattr(-1, path, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE})
	return os.NewSyscallError("mount_setattr", err)
}

func isCgroupV1(m *configs.Mount) bool {
	return m.Device == "cgroup" && !cgroups.IsCgroup2UnifiedMode()
}

// bindOf returns the bind mount of a prepared tree, with its flags and everything
// mounted in it.
func bindOf(source string, m *configs.Mount) *configs.Mount {
	return &configs.Mount{
		Source: source, Destination: m.Destination, Device: "bind",
		Flags: unix.MS_BIND | unix.MS_REC, PropagationFlags: m.PropagationFlags,
	}
}

func (s *preparedMounts) mount(name string, m *configs.Mount) error {
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", uintptr(m.Flags), m.Data); err != nil {
		return &os.PathError{Op: "mount", Path: m.Destination, Err: err}
	}
	s.names = append(s.names, name)
	return nil
}

// populateDev makes what the runtime-spec requires in /dev (config-linux.md,
// "Default Devices", and runtime-linux.md, "Dev symbolic links").
func populateDev(root string, nodes []*devices.Device) error {
	for _, d := range nodes {
		if d.Path == "" || d.Path == "/dev/ptmx" {
			continue // for its cgroup rule only, or a link
		}
		if err := makeNode(filepath.Join(root, strings.TrimPrefix(d.Path, "/dev")), d); err != nil {
			return err
		}
	}
	for _, l := range fastinit.DevLinks() {
		if err := os.Symlink(l[1], filepath.Join(root, l[0])); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// makeNode makes one device node, whatever the umask.
func makeNode(path string, d *devices.Device) error {
	kind, ok := fastinit.NodeModes[d.Type]
	if !ok {
		return &os.PathError{Op: "mknod", Path: d.Path, Err: unix.EINVAL}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	mode := uint32(d.FileMode.Perm())
	if err := unix.Mknod(path, kind|mode, int(unix.Mkdev(uint32(d.Major), uint32(d.Minor)))); err != nil {
		return &os.PathError{Op: "mknod", Path: d.Path, Err: err}
	}
	if err := os.Lchown(path, int(d.Uid), int(d.Gid)); err != nil {
		return err
	}
	if err := unix.Chmod(path, mode); err != nil { // after chown, which clears bits
		return &os.PathError{Op: "chmod", Path: d.Path, Err: err}
	}
	return nil
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

// prepareCgroups binds the container's cgroup of each hierarchy. libcontainer makes
// the cgroups later and accepts that they exist.
func (b *builtins) prepareCgroups(s *preparedMounts, config *configs.Config, m *configs.Mount, paths map[string]string) error {
	data := "mode=755"
	if config.Namespaces.Contains(configs.NEWUSER) {
		uid, uerr := config.HostRootUID()
		gid, gerr := config.HostRootGID()
		if err := errors.Join(uerr, gerr); err != nil {
			return err
		}
		data = fmt.Sprintf("%s,uid=%d,gid=%d", data, uid, gid)
	}
	if err := s.mount("cgroup", &configs.Mount{Flags: m.Flags &^ unix.MS_RDONLY, Data: data}); err != nil {
		return err
	}
	root := filepath.Join(s.dir, "cgroup")
	for _, h := range b.hierarchies {
		name := filepath.Base(h.Dir) // cpu,cpuacct
		source, target := dirIn(h, paths), filepath.Join(root, name)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := mountOn(target, source, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		for _, c := range strings.Split(name, ",") {
			if c == name {
				break
			}
			if err := os.Symlink(name, filepath.Join(root, c)); err != nil {
				return err
			}
		}
	}
	set := uint64(dataOnly)
	if m.Flags&unix.MS_RDONLY != 0 {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := restrict(root, set); err != nil {
		return err
	}
	// As with libcontainer, the directory above them is writable.
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(-1, root, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
}

// detach removes the executor's own mounts of the trees; a container keeps its own.
func (s *preparedMounts) detach() error {
	if s.dir == "" {
		return nil
	}
	var errs []error
	for _, name := range s.names {
		path := filepath.Join(s.dir, name)
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			errs = append(errs, &os.PathError{Op: "unmount", Path: path, Err: err})
		}
		errs = append(errs, os.Remove(path))
	}
	errs = append(errs, os.Remove(s.dir))
	return errors.Join(errs...)
}
