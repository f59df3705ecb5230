package fastinit

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/undo"
)

// A Starter starts children.
type Starter struct {
	template *os.File // the mount namespace that children copy
}

// New returns a starter, whose children execute this program. The error says what the kernel
// lacks, or a filter around this program forbids: the mount attributes that it sets require
// Linux 5.14.
func New() (*Starter, error) {
	if err := errors.Join(reserve(), mayOpen()); err != nil {
		return nil, err
	}
	type result struct {
		f   *os.File
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this function
		f, err := newTemplate()
		made <- result{f, err}
	}()
	r := <-made
	if r.err != nil {
		return nil, r.err
	}
	return &Starter{template: r.f}, nil
}

// mayOpen tries the calls that only children make. It does not clone the tree that it opens, because
// no kernel clones every mount.
func mayOpen() error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	unix.Close(tree)
	file, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	unix.Close(file)
	return nil
}

// newTemplate moves the calling thread into a mount namespace of one empty, read-only file
// system with a directory "root", and returns the namespace.
func newTemplate() (_ *os.File, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	steps.Add("namespace", own.Close)
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return nil, os.NewSyscallError("mount", err)
	}
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context)
	err = errors.Join(
		unix.FsconfigSetString(context, "mode", "0555"),
		unix.FsconfigCreate(context))
	if err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(fd)
	if err := unix.Mkdirat(fd, "root", 0o555); err != nil {
		return nil, os.NewSyscallError("mkdir", err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSYMFOLLOW}); err != nil {
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, os.NewSyscallError("move_mount", err)
	}
	if err := unix.Fchdir(fd); err != nil {
		return nil, os.NewSyscallError("fchdir", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return nil, os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return nil, os.NewSyscallError("umount", err)
	}
	return own, nil
}
