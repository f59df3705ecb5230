package layer

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A DirAttr is the owner and mode of a directory of an image.
type DirAttr struct {
	Path     string
	Mode     uint32 // permissions with the special bits
	UID, GID uint32
}

// Inherit finds the directories that would lose their mode or owner in a mount of these layers,
// which are retained, lowest first.
//
// Some tools write "tmp/x" into a layer without an entry for "tmp". Unpacking has to create the
// directory, and overlayfs then shows that one, plain and owned by root, instead of the one in
// the layer below. Each mount puts such directories, and only them, on top of the layers. The
// layers themselves cannot be corrected: another image may have them over another base.
func (ls *Store) Inherit(layers []*Layer) ([]DirAttr, error) {
	first := slices.IndexFunc(layers, func(l *Layer) bool { return len(l.record.Shape.Implied) > 0 })
	if first < 0 || len(layers) < 2 {
		return nil, nil
	}
	var st stack
	defer st.close()
	for _, l := range layers {
		fd, err := ls.open(l)
		if err != nil {
			return nil, err
		}
		st.push(fd, l.record.Shape)
	}
	wanted := make(map[string]bool)
	for i, l := range layers {
		missing := make(map[string]bool) // below layer i, with everything in it
		for _, p := range l.record.Shape.Implied {
			if missing[path.Dir(p)] {
				missing[p] = true
				continue
			}
			attr, ok, err := st.look(i-1, p)
			if err != nil {
				return nil, err
			}
			if !ok {
				missing[p] = true
			} else if attr != (DirAttr{Path: p, Mode: 0o755}) {
				for ; p != "."; p = path.Dir(p) {
					wanted[p] = true
				}
			}
		}
	}
	var dirs []DirAttr
	gone := make(map[string]bool)
	for _, p := range slices.Sorted(maps.Keys(wanted)) { // parents come first
		attr, ok, err := st.look(len(layers)-1, p)
		if err != nil {
			return nil, err
		}
		if gone[path.Dir(p)] || !ok {
			gone[p] = true // a layer above has removed it
			continue
		}
		dirs = append(dirs, attr)
	}
	return dirs, nil
}

// A stack holds the layers of an image, and looks up paths in them as overlayfs would.
type stack []stacked

type stacked struct {
	fd      int
	implied map[string]bool
	opaque  map[string]bool
}

// push puts a layer on top, and takes over the descriptor of its root directory.
func (st *stack) push(fd int, sh shape) {
	s := stacked{fd: fd, implied: make(map[string]bool), opaque: make(map[string]bool)}
	for _, p := range sh.Implied {
		s.implied[p] = true
	}
	for _, p := range sh.Opaque {
		s.opaque[p] = true
	}
	*st = append(*st, s)
}

func (st *stack) close() {
	for _, s := range *st {
		unix.Close(s.fd)
	}
}

// look returns the attributes that the directory p should have, seen from layer i: those of the
// highest layer that has an entry for it. ok is false if none has.
func (st stack) look(i int, p string) (attr DirAttr, ok bool, err error) {
	attr = DirAttr{Path: p, Mode: 0o755}
	for ; i >= 0; i-- {
		// Layers are hostile: no link in them is followed.
		fd, err := unix.Openat2(st[i].fd, p, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		switch err {
		case nil:
			var stat unix.Stat_t
			err := unix.Fstat(fd, &stat)
			unix.Close(fd)
			if err != nil {
				return attr, false, os.NewSyscallError("fstat", err)
			}
			if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
				return attr, ok, nil // it hides the layers below
			}
			ok = true
			if !st[i].implied[p] {
				return DirAttr{p, stat.Mode & 0o7777, stat.Uid, stat.Gid}, true, nil
			}
		case unix.ENOENT:
		case unix.ENOTDIR, unix.ELOOP:
			return attr, ok, nil // something else covers a parent
		default:
			return attr, false, fmt.Errorf("look for %q in a layer: %w", p, err)
		}
		for q := p; q != "."; {
			if q = path.Dir(q); st[i].opaque[q] {
				return attr, ok, nil // it hides everything in q, including p
			}
		}
	}
	return attr, ok, nil
}

// Visible returns the layers of which something can be visible, highest first. Of a layer that
// occurs twice it drops the lower one: the higher one covers it completely, and overlayfs
// refuses the same directory twice.
func Visible(layers []*Layer) []*Layer {
	var visible []*Layer
	seen := make(map[digest.Digest]bool)
	for i := len(layers) - 1; i >= 0; i-- {
		if l := layers[i]; !seen[l.DiffID] {
			seen[l.DiffID] = true
			visible = append(visible, l)
			// overlayfs does not check a root directory for the mark.
			if slices.Contains(l.record.Shape.Opaque, ".") {
				break
			}
		}
	}
	return visible
}
