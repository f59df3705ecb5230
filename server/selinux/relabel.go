package selinux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// xattr is where a file's label is (selinux(8)).
const xattr = "security.selinux"

// maxDepth bounds the directories that are open at once. A volume's owner may
// make deeper ones, and we have descriptors for others too.
const maxDepth = 1024

// system are directories whose files are not a pod's to relabel: others could not
// read them any more. What lies in them is another matter.
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
		return fault.Invalid.Errorf("%s is the system's: it is not relabelled for a pod", path)
	}
	return nil
}

// Relabel gives label to what is at path and all below it. Symlinks get it and are
// not followed, not even one that somebody puts in place of a directory meanwhile.
//
// The top gets it last. If it has it already, all below does, or has got from its
// directory what it should have since; so that is all that is looked at: a volume
// is walked through once, not at each start of each container. An interrupted
// walk leaves the top as it was, and the next one begins again.
//
// still is asked before each directory; its error, and the context's, ends the
// walk. A file system that has no labels is left as it is.
func Relabel(ctx context.Context, path, label string, still func() error) error {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("relabel: %w", err)
	}
	defer f.Close()
	if have, err := get(f); err == nil && have == label || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	w := walk{ctx: ctx, label: label, still: still}
	if err := w.file(f, 0); err != nil {
		return fmt.Errorf("relabel %s: %w", path, err)
	}
	return nil
}

// A walk is one relabelling.
type walk struct {
	ctx   context.Context
	label string
	still func() error
}

// file labels what f, opened with O_PATH, is; a directory after what is in it.
func (w *walk) file(f *os.File, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.directory(f, depth); err != nil {
			return err
		}
	}
	if have, err := get(f); err == nil && have == w.label {
		return nil
	}
	// A descriptor of O_PATH stands for the file itself, a symlink too.
	err := unix.Setxattr(fdPath(f), xattr, []byte(w.label), 0)
	if err != nil && err != unix.ENOTSUP {
		return &fs.PathError{Op: "setxattr", Path: f.Name(), Err: err}
	}
	return nil
}

func (w *walk) directory(f *os.File, depth int) error {
	if depth > maxDepth {
		return fault.Invalid.Errorf("%s is more than %d directories deep", f.Name(), maxDepth)
	}
	if err := w.still(); err != nil {
		return err
	}
	fd, err := unix.Openat(int(f.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	dir := os.NewFile(uintptr(fd), f.Name())
	defer dir.Close()
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := w.child(dir, name, depth); err != nil {
				return err
			}
		}
	}
}

func (w *walk) child(dir *os.File, name string, depth int) error {
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil // removed meanwhile
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return w.file(f, depth+1)
}

// get reads a file's label.
func get(f *os.File) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Getxattr(fdPath(f), xattr, buf)
	if err == unix.ERANGE {
		return "", nil // nothing of ours is so long
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
