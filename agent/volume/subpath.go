package volume

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

// SubPath bind-mounts path, which is below a volume, at a separate place and returns that place.
// A container mounts the place instead of the path itself: after a check, the pod could replace
// the path by a link to anything on the node, but the bind mount is of the file that SubPath
// opened. A path that leads out of the volume is an error. A missing path becomes a directory,
// unless the volume is read-only.
//
// i is the index of the mount in the container. An existing mount stays if it still shows the
// file at path.
func (m *Maker) SubPath(pod *v1.Pod, v *v1.Volume, path, container string, i int) (string, error) {
	if !filepath.IsLocal(path) {
		return "", fmt.Errorf("subPath %q leads out of volume %s", path, v.Name)
	}
	defer m.lock(pod.UID)()
	root, err := os.OpenFile(m.Path(pod, v), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer root.Close()
	fd, err := openBelow(root, path, !m.ReadOnly(pod, v))
	if err == unix.EXDEV {
		fd, err = openResolved(root, m.Path(pod, v), path)
	}
	if err != nil {
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ELOOP) {
			err = errors.New("it leads out of the volume")
		}
		return "", fmt.Errorf("subPath %q of volume %s: %w", path, v.Name, err)
	}
	defer unix.Close(fd)
	target := filepath.Join(m.subpaths(pod.UID), v.Name, container, strconv.Itoa(i))
	return target, bind(fd, target)
}

// openResolved opens a path with absolute links, if its target is also below top. It opens the
// target without following links, so that a link that the pod makes meanwhile is an error.
func openResolved(root *os.File, top, path string) (int, error) {
	top, err := filepath.EvalSymlinks(top)
	if err != nil {
		return -1, err
	}
	target, err := filepath.EvalSymlinks(filepath.Join(top, path))
	if err != nil { // not returned: it would reveal what exists outside
		return -1, unix.EXDEV
	}
	rel, err := filepath.Rel(top, target)
	if err != nil || !filepath.IsLocal(rel) {
		return -1, unix.EXDEV
	}
	return openat2(root, rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
}

// openBelow opens path without leaving root, and follows links that stay inside. With create it
// makes missing directories.
func openBelow(root *os.File, path string, create bool) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := openat2(root, path, how)
	if err != unix.ENOENT || !create || path == "." {
		return fd, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return -1, err
	}
	parent, err := openBelow(root, filepath.Dir(path), true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, filepath.Base(path), 0o700); err == nil {
		made, err := unix.Openat(parent, filepath.Base(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		// the mode of the volume, despite the umask, with the setgid bit for its fsGroup
		err = unix.Fchmod(made, st.Mode&0o7777)
		unix.Close(made)
		if err != nil {
			return -1, err
		}
	} else if err != unix.EEXIST {
		return -1, err
	}
	return openat2(root, path, how)
}

// openat2 is openat2(2) below root. It retries on EINTR, and up to 100 times on EAGAIN, which a
// concurrent rename causes.
func openat2(root *os.File, path string, how *unix.OpenHow) (int, error) {
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(int(root.Fd()), path, how)
		if err == unix.EINTR || err == unix.EAGAIN && tries < 100 {
			continue
		}
		return fd, err
	}
}

// bind mounts an open file or directory at target, unless it is mounted there already.
func bind(fd int, target string) error {
	var want, got unix.Stat_t
	if err := unix.Fstat(fd, &want); err != nil {
		return err
	}
	err := unix.Lstat(target, &got)
	if err == nil && got.Dev == want.Dev && got.Ino == want.Ino {
		return nil
	}
	if err == nil {
		// The mount still shows an old file: the object has changed.
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if want.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o750)
	} else {
		err = os.WriteFile(target, nil, 0o640)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	return nil
}
