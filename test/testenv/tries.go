package testenv

import (
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The probes in this file try something in a temporary directory, where the tests have
// theirs.

// inTemp calls try with a new directory.
func inTemp(try func(dir string) error) error {
	dir, err := os.MkdirTemp("", "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return try(dir)
}

// idmap makes a mount of a directory in which the owners are those of a new user
// namespace (mount_setattr(2)).
func idmap() error {
	return inTemp(func(dir string) error {
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 1000}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 1000}},
			Pdeathsig:   syscall.SIGKILL,
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("make a user namespace: %w", err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
		if err != nil {
			return err
		}
		defer ns.Close()
		mnt, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("open_tree", err)
		}
		defer unix.Close(mnt)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
		return os.NewSyscallError("mount_setattr", unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &attr))
	})
}

// ptrace traces another process.
func ptrace() error {
	cmd := exec.Command("sleep", "0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	err := cmd.Start()
	if err == nil {
		cmd.Process.Kill()
		cmd.Wait()
	}
	return err
}

// leases asks for a lease on a file (fcntl(2), F_SETLEASE).
func leases() error {
	return inTemp(func(dir string) error {
		fd, err := unix.Open(filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		return os.NewSyscallError("fcntl", err)
	})
}

// labels sets the attribute that is a file's SELinux label.
func labels() error {
	return inTemp(func(dir string) error {
		return os.NewSyscallError("setxattr", unix.Setxattr(dir, "security.selinux", []byte("system_u:object_r:tmp_t:s0"), 0))
	})
}

// immutable makes a directory immutable (ioctl_iflags(2)).
func immutable() error {
	return inTemp(func(dir string) error {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE)
		return errors.Join(os.NewSyscallError("ioctl", err), unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0))
	})
}

// fanotify requires a kernel that asks for permission before a file is opened
// (fanotify(7)).
func fanotify() error {
	return inTemp(func(dir string) error {
		fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
		if err != nil {
			return os.NewSyscallError("fanotify_init", err)
		}
		defer unix.Close(fd)
		return os.NewSyscallError("fanotify_mark", unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, dir))
	})
}

// emptyEROFS is an EROFS file system of 4096 bytes with an empty root directory, as
// mkfs.erofs 1.5 makes it, compressed with gzip.
const emptyEROFS = "H4sIAAAAAAACA2NgGAWjYBSMVPDo4dcH6Qun7WIGsnkYVBgYsahhxK2dkVL7WYD4rSMTgzSU/x8IkOVVoLQEAxOcLQlk6+npjUbe" +
	"KBgFo2AUjIJRMApGwSgYBSQCAAXVW9kAEAAA"

// erofs mounts an EROFS file system from a file (Linux 6.12).
func erofs() error {
	return inTemp(func(dir string) error {
		zip, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(emptyEROFS)))
		if err != nil {
			return err
		}
		image, err := io.ReadAll(zip)
		if err != nil {
			return err
		}
		file, on := filepath.Join(dir, "image"), filepath.Join(dir, "on")
		if err := errors.Join(os.WriteFile(file, image, 0o600), os.Mkdir(on, 0o700)); err != nil {
			return err
		}
		if err := unix.Mount(file, on, "erofs", unix.MS_RDONLY, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		return os.NewSyscallError("umount", unix.Unmount(on, unix.MNT_DETACH))
	})
}

// selinux checks that the loaded policy knows the label that lxc_contexts, a file of the
// policy, has for processes of containers.
func selinux() error {
	const context = "/sys/fs/selinux/context"
	if _, err := os.Stat(context); err != nil {
		return err
	}
	files, _ := filepath.Glob("/etc/selinux/*/contexts/lxc_contexts")
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if m := process.FindSubmatch(data); m != nil {
			return os.WriteFile(context, m[1], 0)
		}
	}
	return errors.New("no lxc_contexts has a label for processes")
}

var process = regexp.MustCompile(`(?m)^process *= *"([^"]+)"`)
