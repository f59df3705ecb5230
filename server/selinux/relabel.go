package selinux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
)

// xattr is the extended attribute with a file's label (selinux(8)).
const xattr = "security.selinux"

// system are the directories that must not be relabelled for a pod: others could no longer read
// them. Their subdirectories may be.
var system = []string{
	"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/opt", "/proc",
	"/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/local",
	"/usr/sbin", "/usr/share", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp",
}

// Refuse returns an error if path, which is absolute and has no symlinks, must not
// be relabelled.
func Refuse(path string) error {
	path = filepath.Clean(path)
	if slices.Contains(system, path) || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") {
		return fault.Invalid.Errorf("%s belongs to the system and is not relabelled for a pod", path)
	}
	return nil
}

// Relabel labels the file at path and everything below it. Symlinks are labelled and not followed,
// even if one replaces a directory meanwhile.
//
// The top is labelled last. If it already has the label, so does everything below, or has
// inherited the right one since. So only the top is examined: a volume is walked once, not at
// each start of each container. An interrupted walk leaves the top unchanged, and the next one
// starts over.
//
// still is called before each directory; its error, or the context's, ends the walk. A file
// system without labels stays unchanged.
func Relabel(ctx context.Context, path, label string, still func() error) error {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("relabel: %w", err)
	}
	defer f.Close()
	if have, err := get(int(f.Fd())); err == nil && have == label || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("relabel %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := set(int(f.Fd()), label); err != nil {
			return fmt.Errorf("relabel %s: %w", path, err)
		}
		return nil
	}
	// File systems mounted below belong to the volume: its container will see them.
	o := tree.Options{Mounts: true, Leave: func(d *tree.File) error { return set(d.FD, label) }}
	err = tree.WalkAt(ctx, int(f.Fd()), ".", o, func(f *tree.File) error {
		if f.IsDir() {
			return still() // Leave labels it
		}
		fd, err := unix.Openat(f.Dir, f.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			err = set(fd, label)
		}
		if err == nil || err == unix.ENOENT { // removed meanwhile
			return nil
		}
		return &fs.PathError{Op: "relabel", Path: f.Name, Err: err}
	})
	if err != nil {
		return fmt.Errorf("relabel %s: %w", path, err)
	}
	return nil
}

// set labels the file of a descriptor. An O_PATH descriptor refers to the file itself, even if
// it is a symlink.
func set(fd int, label string) error {
	if have, err := get(fd); err == nil && have == label {
		return nil
	}
	if err := unix.Setxattr(fdPath(fd), xattr, []byte(label), 0); err != nil && err != unix.ENOTSUP {
		return err
	}
	return nil
}

func get(fd int) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Getxattr(fdPath(fd), xattr, buf)
	if err == unix.ERANGE {
		return "", nil // none of our labels is that long
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
