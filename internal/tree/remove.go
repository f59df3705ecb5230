package tree

import (
	"context"
	"io/fs"

	"golang.org/x/sys/unix"
)

// maxPasses bounds how often a directory is read again because it is filled while it is being
// emptied.
const maxPasses = 100

// removal is the state of a directory in Remove.
type removal struct {
	failed bool // something in it cannot be removed
	passes uint8
}

// Remove removes the file at path and everything below it. A missing file is no error. Remove
// does not enter a mount, unless it is path itself, and leaves it in place: EBUSY. It needs no
// disk space. After an error it continues with the rest, and returns the first error, an
// *fs.PathError. It stops when ctx ends.
func Remove(ctx context.Context, path string) error {
	return RemoveAt(ctx, unix.AT_FDCWD, path)
}

// RemoveAt is Remove of name, relative to the directory with the descriptor dir.
func RemoveAt(ctx context.Context, dir int, name string) error {
	r := &remove{top: name}
	defer r.closeAll()
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR {
		return &fs.PathError{Op: "remove", Path: shorten(name), Err: err}
	}
	for pass := 0; ; pass++ {
		err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if r.err != nil {
			return r.err
		}
		if !notEmpty(err) && err != unix.EBUSY || pass == maxPasses {
			return &fs.PathError{Op: "remove", Path: shorten(name), Err: err}
		}
		if err == unix.EBUSY && pass > 0 {
			return &fs.PathError{Op: "remove", Path: shorten(name), Err: err}
		}
		if err := r.openTop(dir, name); err != nil {
			return &fs.PathError{Op: "open", Path: shorten(name), Err: err}
		}
		if err := r.empty(ctx); err != nil {
			return err
		}
	}
}

// notEmpty reports whether err is rmdir(2)'s error for a directory that is not empty.
func notEmpty(err error) bool { return err == unix.ENOTEMPTY || err == unix.EEXIST }

type remove struct {
	levels
	top string
	err error // the first
}

// note keeps the first error, and marks the directory as not removable.
func (r *remove) note(op, name string, err error) {
	if r.err == nil {
		r.err = &fs.PathError{Op: op, Path: r.path(r.top, name), Err: err}
	}
	r.here().state.failed = true
}

// empty removes everything in the top, and closes it.
func (r *remove) empty(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		name, kind, ok, err := r.next()
		if err != nil {
			r.note("read directory", "", err)
		}
		if ok {
			r.entry(name, kind)
			continue
		}
		if len(r.list) == 1 {
			r.closeAll()
			return nil
		}
		if err := r.leave(); err != nil {
			return err
		}
	}
}

// entry removes a file, or descends into a directory.
func (r *remove) entry(name string, kind byte) {
	if kind != unix.DT_DIR {
		err := unix.Unlinkat(r.fd(), name, 0)
		if err == nil || err == unix.ENOENT {
			return
		}
		if err != unix.EISDIR {
			r.note("remove", name, err)
			return
		}
	}
	r.descend(name, 0)
}

func (r *remove) descend(name string, passes uint8) {
	fd, err := r.openDir(r.fd(), name)
	if err == nil {
		if err = r.push(fd, name); err == nil {
			r.here().state.passes = passes
			return
		}
	}
	switch err {
	case unix.EXDEV:
		err = unix.EBUSY // like rmdir(2) of a mount
	case unix.ENOTDIR, unix.ELOOP: // replaced by something else meanwhile
		err = unix.Unlinkat(r.fd(), name, 0)
	default: // unreadable, but perhaps empty
		if unix.Unlinkat(r.fd(), name, unix.AT_REMOVEDIR) == nil {
			err = nil
		}
	}
	if err != nil && err != unix.ENOENT {
		r.note("remove", name, err)
	}
}

// leave removes a directory that was read to its end, and goes up. If the directory is not empty
// although nothing in it failed, it is read again: another process fills it, or has misled us, or
// reading while removing has skipped something.
func (r *remove) leave() error {
	depth := len(r.list)
	name, state := r.here().name, r.here().state
	if err := r.pop(); err != nil {
		return &fs.PathError{Op: "remove", Path: shorten(r.top), Err: err}
	}
	if len(r.list) != depth-1 {
		return nil // the remainder is found again from further up
	}
	err := unix.Unlinkat(r.fd(), name, unix.AT_REMOVEDIR)
	switch {
	case err == nil || err == unix.ENOENT:
	case notEmpty(err) && state.failed:
		r.here().state.failed = true
	case notEmpty(err) && state.passes < maxPasses:
		r.descend(name, state.passes+1)
	default:
		r.note("remove", name, err)
	}
	return nil
}
