package volume

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/crisp-cri/crisp/internal/tree"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// The permissions of a pod's fsGroup.
const (
	writeMask = fs.FileMode(0o660)
	readMask  = fs.FileMode(0o440)
	enterMask = fs.FileMode(0o110) // of directories, in addition
)

// own gives dir and everything below it to the pod's fsGroup, if it has one, and grants the
// group permission to read and, unless readOnly, to write. New files inherit the group through
// the set-group-ID bits. With fsGroupChangePolicy OnRootMismatch, own does not walk a dir that
// already has the group and permissions. It skips files that are removed meanwhile.
func own(dir string, pod *v1.Pod, readOnly bool) error {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	gid, mask := int(*sc.FSGroup), writeMask
	if readOnly {
		mask = readMask
	}
	if p := sc.FSGroupChangePolicy; p != nil && *p == v1.FSGroupChangeOnRootMismatch && owned(dir, gid, mask) {
		return nil
	}
	// Another pod may be writing to a claim meanwhile: the walk uses descriptors, so that
	// no link or rename can divert it.
	return tree.Walk(context.Background(), dir, tree.Options{Mounts: true}, func(f *tree.File) error {
		if f.FD >= 0 {
			return give(f.FD, gid, mask)
		}
		fd, err := unix.Openat(f.Dir, f.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT { // removed meanwhile
			return nil
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: filepath.Join(dir, f.Name), Err: err}
		}
		defer unix.Close(fd)
		return give(fd, gid, mask)
	})
}

// give changes the group of an open file and adds the permissions of mask. A symbolic link has
// no mode.
func give(fd, gid int, mask fs.FileMode) error {
	path := fmt.Sprintf("/proc/self/fd/%d", fd) // fchmod(2) does not work with O_PATH
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unix.Fchownat(fd, "", -1, gid, unix.AT_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "chown", Path: nameOf(path), Err: err}
	}
	mode := st.Mode&0o7777 | uint32(mask)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		mode |= unix.S_ISGID | uint32(enterMask)
	}
	// chown(2) may have cleared the set-ID bits that mode has.
	if err := unix.Chmod(path, mode); err != nil {
		return &fs.PathError{Op: "chmod", Path: nameOf(path), Err: err}
	}
	return nil
}

// nameOf returns the name of an open file, for messages.
func nameOf(fdPath string) string {
	if name, err := os.Readlink(fdPath); err == nil {
		return name
	}
	return fdPath
}

func owned(dir string, gid int, mask fs.FileMode) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	want := mask | enterMask
	return ok && int(s.Gid) == gid && info.Mode()&want == want && info.Mode()&fs.ModeSetgid != 0
}
