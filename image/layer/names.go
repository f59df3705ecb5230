package layer

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
)

// maxSteps bounds the names looked up for one layer: a path can have some 2000, and each can be
// a link.
const maxSteps = 1 << 28

// maxLinks is the maximum number of links in a path, as on Linux (path_resolution(7)).
const maxLinks = 40

// errManyFiles is the error for a layer too large to be kept in memory.
var errManyFiles = errors.New("files of the layer take too much memory")

// nodeCost is the memory of a file in bytes, besides its name and attributes.
const nodeCost = 240

// names is the tree of a layer in memory, with a layer's rules: missing parents are created, a
// later entry replaces an earlier one, and links lead where they would if the layer were the
// root file system.
type names struct {
	root  *dir
	dirs  map[*erofs.Node]*dir
	white map[whiteoutName]bool // whiteouts so far

	room  int // bytes of memory that files may still take, see maxNames
	steps int // names looked up so far

	last    string // the last requested directory
	lastDir *dir   // nil: the name may refer to another one now
}

// A dir has the state of a directory besides its inode.
type dir struct {
	*erofs.Node
	parent  *dir // of the root: itself
	length  int  // of its path, with a slash before each name
	implied bool // created without an entry
	opaque  bool // hides the layers below
}

type whiteoutName struct {
	dir  *dir
	base string
}

func newNames(room int) names {
	t := names{dirs: make(map[*erofs.Node]*dir), white: make(map[whiteoutName]bool), room: room}
	t.root = t.made(nil)
	t.root.parent = t.root
	return t
}

// made returns a new directory, plain and empty. Its time is 0, so that a layer becomes the same
// file on every machine.
func (t *names) made(parent *dir) *dir {
	d := &dir{parent: parent, Node: &erofs.Node{
		Mode: unix.S_IFDIR | 0o755, Entries: make(map[string]*erofs.Node),
	}}
	t.dirs[d.Node] = d
	return d
}

// take gives d the attributes of n.
func (d *dir) take(n *erofs.Node) {
	d.Mode, d.UID, d.GID, d.Sec, d.Nsec = n.Mode, n.UID, n.GID, n.Sec, n.Nsec
	if d.Attrs == nil {
		d.Attrs = make(map[string]string)
	}
	maps.Copy(d.Attrs, n.Attrs)
}

func checkName(base string) error {
	if len(base) > unix.NAME_MAX || strings.Contains(base, "\x00") {
		return fault.Invalid.Errorf("name of %d bytes cannot be made", len(base))
	}
	return nil
}

// keep accounts for memory that the tree takes.
func (t *names) keep(bytes int) error {
	if t.room -= bytes; t.room < 0 {
		return fault.Invalid.Errorf("%w: more than %d bytes", errManyFiles, maxNames)
	}
	return nil
}

// dir returns the directory name, a clean path or ".", and creates missing parts.
func (t *names) dir(name string) (*dir, error) {
	if name == t.last && t.lastDir != nil {
		return t.lastDir, nil
	}
	if len(name) > MaxPath {
		return nil, fault.Invalid.Errorf("directory name has %d bytes", len(name))
	}
	d, err := t.walk(name, true)
	if err != nil {
		return nil, fault.Invalid.Errorf("open directory %.300q: %w", name, err)
	}
	t.last, t.lastDir = name, d
	return d, nil
}

// walk goes from the root to the directory name. With create, it creates missing directories,
// even behind a dangling link.
func (t *names) walk(name string, create bool) (*dir, error) {
	at, links, fresh := t.root, 0, false
	rest := name
	for rest != "" {
		if t.steps++; t.steps > maxSteps {
			return nil, fault.Invalid.Errorf("paths of the layer have more than %d names", maxSteps)
		}
		var base string
		base, rest, _ = strings.Cut(rest, "/")
		switch base {
		case "", ".":
			continue
		case "..":
			if fresh {
				return nil, unix.ENOENT // a link goes up from a directory that does not exist
			}
			at = at.parent
			continue
		}
		n := at.Entries[base]
		switch {
		case n != nil && n.IsDir():
			at, fresh = t.dirs[n], false
		case n != nil && n.Target != "":
			if links++; links > maxLinks {
				return nil, unix.ELOOP
			}
			if strings.HasPrefix(n.Target, "/") {
				at, fresh = t.root, false
			}
			rest = n.Target + "/" + rest
		case n == nil && create, create && t.white[whiteoutName{at, base}]:
			d, err := t.mkdir(at, base)
			if err != nil {
				return nil, err
			}
			at, fresh = d, true
		case n == nil:
			return nil, unix.ENOENT
		default:
			return nil, unix.ENOTDIR
		}
	}
	return at, nil
}

// mkdir creates a directory that the layer has no entry for, or not yet.
func (t *names) mkdir(at *dir, base string) (*dir, error) {
	d := t.made(at)
	d.implied = true
	return d, t.add(at, base, d)
}

// add puts a new directory into another one, possibly in place of a whiteout.
func (t *names) add(at *dir, base string, d *dir) error {
	if err := checkName(base); err != nil {
		return err
	}
	if d.length = at.length + 1 + len(base); d.length > MaxPath {
		return unix.ENAMETOOLONG
	}
	// Where the layer itself has a whiteout, the content below stays hidden.
	if white := (whiteoutName{at, base}); t.white[white] {
		delete(t.white, white)
		d.hide()
	}
	at.Entries[base] = d.Node
	return t.keep(2*nodeCost + len(base))
}

// hide makes d hide its contents in the layers below.
func (d *dir) hide() {
	d.opaque = true
	if d.Attrs == nil {
		d.Attrs = make(map[string]string)
	}
	d.Attrs[OverlayOpaque] = "y"
}

// put gives n the name base in the directory at, replacing what had it.
func (t *names) put(at *dir, base string, n *erofs.Node) error {
	t.clear(at, base)
	at.Entries[base] = n
	size := nodeCost + len(base) + len(n.Target)
	for key, value := range n.Attrs {
		size += len(key) + len(value) + nameCost
	}
	return t.keep(size)
}

// clear removes the entry base from the directory at.
func (t *names) clear(at *dir, base string) {
	n := at.Entries[base]
	if n == nil {
		return
	}
	delete(t.white, whiteoutName{at, base})
	delete(at.Entries, base)
	t.lastDir = nil // names may refer to others now: this one may be a symlink to elsewhere
	t.forget(n)
}

// forget drops a removed directory and everything below it.
func (t *names) forget(n *erofs.Node) {
	d := t.dirs[n]
	if d == nil {
		return
	}
	for base, child := range n.Entries {
		delete(t.white, whiteoutName{d, base})
		t.forget(child)
	}
	delete(t.dirs, n)
}

// directory creates the directory base, or gives an existing one the attributes of n.
func (t *names) directory(at *dir, base string, n *erofs.Node) error {
	old := at.Entries[base]
	d := t.dirs[old]
	if d == nil {
		hides := t.white[whiteoutName{at, base}]
		t.clear(at, base)
		d = t.made(at)
		if hides {
			d.hide()
		}
		if err := t.add(at, base, d); err != nil {
			return fault.Invalid.Errorf("make directory: %w", err)
		}
	}
	d.implied = false
	d.take(n)
	size := 0
	for key, value := range n.Attrs {
		size += len(key) + len(value) + nameCost
	}
	return t.keep(size)
}

// link makes name, which is base in the directory at, a hard link to an earlier entry.
func (t *names) link(at *dir, base, name, target string) error {
	clean, err := inside(target)
	if err != nil || clean == name {
		return err
	}
	find := func() (*erofs.Node, error) {
		parent, old := path.Split(clean)
		from, err := t.walk(path.Clean(parent), false)
		if err != nil {
			return nil, fault.Invalid.Errorf("hard link to %q: %w", target, err)
		}
		n := from.Entries[old]
		switch {
		case old == "." || n != nil && n.IsDir():
			return nil, fault.Invalid.Errorf("hard link to %q: %w", target, unix.EPERM)
		case n == nil:
			return nil, fault.Invalid.Errorf("hard link to %q: %w", target, unix.ENOENT)
		}
		return n, nil
	}
	if _, err := find(); err != nil {
		return err
	}
	t.clear(at, base)
	n, err := find() // clear may have removed it
	if err != nil {
		return err
	}
	at.Entries[base] = n
	return t.keep(nameCost + len(base))
}

// whiteout makes a whiteout for the name hidden, see unpacker.whiteout.
func (t *names) whiteout(at *dir, hidden string) error {
	if whiteoutPrefix+hidden == whiteoutOpaque {
		at.hide()
		return nil
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return fault.Invalid.Errorf("whiteout of nothing")
	}
	if err := checkName(hidden); err != nil {
		return err
	}
	if n := at.Entries[hidden]; n != nil {
		if n.IsDir() {
			t.dirs[n].hide()
		}
		return nil
	}
	t.white[whiteoutName{at, hidden}] = true
	at.Entries[hidden] = &erofs.Node{Mode: unix.S_IFCHR}
	return t.keep(2*nodeCost + len(hidden))
}

// marked returns the paths of directories created without an entry, and of those that hide what
// is below, sorted.
func (t *names) marked() (implied, opaque []string) {
	var visit func(d *dir, name string)
	visit = func(d *dir, name string) {
		if d.implied {
			implied = append(implied, name)
		}
		if d.opaque {
			opaque = append(opaque, name)
		}
		for base, n := range d.Entries {
			if child := t.dirs[n]; child != nil {
				visit(child, path.Join(name, base))
			}
		}
	}
	visit(t.root, ".")
	slices.Sort(implied)
	slices.Sort(opaque)
	return implied, opaque
}
