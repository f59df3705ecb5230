package rootfs

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/image/layer"
	"golang.org/x/sys/unix"
)

// makeDirs creates the directories dirs, parents first, in the new directory dir, whose own
// attributes are root.
func makeDirs(dir string, root layer.RootAttr, dirs []layer.DirAttr) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	fd, err := unix.Open(filepath.Clean(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	for _, d := range dirs {
		if err := unix.Mkdirat(fd, d.Path, 0o700); err != nil {
			return os.NewSyscallError("mkdirat", err)
		}
		if err := unix.Fchownat(fd, d.Path, int(d.UID), int(d.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("fchownat", err)
		}
		if err := unix.Fchmodat(fd, d.Path, d.Mode, 0); err != nil {
			return os.NewSyscallError("fchmodat", err)
		}
	}
	return root.Give(dir)
}
