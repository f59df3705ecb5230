package erofs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount mounts the file system in the file at path, read-only, and returns a descriptor of the
// detached mount. label is the SELinux label of every file in it; "" = none.
//
// Linux 6.12 and later can mount EROFS from a file, unless the file is on a file system that
// does not support it. The error is unix.ENOTBLK on older kernels and unix.ENODEV without EROFS.
func Mount(path, label string) (fd int, err error) {
	fsfd, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fsfd)
	options := [][2]string{{"source", path}}
	if label != "" {
		options = append(options, [2]string{"context", label})
	}
	for _, opt := range options {
		if err := unix.FsconfigSetString(fsfd, opt[0], opt[1]); err != nil {
			return -1, fmt.Errorf("EROFS option %s: %w", opt[0], os.NewSyscallError("fsconfig", err))
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, fmt.Errorf("mount %s: %w", path, os.NewSyscallError("fsconfig", err))
	}
	fd, err = unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	return fd, os.NewSyscallError("fsmount", err)
}

// Probe checks whether file systems in files of the directory dir can be mounted. The error is
// the reason why not; see Lacking.
func Probe(dir string) (err error) {
	f, err := os.CreateTemp(dir, "erofs-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	defer f.Close()
	w, err := NewWriter(f)
	if err != nil {
		return err
	}
	if _, err := w.Close(context.Background(), &Node{Mode: unix.S_IFDIR | 0o755}, UUID{}); err != nil {
		return err
	}
	mnt, err := Mount(f.Name(), "")
	if err != nil {
		return err
	}
	return unix.Close(mnt)
}

// Lacking reports whether an error of Probe or Mount means that this kernel can never mount
// EROFS from files there, and not just a single failure.
func Lacking(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTBLK) }
