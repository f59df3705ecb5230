package image

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// maxDirs is how many directories are kept open. Archives go directory by
// directory, so that few are needed at a time.
const maxDirs = 64

// dirs opens the directories of a layer by name, below root and nowhere else,
// and makes those that are missing.
type dirs struct {
	root int    // descriptor of the layer's directory
	path string // its path
	open map[string]int

	last   string // the name asked for last, and its descriptor
	lastFD int
	stale  []int // forgotten, but perhaps in use until the next get

	made map[string]bool // directories made for want of an entry
}

// get returns a descriptor of the directory name, a clean path or ".". It stays
// open until the next get, even if flush is called.
func (d *dirs) get(name string) (int, error) {
	for _, fd := range d.stale {
		unix.Close(fd)
	}
	d.stale = d.stale[:0]
	if name == "." {
		return d.root, nil
	}
	if name == d.last {
		return d.lastFD, nil
	}
	fd, ok := d.open[name]
	if !ok {
		var err error
		if fd, err = d.find(name); errors.Is(err, unix.ENOENT) {
			fd, err = d.makeAll(name)
		}
		switch {
		case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG):
			return -1, fault.Invalid.Errorf("open directory %q: %w", name, err)
		case err != nil:
			return -1, err
		}
		if len(d.open) >= maxDirs {
			d.flush()
		}
		d.open[name] = fd
	}
	d.last, d.lastFD = name, fd
	return fd, nil
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
			return fd, os.NewSyscallError("openat2", err)
		}
	}
}

// makeAll makes the directory name and those above it. A dangling symlink on the
// way leads to where it points, inside the root: nobody changes the layer
// meanwhile, so that working out the path first is no race.
func (d *dirs) makeAll(name string) (int, error) {
	full, err := securejoin.SecureJoin(d.path, name)
	if err != nil {
		return -1, fault.Invalid.Errorf("directory %q: %w", name, err)
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(full, path.Clean(d.path)), "/")
	for i := 0; i <= len(rel); i++ {
		if i < len(rel) && rel[i] != '/' {
			continue
		}
		err := unix.Mkdirat(d.root, rel[:i], 0o755)
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return -1, os.NewSyscallError("mkdirat", err)
		}
		// Not 0755 as the umask has it.
		if err := unix.Fchmodat(d.root, rel[:i], 0o755, 0); err != nil {
			return -1, os.NewSyscallError("fchmodat", err)
		}
		if d.made == nil {
			d.made = make(map[string]bool)
		}
		d.made[rel[:i]] = true
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
