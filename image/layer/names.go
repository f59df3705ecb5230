package layer

import (
	"maps"
	"path"
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

// The memory that a tree takes, in bytes: of a file besides its name, target and attributes; of a
// directory besides that, which has maps; and of attributes besides each one's nameCost. Strings
// kept in it are copies: one from a header would hold all of that, which can be a MiB.
const (
	nodeCost  = 240
	dirCost   = 400
	attrsCost = 300
)

// names is the tree of a layer in memory, with a layer's rules: missing parents are created, a
// later entry replaces an earlier one, and links lead where they would if the layer were the
// root file system.
type names struct {
	root  *dir
	dirs  map[*erofs.Node]*dir
	white map[whiteoutName]bool // whiteouts so far

	room  *room
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

func newNames(room *room) names {
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

// costOf is the memory that attributes take.
func costOf(attrs map[string]string) (bytes int) {
	if len(attrs) > 0 {
		bytes = attrsCost
	}
	for key, value := range attrs {
		bytes += len(key) + len(value) + nameCost
	}
	return bytes
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
			d, err := t.mkdir(at, strings.Clone(base))
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
		if err := t.hide(d); err != nil {
			return err
		}
	}
	at.Entries[base] = d.Node
	return t.room.take(nodeCost + dirCost + len(base))
}

// hide makes d hide its contents in the layers below.
func (t *names) hide(d *dir) error {
	if d.opaque {
		return nil
	}
	d.opaque = true
	if d.Attrs == nil {
		d.Attrs = make(map[string]string)
	}
	d.Attrs[OverlayOpaque] = "y"
	return t.room.take(attrsCost)
}

// put gives n the name base in the directory at, replacing what had it.
func (t *names) put(at *dir, base string, n *erofs.Node) error {
	t.clear(at, base)
	at.Entries[base] = n
	return t.room.take(nodeCost + len(base) + len(n.Target) + costOf(n.Attrs))
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
			if err := t.hide(d); err != nil {
				return err
			}
		}
		if err := t.add(at, base, d); err != nil {
			return fault.Invalid.Errorf("make directory: %w", err)
		}
	}
	d.implied = false
	d.take(n)
	return t.room.take(costOf(n.Attrs))
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
	return t.room.take(nameCost + len(base))
}

// whiteout makes a whiteout for the name hidden, see unpacker.whiteout.
func (t *names) whiteout(at *dir, hidden string) error {
	if whiteoutPrefix+hidden == whiteoutOpaque {
		return t.hide(at)
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return fault.Invalid.Errorf("whiteout of nothing")
	}
	if err := checkName(hidden); err != nil {
		return err
	}
	if n := at.Entries[hidden]; n != nil {
		if n.IsDir() {
			return t.hide(t.dirs[n])
		}
		return nil
	}
	t.white[whiteoutName{at, hidden}] = true
	at.Entries[hidden] = &erofs.Node{Mode: unix.S_IFCHR}
	return t.room.take(2*nodeCost + len(hidden))
}

// mark marks the directories without an entry, and reports whether there are any.
func (t *names) mark() (marked bool) {
	only := map[string]string{OverlayImplied: "y"} // most have no other attribute
	for n, d := range t.dirs {
		switch {
		case !d.implied:
			continue
		case len(n.Attrs) == 0:
			n.Attrs = only
		default:
			n.Attrs[OverlayImplied] = "y"
		}
		marked = true
	}
	return marked
}
