package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A nameless is a file of mode 0600 that has no name until it is complete: a crash before that
// leaves nothing.
type nameless struct {
	*os.File
	path  string // its final path
	aside string // its temporary path, if the file system does not support O_TMPFILE
}

// openTmpfile opens a file without a name in the directory dir. Tests replace it.
var openTmpfile = func(dir string) (int, error) {
	return unix.Open(dir, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
}

// createNameless creates a file for path, whose directory exists. NFS and some others do not
// support O_TMPFILE (open(2): EOPNOTSUPP): there a crash leaves a file whose name begins with a
// dot and ends with ".tmp".
func createNameless(path string) (*nameless, error) {
	fd, err := openTmpfile(filepath.Dir(path))
	if err == nil {
		return &nameless{File: os.NewFile(uintptr(fd), path), path: path}, nil
	}
	if err != unix.EOPNOTSUPP {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, err
	}
	return &nameless{File: f, path: path, aside: f.Name()}, nil
}

// name gives the file its path, replacing any file there.
func (f *nameless) name() error {
	if f.aside == "" {
		from := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, f.path, unix.AT_SYMLINK_FOLLOW)
		if err != unix.EEXIST {
			return err
		}
		aside := fmt.Sprintf("%s.%d.new", f.path, os.Getpid())
		if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, aside, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
		f.aside = aside
	}
	if err := os.Rename(f.aside, f.path); err != nil {
		return err
	}
	f.aside = ""
	return nil
}

// discard closes the file, which deletes it unless it was named.
func (f *nameless) discard() error {
	err := f.Close()
	if f.aside != "" {
		err = errors.Join(err, os.Remove(f.aside))
	}
	return err
}
