package unixsock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A Dir is a directory that can be recreated, with the mode and owner that it had.
type Dir struct {
	path string
	last owned // as last seen
}

// MakeDir creates a directory, with this mode, and missing ones above it. An existing directory
// keeps its mode.
func MakeDir(path string, mode fs.FileMode) (*Dir, error) {
	d := &Dir{filepath.Clean(path), owned{mode: mode}}
	_, err := d.Look()
	return d, err
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Look recreates the directory if it is gone, and reports whether it did.
func (d *Dir) Look() (again bool, err error) {
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(d.path, d.last.mode.Perm()); err != nil {
			return false, err
		}
		if err := d.last.restore(d.path); err != nil {
			return false, err
		}
		again = true
		info, err = os.Stat(d.path)
	}
	if err != nil {
		return again, err
	}
	d.last = own(info)
	return again, nil
}

// An owned is a file's mode and owner.
type owned struct {
	info     fs.FileInfo // nil = unknown, as is the owner
	mode     fs.FileMode
	uid, gid int
}

func own(info fs.FileInfo) owned {
	o := owned{info: info, mode: info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.uid, o.gid = int(st.Uid), int(st.Gid)
	}
	return o
}

// restore gives a new file the mode and owner of its predecessor. The owner comes first: until
// then the file has the mode of a new one, which admits fewer.
func (o owned) restore(path string) error {
	if o.info != nil {
		if err := os.Lchown(path, o.uid, o.gid); err != nil {
			return err
		}
	}
	return os.Chmod(path, o.mode)
}
