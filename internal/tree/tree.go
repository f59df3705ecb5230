// Package tree walks and removes directory trees that somebody else has made, a
// container for instance, and may be changing meanwhile.
//
// It goes by descriptors and single names: never by paths, which end at 4096 bytes,
// and never through a symlink. However deep a tree is, few directories of it are
// open at a time; on the way back a directory is opened again by "..", and believed
// if it is the one that was left. Of each directory on the way down it keeps some
// hundred bytes, and where in it the reading was, but not what else is in it:
//
//	top ─▶ … closed: name, inode, offset … ─▶ … the last maxOpen, open … ─▶ here
//
// Memory therefore grows with the depth of a tree alone. Who moves directories
// about meanwhile can hide something from a walk, but cannot lead it out of the tree.
package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxOpen    = 64      // directories that are open at a time, besides the top
	maxLost    = 64      // how often the way back may be searched from the top
	bufferSize = 8 << 10 // of what getdents(2) gives at a time
)

var errShuffled = errors.New("its directories were moved about meanwhile")

// A level is a directory on the way down.
type level struct {
	name   string // in the level above
	dev    uint64
	ino    uint64
	offset int64    // of what follows the entry read last, see getdents(2)
	open   *handle  // nil while closed
	rest   []string // in a sorted walk: what is left of its names
	listed bool     // rest is filled
	state  removal  // used by Remove alone
}

// A handle is an open directory.
type handle struct {
	fd   int
	buf  []byte
	left []byte // of buf, what is still to be read
}

// levels are the directories from the top to where we are.
type levels struct {
	list   []level
	low    int // list[low:] are open, and list[0]
	length int // of the path below the top
	lost   int
	sorted bool
	mounts bool // goes into what is mounted in the tree
	spare  []*handle
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openDir opens the directory name in dir. unix.EXDEV: something is mounted there.
func (l *levels) openDir(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: dirFlags}
	if !l.mounts {
		how.Resolve = unix.RESOLVE_NO_XDEV
	}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN { // openat2(2): EAGAIN can be tried again
			return fd, err
		}
	}
}

// openTop opens the directory name in dir, be it a mount, as the top.
func (l *levels) openTop(dir int, name string) error {
	fd, err := unix.Openat(dir, name, dirFlags, 0)
	if err != nil {
		return err
	}
	return l.push(fd, name)
}

// push goes down into the directory fd, which it takes over.
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
	l.list = append(l.list, level{name: strings.Clone(name), dev: uint64(st.Dev), ino: st.Ino, open: l.handle(fd)})
	if len(l.list)-l.low > maxOpen {
		l.close(l.low)
		l.low++
	}
	return nil
}

func (l *levels) handle(fd int) *handle {
	if n := len(l.spare); n > 0 {
		h := l.spare[n-1]
		l.spare = l.spare[:n-1]
		*h = handle{fd: fd, buf: h.buf}
		return h
	}
	return &handle{fd: fd, buf: make([]byte, bufferSize)}
}

func (l *levels) close(i int) {
	if h := l.list[i].open; h != nil {
		unix.Close(h.fd)
		l.spare = append(l.spare, h)
		l.list[i].open = nil
	}
}

func (l *levels) closeAll() {
	for i := range l.list {
		l.close(i)
	}
	l.list = nil
}

// here is the deepest level.
func (l *levels) here() *level { return &l.list[len(l.list)-1] }

func (l *levels) fd() int { return l.here().open.fd }

// pop goes up, or further up than that if what was above is elsewhere now. It is
// not called at the top.
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

// reopen takes fd over as the directory of level i, if it is that, and goes on
// where the reading was.
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
	up.open = l.handle(fd)
	return nil
}

// search goes the way down again, as far as it is still there, after somebody has
// moved a part of it. All but the top is closed.
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

// next reads the next name in the deepest directory. kind is what getdents(2) says
// of it: DT_UNKNOWN in a sorted walk. ok is false at the end.
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

// names reads all names of a directory, and sorts them: the order of getdents(2) is
// the file system's own.
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

// path is the path of name in the deepest directory, from the top on.
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

// shorten cuts the middle out of a path that would fill the log.
func shorten(path string) string {
	const most, keep = 256, 120
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:keep], "") + "…" + strings.ToValidUTF8(path[len(path)-keep:], "")
}

// gone tells whether err says that a name is not there any more, or stands for
// something else than a directory by now.
func gone(err error) bool {
	return err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP
}
