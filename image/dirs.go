package image

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// maxDirs is how many directories are kept open. Archives go directory by
// directory, so that few are needed at a time.
const maxDirs = 128

// dirs opens the directories of a layer by name, below root and nowhere else,
// and makes those that are missing.
type dirs struct {
	root  int    // descriptor of the layer's directory
	path  string // its path
	umask uint32
	open  map[string]int

	last   string // the name asked for last, and its descriptor
	lastFD int
	stale  []int // forgotten, but perhaps in use until the next get

	made map[string]bool // directories made for want of an entry
}

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
	fd, err := d.walk(name)
	switch {
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG):
		return -1, fault.Invalid.Errorf("open directory %q: %w", name, err)
	case err != nil:
		return -1, err
	}
	d.last, d.lastFD = name, fd
	return fd, nil
}

// walk opens or makes the directory name in its parent, which it walks to first.
// A name that is no directory of its own, but perhaps a link to one, is looked up
// from the root.
func (d *dirs) walk(name string) (int, error) {
	if fd, ok := d.open[name]; ok {
		return fd, nil
	}
	parent, base := d.root, name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		var err error
		if parent, err = d.walk(name[:i]); err != nil {
			return -1, err
		}
		base = name[i+1:]
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, base, flags, 0)
	if err == unix.ENOENT {
		if err := d.mkdir(parent, base, name); err != nil {
			return -1, err
		}
		fd, err = unix.Openat(parent, base, flags, 0)
	}
	if err == unix.ELOOP || err == unix.ENOTDIR {
		fd, err = d.follow(name)
	}
	if err != nil {
		return -1, os.NewSyscallError("openat", err)
	}
	d.open[name] = fd
	return fd, nil
}

// mkdir makes a directory that the layer has no entry for, or not yet.
func (d *dirs) mkdir(parent int, base, name string) error {
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return os.NewSyscallError("mkdirat", err)
	}
	if d.umask&0o755 != 0 {
		if err := unix.Fchmodat(parent, base, 0o755, 0); err != nil {
			return os.NewSyscallError("fchmodat", err)
		}
	}
	if d.made == nil {
		d.made = make(map[string]bool)
	}
	d.made[name] = true
	return nil
}

// find opens the directory name if it is there. Symlinks on the way lead where
// they would lead if the layer were the root file system.
func (d *dirs) find(name string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(d.root, name, how)
		// openat2(2): EAGAIN if a rename or mount anywhere on the system raced with
		// a "..".
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
}

// follow is find, for a name that is a link. What a dangling link leads to is
// made, inside the root. Nobody else changes the layer meanwhile, so that working
// out the path first is no race.
func (d *dirs) follow(name string) (int, error) {
	fd, err := d.find(name)
	if err != unix.ENOENT {
		return fd, err
	}
	full, err := securejoin.SecureJoin(d.path, name)
	if err != nil {
		return -1, fault.Invalid.Errorf("directory %q: %w", name, err)
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(full, d.path), "/")
	if rel == "" || rel == name {
		return -1, unix.ELOOP // it would lead here again
	}
	if _, err := d.walk(rel); err != nil {
		return -1, err
	}
	return d.find(name)
}

// explicit notes that the layer has an entry for the directory name after all.
func (d *dirs) explicit(name string) { delete(d.made, name) }

// implied returns the directories that were made for want of an entry, sorted.
func (d *dirs) implied() []string {
	var names []string
	for name := range d.made {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// flush forgets all directories: what a name stands for may have changed.
func (d *dirs) flush() {
	for _, fd := range d.open {
		d.stale = append(d.stale, fd)
	}
	clear(d.open)
	d.last = ""
}

func (d *dirs) close() {
	d.flush()
	for _, fd := range append(d.stale, d.root) {
		unix.Close(fd)
	}
}
