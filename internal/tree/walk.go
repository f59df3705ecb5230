package tree

import (
	"context"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Options are the options of Walk.
type Options struct {
	// Sorted visits the names of each directory in order. They stay in memory while the walk is
	// below the directory.
	Sorted bool
	// Mounts makes the walk enter mounts in the tree, instead of only visiting them.
	Mounts bool
	// Leave is called after everything in a directory was visited; only FD and Path of the File
	// are set. It may be nil.
	Leave func(*File) error
}

// A File is a file that Walk visits. It is valid during the visit.
type File struct {
	Dir  int         // descriptor of its directory, or AT_FDCWD
	Name string      // in Dir
	FD   int         // of a directory that will be walked, open for reading; else -1
	Stat unix.Stat_t // of the file itself, if it is a symlink

	levels *levels
}

// PathLen returns the length of the file's path from the top, in bytes.
func (f *File) PathLen() int { return f.levels.length + len(f.Name) }

// Path returns the file's path from the top; that of the top is "". It may be very long: check
// PathLen first.
func (f *File) Path() string {
	if len(f.levels.list) == 0 {
		return ""
	}
	path := make([]byte, 0, f.PathLen())
	for _, d := range f.levels.list[1:] {
		path = append(append(path, d.name...), '/')
	}
	return string(append(path, f.Name...))
}

// IsTop reports whether f is the top of the walk.
func (f *File) IsTop() bool { return len(f.levels.list) == 0 }

// IsDir reports whether f is a directory.
func (f *File) IsDir() bool { return f.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// Walk calls visit for the file at the path top and everything below it, a directory before its
// content. Files that vanish meanwhile may be left out. visit returns fs.SkipDir to skip a
// directory's content; any other error ends the walk, as does the end of ctx. The file at top
// may be of any kind, and may be a mount.
func Walk(ctx context.Context, top string, o Options, visit func(*File) error) error {
	return WalkAt(ctx, unix.AT_FDCWD, top, o, visit)
}

// WalkAt is Walk of top, relative to the directory with the descriptor dir.
func WalkAt(ctx context.Context, dir int, top string, o Options, visit func(*File) error) error {
	w := &walk{levels: levels{sorted: o.Sorted, mounts: o.Mounts}, top: top, visit: visit}
	defer w.closeAll()
	if err := w.first(dir); err != nil {
		return err
	}
	for len(w.list) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		name, _, ok, err := w.next()
		if err != nil {
			return w.failed("read directory", "", err)
		}
		if ok {
			if err := w.file(w.fd(), name); err != nil && !gone(err) {
				return err
			}
			continue
		}
		if o.Leave != nil {
			if err := o.Leave(&File{Dir: -1, FD: w.fd(), levels: &w.levels}); err != nil {
				return err
			}
		}
		if len(w.list) == 1 {
			break
		}
		if err := w.pop(); err != nil {
			return w.failed("walk", "", err)
		}
	}
	return nil
}

type walk struct {
	levels
	top   string
	visit func(*File) error
}

func (w *walk) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: w.path(w.top, name), Err: err}
}

// first visits the top.
func (w *walk) first(dir int) error {
	mounts := w.mounts
	w.mounts = true
	err := w.file(dir, w.top)
	w.mounts = mounts
	if gone(err) {
		return &fs.PathError{Op: "open", Path: w.top, Err: err}
	}
	return err
}

// file visits name in dir, and descends into it if it is a directory. If the name
// vanishes, it returns the error as it is, for gone.
func (w *walk) file(dir int, name string) error {
	f := &File{Dir: dir, Name: name, FD: -1, levels: &w.levels}
	if err := unix.Fstatat(dir, name, &f.Stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return w.vanished("stat", name, err)
	}
	if !f.IsDir() {
		return w.visit(f)
	}
	fd, err := w.openDir(dir, name)
	if err == unix.EXDEV {
		if err := w.visit(f); err != fs.SkipDir {
			return err
		}
		return nil
	}
	if err != nil {
		return w.vanished("open", name, err)
	}
	// By now it may be another directory.
	if err = unix.Fstat(fd, &f.Stat); err == nil {
		f.FD = fd
		err = w.visit(f)
	}
	if err != nil {
		unix.Close(fd)
		if err == fs.SkipDir {
			return nil
		}
		return err
	}
	if err := w.push(fd, name); err != nil {
		return w.failed("stat", name, err)
	}
	return nil
}

func (w *walk) vanished(op, name string, err error) error {
	if gone(err) {
		return err
	}
	if len(w.list) == 0 {
		name = ""
	}
	return w.failed(op, name, err)
}
