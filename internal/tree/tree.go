// Package tree walks and removes directory trees that others, such as containers, have created
// and may be changing meanwhile.
//
// It uses descriptors and single names: never paths, which are limited to 4096 bytes, and never
// symlinks. However deep a tree is, only a few of its directories are open at a time; on the way
// back a directory is reopened by "..", and accepted if it is the one that was left. For
// each directory on the way down it stores some hundred bytes, and the position in it, but not
// its other entries:
//
//	top ─▶ … closed: name, inode, offset … ─▶ … the last maxOpen, open … ─▶ here
//
// So memory grows only with the depth of a tree. A process that moves directories meanwhile can
// hide something from a walk, but cannot lead it out of the tree.
package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	maxOpen    = 64      // directories open at a time, besides the top
	maxLost    = 64      // how often the way back may be searched from the top
	bufferSize = 8 << 10 // bytes read by one getdents(2)
)

var errShuffled = errors.New("its directories were moved meanwhile")

// A level is a directory on the way down.
type level struct {
	name   string // in the level above
	dev    uint64
	ino    uint64
	offset int64    // after the entry read last, see getdents(2)
	open   *handle  // nil while closed
	rest   []string // the remaining names of a sorted walk
	listed bool     // rest is filled
	state  removal  // used by Remove only
}

// A handle is an open directory.
type handle struct {
	fd   int
	buf  []byte
	left []byte // the unread part of buf
}

// levels are the directories from the top to the current one.
type levels struct {
	list   []level
	low    int // list[low:] are open, and list[0]
	length int // of the path below the top
	lost   int
	sorted bool
	mounts bool // enter mounts in the tree
}

// handles are spare ones of all walks: a buffer for each level of each container's files would be an
// eighth of what crispd allocates.
var handles = sync.Pool{New: func() any { return &handle{buf: make([]byte, bufferSize)} }}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openDir opens the directory name in dir. The error is unix.EXDEV if it is a mount.
func (l *levels) openDir(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: dirFlags}
	if !l.mounts {
		how.Resolve = unix.RESOLVE_NO_XDEV
	}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN { // openat2(2): EAGAIN can be retried
			return fd, err
		}
	}
}

// openTop opens the directory name in dir, which may be a mount, as the top.
func (l *levels) openTop(dir int, name string) error {
	fd, err := unix.Openat(dir, name, dirFlags, 0)
	if err != nil {
		return err
	}
	return l.push(fd, name)
}

// push descends into the directory fd, which it takes over.
func (l *levels) push(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return err
	}
	if len(l.list) == 0 {
		l.low = 1
		name = ""
	} else {
		l.length += len(name) + 1
	}
	l.list = append(l.list, level{name: strings.Clone(name), dev: uint64(st.Dev), ino: st.Ino, open: newHandle(fd)})
	if len(l.list)-l.low > maxOpen {
		l.close(l.low)
		l.low++
	}
	return nil
}

func newHandle(fd int) *handle {
	h := handles.Get().(*handle)
	*h = handle{fd: fd, buf: h.buf}
	return h
}

func (l *levels) close(i int) {
	if h := l.list[i].open; h != nil {
		unix.Close(h.fd)
		handles.Put(h)
		l.list[i].open = nil
	}
}

func (l *levels) closeAll() {
	for i := range l.list {
		l.close(i)
	}
	l.list = nil
}

// here returns the deepest level.
func (l *levels) here() *level { return &l.list[len(l.list)-1] }

func (l *levels) fd() int { return l.here().open.fd }

// pop goes up, and further up if the level above was moved. It is not called at the top.
func (l *levels) pop() error {
	last := len(l.list) - 1
	up := &l.list[last-1]
	var err error
	if up.open == nil {
		err = l.back(last)
	}
	l.close(last)
	l.drop(last)
	if err != nil {
		return l.search()
	}
	return nil
}

func (l *levels) drop(i int) {
	l.length -= len(l.list[i].name) + 1
	l.list[i] = level{}
	l.list = l.list[:i]
	l.low = max(1, min(l.low, i-1))
}

// back opens the level above i, which is open, by its "..".
func (l *levels) back(i int) error {
	fd, err := unix.Openat(l.list[i].open.fd, "..", dirFlags, 0)
	if err != nil {
		return err
	}
	return l.reopen(i-1, fd)
}

// reopen takes over fd as the directory of level i, if it is the same, and seeks to where
// reading stopped.
func (l *levels) reopen(i int, fd int) error {
	up := &l.list[i]
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && (uint64(st.Dev) != up.dev || st.Ino != up.ino) {
		err = unix.ESTALE
	}
	if err == nil && !up.listed && up.offset != 0 {
		_, err = unix.Seek(fd, up.offset, unix.SEEK_SET)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	up.open = newHandle(fd)
	return nil
}

// search descends again from the top, as far as the levels still exist, after some were moved. All
// except the top are closed.
func (l *levels) search() error {
	if l.lost++; l.lost > maxLost {
		return errShuffled
	}
	found := 1
	for ; found < len(l.list); found++ {
		fd, err := l.openDir(l.list[found-1].open.fd, l.list[found].name)
		if err != nil || l.reopen(found, fd) != nil {
			break
		}
		if found > 1 {
			l.close(found - 1)
		}
	}
	for i := len(l.list) - 1; i >= found; i-- {
		l.drop(i)
	}
	l.low = max(1, found-1)
	return nil
}

// next reads the next name in the deepest directory. kind is that of getdents(2),
// or DT_UNKNOWN in a sorted walk. ok is false at the end.
func (l *levels) next() (name string, kind byte, ok bool, err error) {
	here := l.here()
	if l.sorted {
		if !here.listed {
			if err := l.names(here); err != nil {
				return "", 0, false, err
			}
		}
		if len(here.rest) == 0 {
			return "", 0, false, nil
		}
		name, here.rest = here.rest[0], here.rest[1:]
		return name, unix.DT_UNKNOWN, true, nil
	}
	return here.read()
}

// names reads all names of a directory and sorts them, because the order of getdents(2) depends
// on the file system.
func (l *levels) names(d *level) error {
	d.listed = true
	for {
		name, _, ok, err := d.read()
		if err != nil {
			return err
		}
		if !ok {
			slices.Sort(d.rest)
			return nil
		}
		d.rest = append(d.rest, name)
	}
}

// read is next in the order of getdents(2).
func (d *level) read() (name string, kind byte, ok bool, err error) {
	h := d.open
	for {
		if len(h.left) == 0 {
			n, err := unix.Getdents(h.fd, h.buf)
			if err == unix.EINTR {
				continue
			}
			if err == unix.ENOENT { // it was removed meanwhile
				n, err = 0, nil
			}
			if err != nil || n == 0 {
				return "", 0, false, err
			}
			h.left = h.buf[:n]
		}
		// struct linux_dirent64: ino, offset of the next, size of this, kind, name
		e := h.left[:binary.NativeEndian.Uint16(h.left[16:])]
		h.left = h.left[len(e):]
		d.offset = int64(binary.NativeEndian.Uint64(e[8:]))
		b := e[19:]
		if i := bytes.IndexByte(b, 0); i >= 0 {
			b = b[:i]
		}
		if name := string(b); name != "." && name != ".." {
			return name, e[18], true, nil
		}
	}
}

// path returns the path of name in the deepest directory, from the top.
func (l *levels) path(top, name string) string {
	names := []string{top}
	for i := 1; i < len(l.list); i++ {
		names = append(names, l.list[i].name)
	}
	if name != "" {
		names = append(names, name)
	}
	return shorten(strings.Join(names, "/"))
}

// shorten cuts out the middle of a path that would fill the log.
func shorten(path string) string {
	const most, keep = 256, 120
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:keep], "") + "…" + strings.ToValidUTF8(path[len(path)-keep:], "")
}

// gone reports whether err means that a name no longer exists, or is no longer a directory.
func gone(err error) bool {
	return err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP
}
