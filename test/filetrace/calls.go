package filetrace

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A call is one system call in progress.
type call struct {
	thread *thread
	name   string
	sys    *sys
	args   [6]uint64

	path   string // absolute: the file that it is about
	change bool   // it changes a file, or syncs one
	open   string // a path by which the object can be opened, if not by path
	follow bool   // also resolve symbolic links at the end of the path

	// The state before the call.
	was        File
	existed    bool
	from, to   place
	fromFile   File
	toPath     string
	flags, off uint64
}

// A place is a name in a directory.
type place struct {
	path string
	dir  uint64
}

// sys describes a system call that we know.
type sys struct {
	name    string
	locate  func(*tracer, *call) bool // sets path and change; false: not below our directory
	changes bool
	happens bool                 // even if it is made to fail
	before  func(*tracer, *call) // called before it happens
	after   func(*tracer, *call, int64) []Op
}

func (c *call) id() int { return c.thread.id }

func (c *call) before(t *tracer) {
	if c.sys.before != nil {
		c.sys.before(t, c)
	}
}

func (t *tracer) returned(c *call, result int64) {
	t.ops = append(t.ops, c.sys.after(t, c, result)...)
}

// named takes the path from the arguments dirfd and name; dirfd < 0: the call has none.
func named(dirfd, name int) func(*tracer, *call) bool {
	return func(t *tracer, c *call) bool {
		fd := uint64(uint32(0xffffff9c)) // AT_FDCWD
		if dirfd >= 0 {
			fd = c.args[dirfd]
		}
		text := t.text(c.id(), uintptr(c.args[name]))
		c.change = true
		if text == "" && dirfd >= 0 {
			c.path, c.open, c.follow = t.fd(c.id(), fd), fdLink(c.id(), fd), true // AT_EMPTY_PATH
			return t.below(c.path)
		}
		c.path = t.at(c.id(), fd, text)
		if strings.HasPrefix(c.path, "/proc/") {
			c.open = c.path
			c.path, _ = os.Readlink(c.open)
			c.path = strings.TrimSuffix(c.path, " (deleted)")
		}
		return t.below(c.path)
	}
}

// byFD takes the path from an argument that is a file descriptor.
func byFD(arg int) func(*tracer, *call) bool {
	return func(t *tracer, c *call) bool {
		c.path, c.open, c.follow, c.change = t.fd(c.id(), c.args[arg]), fdLink(c.id(), c.args[arg]), true, true
		return t.below(c.path)
	}
}

func (t *tracer) place(path string) place {
	var st unix.Stat_t
	if unix.Stat(filepath.Dir(path), &st) != nil || st.Dev != t.dev {
		return place{}
	}
	return place{path, st.Ino}
}

// object returns the path of the object that the call is about.
func (c *call) object() string {
	if c.open != "" {
		return c.open
	}
	return c.path
}

func rememberName(t *tracer, c *call) {
	c.from = t.place(c.path)
	c.was, c.existed = t.file(c.path, false)
}

// made is for calls that make a new object.
func made(kind Kind) func(*tracer, *call, int64) []Op {
	return func(t *tracer, c *call, _ int64) []Op {
		f, ok := t.file(c.path, false)
		if !ok || c.from.dir == 0 {
			return nil
		}
		return []Op{{Kind: kind, Call: c.name, Path: t.rel(c.path), Dir: c.from.dir, File: f}}
	}
}

func opened(t *tracer, c *call, fd int64) []Op {
	if int(c.flags)&unix.O_TMPFILE == unix.O_TMPFILE {
		f, ok := t.file(fdLink(c.id(), uint64(fd)), true)
		if !ok {
			return nil
		}
		return []Op{{Kind: Tmpfile, Call: c.name, Path: t.rel(c.path), File: f}}
	}
	f, ok := t.file(fdLink(c.id(), uint64(fd)), true)
	if !ok || f.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if !c.existed {
		return []Op{{Kind: Create, Call: c.name, Path: t.rel(c.path), Dir: c.from.dir, File: f}}
	}
	if int(c.flags)&unix.O_TRUNC != 0 {
		return []Op{{Kind: Write, Call: c.name, Path: t.rel(c.path), File: f}}
	}
	return nil
}

// changesFile sets whether opening a file with these flags changes it.
func changesFile(t *tracer, c *call, flags uint64) {
	c.flags = flags
	c.change = int(flags)&(unix.O_CREAT|unix.O_TRUNC) != 0 || int(flags)&unix.O_TMPFILE == unix.O_TMPFILE
	if int(flags)&unix.O_ACCMODE != unix.O_RDONLY && int(flags)&unix.O_DSYNC != 0 {
		t.unmodelled(c, "it is opened with O_SYNC or O_DSYNC")
	}
}

func openAt(dirfd, name, flags int) sys {
	locate := named(dirfd, name)
	return sys{
		changes: true,
		locate: func(t *tracer, c *call) bool {
			if !locate(t, c) {
				return false
			}
			changesFile(t, c, c.args[flags])
			return true
		},
		before: rememberName, after: opened,
	}
}

func openat2() sys {
	locate := named(0, 1)
	s := openAt(0, 1, 2)
	s.locate = func(t *tracer, c *call) bool {
		if !locate(t, c) {
			return false
		}
		how, err := t.read(c.id(), uintptr(c.args[2]), 8)
		if err != nil {
			return false
		}
		changesFile(t, c, binary.NativeEndian.Uint64(how))
		return true
	}
	return s
}

// written is for calls that change bytes of the file that is open as argument arg; offset
// is the argument with the offset, < 0: the file's current one.
func written(arg, offset int) sys {
	return sys{
		changes: true, locate: byFD(arg),
		after: func(t *tracer, c *call, n int64) []Op {
			f, ok := t.file(c.open, true)
			if n == 0 || !ok || f.Mode&unix.S_IFMT != unix.S_IFREG {
				return nil
			}
			var off int64
			if offset >= 0 {
				off = int64(c.args[offset])
			} else if end, err := position(c.id(), c.args[arg]); err == nil {
				off = end - n
			}
			return t.wrote(c, f, off, n)
		},
	}
}

func (t *tracer) wrote(c *call, f File, off, n int64) []Op {
	data, size, err := t.content(c.object(), off, n)
	if err != nil {
		t.unmodelled(c, err.Error())
		return nil
	}
	return []Op{{Kind: Write, Call: c.name, Path: t.rel(c.path), File: f, Off: off, Data: data, Size: size}}
}

// copied is written for copy_file_range(2) and splice(2), whose offset is behind a
// pointer.
func copied(arg, offset int) sys {
	s := written(arg, -1)
	s.before = func(t *tracer, c *call) {
		if at := c.args[offset]; at != 0 {
			if b, err := t.read(c.id(), uintptr(at), 8); err == nil {
				c.off = binary.NativeEndian.Uint64(b)
			}
		}
	}
	after := s.after
	s.after = func(t *tracer, c *call, n int64) []Op {
		if c.args[offset] == 0 {
			return after(t, c, n)
		}
		f, ok := t.file(c.open, true)
		if n == 0 || !ok {
			return nil
		}
		return t.wrote(c, f, int64(c.off), n)
	}
	return s
}

// resized is for calls that change a file's size or allocation.
func resized(locate func(*tracer, *call) bool) sys {
	return sys{
		changes: true, locate: locate,
		after: func(t *tracer, c *call, _ int64) []Op {
			f, ok := t.file(c.object(), true)
			if !ok || f.Mode&unix.S_IFMT != unix.S_IFREG {
				return nil
			}
			return t.wrote(c, f, 0, 1<<40) // rare, and only for small files
		},
	}
}

// described is for calls that change what inode(7) describes; flags is the argument that
// may have AT_SYMLINK_NOFOLLOW, < 0: the call has no flags, and follow decides.
func described(locate func(*tracer, *call) bool, follow bool, flags int) sys {
	return sys{
		changes: true, locate: locate,
		after: func(t *tracer, c *call, _ int64) []Op {
			links := c.follow || follow && (flags < 0 || c.args[flags]&unix.AT_SYMLINK_NOFOLLOW == 0)
			if c.open != "" {
				links = true
			}
			f, ok := t.file(c.object(), links)
			if !ok {
				return nil
			}
			return []Op{{Kind: Meta, Call: c.name, Path: t.rel(c.path), File: f}}
		},
	}
}

func synced(kind Kind) sys {
	return sys{
		changes: true, locate: byFD(0),
		after: func(t *tracer, c *call, _ int64) []Op {
			f, ok := t.file(c.open, true)
			if !ok {
				return nil
			}
			return []Op{{Kind: kind, Call: c.name, Path: t.rel(c.path), File: f}}
		},
	}
}

// fromTo locates the two paths of a call, which must both be below the directory or both not.
func fromTo(fromFD, from, toFD, to int) func(*tracer, *call) bool {
	source, target := named(fromFD, from), named(toFD, to)
	return func(t *tracer, c *call) bool {
		other := *c
		is := target(t, &other)
		c.toPath = other.path
		if source(t, c) != is {
			t.unmodelled(c, "it leads into or out of the directory, by "+c.toPath)
		}
		return is
	}
}

// moved is for rename(2) and its variants; flags < 0: without flags.
func moved(fromFD, from, toFD, to, flags int) sys {
	return sys{
		changes: true,
		locate:  fromTo(fromFD, from, toFD, to),
		before: func(t *tracer, c *call) {
			c.from, c.to = t.place(c.path), t.place(c.toPath)
			c.was, c.existed = t.file(c.path, false)
			c.fromFile, _ = t.file(c.toPath, false)
		},
		after: func(t *tracer, c *call, _ int64) []Op {
			if c.from.dir == 0 || c.to.dir == 0 || !c.existed || c.was.Ino == c.fromFile.Ino {
				return nil // rename(2) of two names of one file does nothing
			}
			op := Op{Kind: Rename, Call: c.name, Path: t.rel(c.path), To: t.rel(c.toPath), Dir: c.from.dir, ToDir: c.to.dir, File: c.was}
			if flags >= 0 {
				switch f := c.args[flags]; {
				case f&unix.RENAME_EXCHANGE != 0:
					op.Kind = Swap
				case f&unix.RENAME_WHITEOUT != 0:
					t.unmodelled(c, "RENAME_WHITEOUT")
				}
			}
			return []Op{op}
		},
	}
}

func linked(fromFD, from, toFD, to int) sys {
	return sys{
		changes: true,
		locate:  fromTo(fromFD, from, toFD, to),
		before:  func(t *tracer, c *call) { c.to = t.place(c.toPath) },
		after: func(t *tracer, c *call, _ int64) []Op {
			f, ok := t.file(c.toPath, false)
			if !ok || c.to.dir == 0 {
				return nil
			}
			return []Op{{Kind: Link, Call: c.name, Path: t.rel(c.path), To: t.rel(c.toPath), ToDir: c.to.dir, File: f}}
		},
	}
}

func removed(dirfd, name int) sys {
	return sys{
		changes: true, locate: named(dirfd, name), before: rememberName,
		after: func(t *tracer, c *call, _ int64) []Op {
			if c.from.dir == 0 || !c.existed {
				return nil
			}
			return []Op{{Kind: Remove, Call: c.name, Path: t.rel(c.path), Dir: c.from.dir, File: c.was}}
		},
	}
}

func making(kind Kind, dirfd, name int) sys {
	return sys{changes: true, locate: named(dirfd, name), before: rememberName, after: made(kind)}
}

// looks is for calls that change nothing, and may fail.
func looks(locate func(*tracer, *call) bool) sys { return sys{locate: locate} }

// table has the calls of both architectures; old adds older ones of amd64.
var table = sync.OnceValue(func() map[uint64]*sys {
	m := map[uint64]*sys{}
	enter := func(nr uint64, name string, s sys) {
		s.name = name
		m[nr] = &s
	}
	enter(unix.SYS_OPENAT, "openat", openAt(0, 1, 2))
	enter(unix.SYS_OPENAT2, "openat2", openat2())
	enter(unix.SYS_MKDIRAT, "mkdirat", making(Mkdir, 0, 1))
	enter(unix.SYS_MKNODAT, "mknodat", making(Mknod, 0, 1))
	enter(unix.SYS_SYMLINKAT, "symlinkat", making(Symlink, 1, 2))
	enter(unix.SYS_LINKAT, "linkat", linked(0, 1, 2, 3))
	enter(unix.SYS_RENAMEAT2, "renameat2", moved(0, 1, 2, 3, 4))
	enter(unix.SYS_RENAMEAT, "renameat", moved(0, 1, 2, 3, -1))
	enter(unix.SYS_UNLINKAT, "unlinkat", removed(0, 1))

	enter(unix.SYS_WRITE, "write", written(0, -1))
	enter(unix.SYS_WRITEV, "writev", written(0, -1))
	enter(unix.SYS_PWRITE64, "pwrite64", written(0, 3))
	enter(unix.SYS_PWRITEV, "pwritev", written(0, 3))
	enter(unix.SYS_PWRITEV2, "pwritev2", written(0, 3))
	enter(unix.SYS_SENDFILE, "sendfile", written(0, -1))
	enter(unix.SYS_COPY_FILE_RANGE, "copy_file_range", copied(2, 3))
	enter(unix.SYS_SPLICE, "splice", copied(2, 3))
	enter(unix.SYS_FTRUNCATE, "ftruncate", resized(byFD(0)))
	enter(unix.SYS_TRUNCATE, "truncate", resized(named(-1, 0)))
	enter(unix.SYS_FALLOCATE, "fallocate", resized(byFD(0)))

	enter(unix.SYS_FCHMOD, "fchmod", described(byFD(0), true, -1))
	enter(unix.SYS_FCHMODAT, "fchmodat", described(named(0, 1), true, -1))
	enter(unix.SYS_FCHMODAT2, "fchmodat2", described(named(0, 1), true, 3))
	enter(unix.SYS_FCHOWN, "fchown", described(byFD(0), true, -1))
	enter(unix.SYS_FCHOWNAT, "fchownat", described(named(0, 1), true, 4))
	enter(unix.SYS_UTIMENSAT, "utimensat", described(named(0, 1), true, 3))
	enter(unix.SYS_SETXATTR, "setxattr", described(named(-1, 0), true, -1))
	enter(unix.SYS_LSETXATTR, "lsetxattr", described(named(-1, 0), false, -1))
	enter(unix.SYS_FSETXATTR, "fsetxattr", described(byFD(0), true, -1))
	enter(unix.SYS_REMOVEXATTR, "removexattr", described(named(-1, 0), true, -1))
	enter(unix.SYS_LREMOVEXATTR, "lremovexattr", described(named(-1, 0), false, -1))
	enter(unix.SYS_FREMOVEXATTR, "fremovexattr", described(byFD(0), true, -1))

	enter(unix.SYS_FSYNC, "fsync", synced(Fsync))
	enter(unix.SYS_FDATASYNC, "fdatasync", synced(Fsync))
	enter(unix.SYS_SYNCFS, "syncfs", synced(Syncfs))
	enter(unix.SYS_SYNC, "sync", sys{
		changes: true,
		locate:  func(t *tracer, c *call) bool { c.path, c.change = t.dir, true; return true },
		after:   func(t *tracer, c *call, _ int64) []Op { return []Op{{Kind: Syncfs, Call: c.name, Path: "."}} },
	})
	enter(unix.SYS_MMAP, "mmap", sys{locate: func(t *tracer, c *call) bool {
		const shared = unix.MAP_SHARED | unix.MAP_SHARED_VALIDATE
		if c.args[3]&shared != 0 && c.args[3]&unix.MAP_ANONYMOUS == 0 && c.args[2]&unix.PROT_WRITE != 0 && byFD(4)(t, c) {
			t.unmodelled(c, "it is mapped to be written to")
		}
		return false
	}})

	enter(unix.SYS_READ, "read", looks(byFD(0)))
	enter(unix.SYS_PREAD64, "pread64", looks(byFD(0)))
	enter(unix.SYS_GETDENTS64, "getdents64", looks(byFD(0)))
	enter(unix.SYS_FSTAT, "fstat", looks(byFD(0)))
	enter(unix.SYS_STATX, "statx", looks(named(0, 1)))
	enter(unix.SYS_READLINKAT, "readlinkat", looks(named(0, 1)))
	enter(unix.SYS_LGETXATTR, "lgetxattr", looks(named(-1, 0)))
	enter(unix.SYS_GETXATTR, "getxattr", looks(named(-1, 0)))
	enter(unix.SYS_MOUNT, "mount", looks(named(-1, 1)))
	enter(unix.SYS_UMOUNT2, "umount2", looks(named(-1, 0)))
	enter(unix.SYS_MOVE_MOUNT, "move_mount", looks(named(2, 3)))
	enter(unix.SYS_OPEN_TREE, "open_tree", looks(named(0, 1)))
	enter(unix.SYS_CLOSE, "close", sys{locate: byFD(0), happens: true})
	old(enter)
	return m
})
