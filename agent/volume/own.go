package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	v1 "k8s.io/api/core/v1"
)

// What the group of a pod's volumes must be able to do.
const (
	writeMask = fs.FileMode(0o660)
	readMask  = fs.FileMode(0o440)
	enterMask = fs.FileMode(0o110) // of directories, besides
)

// own gives what is below dir to the group of the pod's volumes, if it has one.
// New files get the group by the set-group-ID bits. With fsGroupChangePolicy
// OnRootMismatch a directory that is right is taken for right as a whole.
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
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, gid); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		mode := info.Mode() | mask
		if d.IsDir() {
			mode |= fs.ModeSetgid | enterMask
		}
		return os.Chmod(path, mode)
	})
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
