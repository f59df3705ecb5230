package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// maxDirs is how many directories are kept open. Archives go directory by directory, so few are
// needed at a time.
const maxDirs = 128

// MaxPath bounds the path of a directory in the layer, in bytes. Directories are opened relative
// to descriptors, so otherwise only the size of the archive would bound it, and the tree could
// not be listed or removed any more.
const MaxPath = 3800

// maxLookups bounds the steps in one layer to resolve dangling links: each link may take as many
// as its target has parts.
const maxLookups = 1 << 16

// dirs opens the directories of a layer by name, never outside root, and creates missing ones.
type dirs struct {
	ctx  context.Context
	root int    // descriptor of the layer's directory
	path string // its path
	open map[string]openDir

	plain   bool // there are no whiteouts, and no marks
	room    *room
	opens   int // calls of openat(2) and openat2(2) so far
	lookups int // steps that dangling links took so far

	last   string // the last requested name, and its descriptor
	lastFD int
	stale  []int // forgotten, but perhaps in use until the next get

	white map[string]bool // whiteouts created so far
	marks int             // directories created without an entry, which are marked, less those that got one
}

// An openDir is a descriptor of a directory, with the length of its path without links.
type openDir struct{ fd, length int }

// get returns a descriptor of the directory name, a clean path or ".". It stays
// open until the next get, even if flush is called.
func (d *dirs) get(name string) (int, error) {
	if name == "." {
		return d.root, nil
	}
	if name == d.last {
		return d.lastFD, nil
	}
	for _, fd := range d.stale {
		unix.Close(fd)
	}
	d.stale = d.stale[:0]
	if len(d.open) >= maxDirs {
		d.flush()
	}
	if len(name) > MaxPath {
		return -1, fault.Invalid.Errorf("directory name has %d bytes", len(name))
	}
	dir, err := d.walk(name)
	switch {
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG):
		return -1, fault.Invalid.Errorf("open directory %q: %w", name, err)
	case err != nil:
		return -1, err
	}
	d.last, d.lastFD = name, dir.fd
	return dir.fd, nil
}

// walk opens or creates the directory name in its parent. If the parent is not open, it walks
// there only to create something: an archive may alternate between directories of the greatest
// depth, and must not make us open every level each time.
func (d *dirs) walk(name string) (openDir, error) {
	if dir, ok := d.open[name]; ok {
		return dir, nil
	}
	parent, base := openDir{fd: d.root}, name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		var ok bool
		if parent, ok = d.open[name[:i]]; !ok {
			dir, err := d.whole(name)
			switch err {
			case nil:
				d.open[name] = dir
				return dir, nil
			case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
			default:
				return openDir{}, os.NewSyscallError("openat2", err)
			}
			if parent, err = d.walk(name[:i]); err != nil {
				return openDir{}, err
			}
		}
		base = name[i+1:]
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir := openDir{length: parent.length + 1 + len(base)}
	if dir.length > MaxPath {
		return openDir{}, unix.ENAMETOOLONG
	}
	var err error
	d.opens++
	dir.fd, err = unix.Openat(parent.fd, base, flags, 0)
	if err == unix.ENOENT {
		if err := d.mkdir(parent.fd, base); err != nil {
			return openDir{}, err
		}
		dir.fd, err = unix.Openat(parent.fd, base, flags, 0)
	}
	if err == unix.ENOTDIR && d.white[name] {
		dir.fd, err = d.reveal(parent.fd, base, name)
	}
	if err == unix.ELOOP || err == unix.ENOTDIR {
		dir, err = d.follow(name)
	}
	if err != nil {
		return openDir{}, os.NewSyscallError("openat", err)
	}
	d.open[name] = dir
	return dir, nil
}

// whole opens the directory name if it exists, in one call, or two if its path has links.
func (d *dirs) whole(name string) (openDir, error) {
	d.opens++
	fd, err := unix.Openat2(d.root, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err == unix.ELOOP {
		if fd, err = d.find(name); err == nil {
			return d.measured(fd)
		}
	}
	return openDir{fd, 1 + len(name)}, err
}

// mkdir creates a directory that the layer has no entry for, or not yet.
func (d *dirs) mkdir(parent int, base string) error {
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return os.NewSyscallError("mkdirat", err)
	}
	// In a set-group-ID directory it has inherited that bit and the group.
	if err := unix.Fchownat(parent, base, 0, 0, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("fchownat", err)
	}
	if err := unix.Fchmodat(parent, base, 0o755, 0); err != nil {
		return os.NewSyscallError("fchmodat", err)
	}
	if d.plain {
		return nil
	}
	d.marks++
	return setMark(parent, base, OverlayImplied)
}

// keep accounts for a name kept until the layer is unpacked.
func (d *dirs) keep(name string) error { return d.room.wait(d.ctx, len(name)+nameCost) }

// reveal creates a directory where the layer itself has a whiteout: the contents below stay
// hidden.
func (d *dirs) reveal(parent int, base, name string) (int, error) {
	delete(d.white, name)
	if err := unix.Unlinkat(parent, base, 0); err != nil {
		return -1, os.NewSyscallError("unlink", err)
	}
	if err := d.mkdir(parent, base); err != nil {
		return -1, err
	}
	if err := setMark(parent, base, OverlayOpaque); err != nil {
		return -1, err
	}
	return unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// find opens the directory name if it exists. Symlinks lead where they would lead if the layer
// were the root file system.
func (d *dirs) find(name string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		d.opens++
		fd, err := unix.Openat2(d.root, name, how)
		// openat2(2): EAGAIN if a rename or mount anywhere on the system raced with
		// a "..".
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
}

// follow is find for a name that is a link. It creates the target of a dangling link, inside the
// root. Nothing else changes the layer meanwhile, so resolving the path first is not a race.
func (d *dirs) follow(name string) (openDir, error) {
	fd, err := d.find(name)
	if err == unix.ENOENT {
		full, err := securejoin.SecureJoinVFS(d.path, name, lookups{&d.lookups})
		if err != nil {
			return openDir{}, fault.Invalid.Errorf("directory %q: %w", name, err)
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(full, d.path), "/")
		if rel == "" || rel == name {
			return openDir{}, unix.ELOOP // it would lead here again
		}
		if _, err := d.walk(rel); err != nil {
			return openDir{}, err
		}
		// The link may go up from a directory that does not exist.
		if fd, err = d.find(name); err != nil {
			return openDir{}, fault.Invalid.Errorf("directory %q: %w", name, err)
		}
	} else if err != nil {
		return openDir{}, err
	}
	return d.measured(fd)
}

// measured returns the directory fd, found through links, with the length of its real path. If
// that is too long, it closes fd.
func (d *dirs) measured(fd int) (openDir, error) {
	real, err := os.Readlink(FDPath(fd))
	if err != nil || len(real)-len(d.path) > MaxPath {
		unix.Close(fd)
		return openDir{}, unix.ENAMETOOLONG
	}
	return openDir{fd, len(real) - len(d.path)}, nil
}

// lookups does lookups for securejoin, and counts them in n.
type lookups struct{ n *int }

func (l lookups) Lstat(name string) (os.FileInfo, error) {
	if *l.n++; *l.n > maxLookups {
		return nil, fmt.Errorf("finding what links lack takes more than %d steps", maxLookups)
	}
	return os.Lstat(name)
}

func (l lookups) Readlink(name string) (string, error) { return os.Readlink(name) }

// explicit records that the layer has an entry for a directory that was there already.
func (d *dirs) explicit(parent int, base string) error {
	err := unix.Lremovexattr(FDPath(parent)+"/"+base, OverlayImplied)
	switch err {
	case nil:
		d.marks--
	case unix.ENODATA, unix.ENOTSUP:
	default:
		return os.NewSyscallError("removexattr", err)
	}
	return nil
}

// flush forgets all directories: names may refer to others now.
func (d *dirs) flush() {
	for _, dir := range d.open {
		d.stale = append(d.stale, dir.fd)
	}
	clear(d.open)
	d.last = ""
}

func (d *dirs) close() {
	d.room.leave()
	d.flush()
	for _, fd := range append(d.stale, d.root) {
		unix.Close(fd)
	}
}
