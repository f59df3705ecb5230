package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A kernel is the Host for the real kernel.
//
// All pins except those of network namespaces (namespaces.go) are below one directory that is
// bind-mounted onto itself and made private: its mounts propagate to no other mount namespace,
// which could keep them busy.
type kernel struct {
	base    string // <state>/sandboxes
	netNS   string // directory of network namespaces; "" = below base
	systemd bool

	mu   sync.Mutex
	open bool // base is a private mount; guarded by mu
}

func newKernel(base, netNS string, systemd bool) *kernel {
	return &kernel{base: base, netNS: netNS, systemd: systemd}
}

// Pin implements Host. What exists already is left alone, so that an interrupted Pin can be
// repeated; hostname and sysctls belong to the namespaces and are not set again.
func (k *kernel) Pin(p Pins) error {
	if err := k.prepare(); err != nil {
		return err
	}
	dir := filepath.Join(p.Dir, "ns")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of namespaces: %w", err)
	}
	if p.Pid != 0 {
		return pin(fmt.Sprintf("/proc/%d/ns/pid", p.Pid), filepath.Join(dir, "pid"))
	}
	if err := makeNamespaces(p); err != nil {
		return err
	}
	if err := p.link(); err != nil {
		return err
	}
	if p.IPC {
		return makeShm(filepath.Join(p.Dir, "shm"), p.IDs)
	}
	return nil
}

func (k *kernel) Pinned(p Pins) bool {
	want := map[string]bool{"net": p.Net, "uts": p.UTS, "ipc": p.IPC, "pid": p.Pid != 0, "user": p.IDs != nil}
	for kind, wanted := range want {
		if wanted && !isNamespace(p.path(kind)) {
			return false
		}
	}
	return true
}

// Unpin implements Host. It tries only names that Pin may have mounted: reading the mount table
// instead would cost more with every sandbox.
func (k *kernel) Unpin(p Pins) error {
	var paths []string
	for _, name := range []string{"shm", "ns/pid", "ns/ipc", "ns/uts", "ns/net", "ns/user"} {
		paths = append(paths, filepath.Join(p.Dir, name))
	}
	if p.NetNS != "" {
		paths = append(paths, p.NetNS)
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, unmount(path))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove mount point: %w", err))
		}
	}
	return errors.Join(append(errs, removePrepared(filepath.Join(p.Dir, preparedDir)))...)
}

// preparedDir is where the executor prepares mounts, in a directory for each container that is
// being started (wire.RunRequest.PrepareDir).
const preparedDir = "staged"

// removePrepared removes the leftovers of an executor that was killed.
func removePrepared(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range left {
		errs = append(errs, unmount(path))
	}
	if err := errors.Join(errs...); err != nil {
		return err // a remaining mount is a pod's, and not ours to remove
	}
	return os.RemoveAll(dir)
}

func (k *kernel) Close() error {
	k.mu.Lock()
	k.open = false
	k.mu.Unlock()
	errs := []error{unmount(k.base), k.removeCgroupBase()}
	if filepath.Dir(k.netNS) == filepath.Dir(k.base) { // else others have theirs there too
		errs = append(errs, unmount(k.netNS))
	}
	return errors.Join(errs...)
}

// prepare makes base a private mount, and the directory of network namespaces a shared one,
// once.
func (k *kernel) prepare() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open {
		return nil
	}
	mounted, err := mountinfo.Mounted(k.base)
	if err != nil {
		return fmt.Errorf("look at %s: %w", k.base, err)
	}
	if !mounted {
		if err := unix.Mount(k.base, k.base, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s onto itself: %w", k.base, err)
		}
	}
	if err := unix.Mount("", k.base, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", k.base, err)
	}
	if k.netNS != "" {
		if err := share(k.netNS); err != nil {
			return err
		}
	}
	k.open = true
	return nil
}

// pin creates path and bind-mounts a namespace file onto it.
func pin(namespace, path string) error {
	if isNamespace(path) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o444)
	if err != nil {
		return fmt.Errorf("make pin: %w", err)
	}
	f.Close()
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin %s on %s: %w", namespace, path, err)
	}
	return nil
}

// isNamespace reports whether a namespace is mounted at path.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// makeShm mounts the file system that becomes /dev/shm in the containers, with the size that
// other runtimes use. The sandbox's root owns it.
func makeShm(path string, ids *userns.Map) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make shm: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err == nil && st.Type == unix.TMPFS_MAGIC {
		if mounted, err := mountinfo.Mounted(path); err == nil && mounted {
			return nil
		}
	}
	options := "mode=1777,size=65536k"
	if ids != nil {
		options += fmt.Sprintf(",uid=%d,gid=%d", ids.UID.Host, ids.GID.Host)
	}
	err := unix.Mount("shm", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	if err != nil {
		return fmt.Errorf("mount shm on %s: %w", path, err)
	}
	return nil
}

// unmount removes all mounts on path, if any.
func unmount(path string) error {
	for range 16 { // an interrupted Pin may have left more than one
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
			return nil // not a mount point, umount(2)
		case err != nil:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return fmt.Errorf("unmount %s: too many mounts", path)
}

// find returns a pidfd of the process if it is still alive.
func (r *Runtime) find(pid int, startTime uint64) []*os.File {
	f, err := r.host.Find(pid, startTime)
	if err != nil {
		return nil
	}
	return []*os.File{f}
}

func (k *kernel) Find(pid int, startTime uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), wire.FDPid)
	if !alive(pid, startTime) { // checked after the pidfd was opened: it is this process or none
		f.Close()
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	return f, nil
}

// alive reports whether pid is the process that started at startTime. The PID alone may have
// been reused. A zombie is not alive.
func alive(pid int, startTime uint64) bool {
	if pid <= 0 {
		return false
	}
	stat, err := procstat.Read(pid)
	return err == nil && stat.StartTime == startTime && !stat.Ended()
}

// A Host is what we need of the kernel, besides files. Package oci has the real one; ocitest has
// one for tests without root. All methods are idempotent.
type Host interface {
	// Pin creates the namespaces of p and pins them by mounts below its directory.
	Pin(p Pins) error
	// Pinned reports whether everything in p is pinned.
	Pinned(p Pins) bool
	// Unpin removes everything that Pin mounted in p.Dir and at p.NetNS.
	Unpin(p Pins) error
	// Cgroup creates a sandbox's cgroup, or kills its processes and removes it. The path is in
	// the syntax of SandboxConfig.CgroupParent; for a removal it may be either driver's.
	Cgroup(path string, present bool) error
	// EmptyCgroup creates a cgroup called name in parent, in the hierarchies that have parent,
	// or removes it.
	EmptyCgroup(parent, name string, present bool) error
	// Find returns a pidfd of the process, if it is alive and is the one that started at
	// startTime (field 22 of /proc/<pid>/stat): the PID alone may have been reused.
	Find(pid int, startTime uint64) (*os.File, error)
	// Close removes what all sandboxes shared. Nothing may be pinned any more.
	Close() error
}

// Pins are the namespaces and mounts to pin for one sandbox:
//
//	<netns> <dir>/ns/uts <dir>/ns/ipc        new ones
//	<dir>/ns/user                            likewise, and owns the others
//	<dir>/ns/pid                             of the process Pid
//	<dir>/shm                                a tmpfs
type Pins struct {
	Dir           string
	NetNS         string // where the network namespace is pinned; "" = <dir>/ns/net
	Net, UTS, IPC bool
	IDs           *userns.Map       // of the user namespace; nil = the host's
	Hostname      string            // of the new UTS namespace
	Sysctls       map[string]string // of the new namespaces
	Pid           int               // if not 0, only its PID namespace is pinned
}
