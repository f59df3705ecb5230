package layer

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A DirAttr is the owner and mode of a directory of an image.
type DirAttr struct {
	Path     string
	Mode     uint32 // permissions with the special bits
	UID, GID uint32
}

// Bounds for Inherit over all layers of an image, in bytes of names and nameCost for each.
const (
	maxCommon    = 64 << 20  // looked up, which is most of the work: some 700,000 directories
	maxInherited = 256 << 10 // paths of the result, which is in the image's record
	maxLists     = 32 << 20  // lists in records of older crispds, see shape
)

// Inherit finds the directories that would lose their mode or owner in a mount of these layers,
// which are committed and retained, lowest first.
//
// Some tools write "tmp/x" into a layer without an entry for "tmp". Unpacking has to create the
// directory, and overlayfs then shows that one, plain and owned by root, instead of the one in
// the layer below. Each mount puts such directories, and their parents, on top of the layers. The
// layers themselves cannot be corrected: another image may have them over another base.
//
// It goes through the directories that layers have in common, in all of them at once: each layer is
// open at one place, and moves by single names. An image that has too much of them is
// fault.Invalid.
func (ls *Store) Inherit(ctx context.Context, layers []*Layer) (dirs []DirAttr, err error) {
	c := &common{ctx: ctx, room: maxCommon, spare: maxInherited}
	err = ls.inherit(c, Visible(layers))
	return c.dirs, err
}

// inherit is Inherit of layers that are visible, highest first.
func (ls *Store) inherit(c *common, layers []*Layer) error {
	implies := func(l *Layer) bool { return l.record.Shape.implies() }
	if len(layers) < 2 || !slices.ContainsFunc(layers[:len(layers)-1], implies) {
		return nil
	}
	var at []*place
	defer func() {
		for _, p := range at {
			unix.Close(p.fd)
		}
	}()
	lists := int64(maxLists)
	for _, l := range layers {
		p, err := ls.placeIn(l, &lists)
		if err != nil {
			return err
		}
		at = append(at, p)
	}
	return c.visit(at)
}

// placeIn opens a layer at its root directory. lists are the bytes that its record may have.
func (ls *Store) placeIn(l *Layer, lists *int64) (*place, error) {
	if l.record.Shape.Listed {
		if *lists -= l.record.size; *lists < 0 {
			return nil, fault.Invalid.Errorf("records of the layers, by an older crispd, have more than %d bytes of directories: remove the images with these layers first", maxLists)
		}
	}
	sh, err := ls.listed(l)
	if err != nil {
		return nil, err
	}
	fd, err := ls.open(l)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	root, err := openIn(fd, ".")
	return &place{root, sh}, err
}

// common goes through the directories that several layers have.
type common struct {
	ctx   context.Context
	room  int       // bytes that names may still take, see maxCommon
	path  []DirAttr // the directories on the way here; each Path is a single name
	known int       // of path, those that are in dirs
	dirs  []DirAttr
	spare int // bytes that dirs may still take, see maxInherited
}

// A place is where a layer is open: at the directory that is visited, or at the last on the way to
// it that the layer has.
type place struct {
	fd    int
	shape shape
}

// visit visits the directories below the one at which the given layers are, highest first.
func (c *common) visit(at []*place) error {
	for i, p := range at {
		if hasMark(p.fd, OverlayOpaque) {
			at = at[:i+1] // the layers below are hidden
			break
		}
	}
	var names []string
	for _, p := range at[:len(at)-1] {
		if !p.shape.implies() {
			continue
		}
		var err error
		if names, err = c.names(names, p.fd); err != nil {
			return err
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := c.enter(at, name); err != nil {
			return err
		}
	}
	return nil
}

// names adds the names of the directories in the directory dir.
func (c *common) names(names []string, dir int) ([]string, error) {
	fd, err := openIn(dir, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), FDPath(fd))
	defer f.Close()
	for {
		entries, err := f.ReadDir(1000)
		if err == io.EOF {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			if err := c.step(e.Name()); err != nil {
				return nil, err
			}
			names = append(names, e.Name())
		}
	}
}

// step accounts for a name.
func (c *common) step(name string) error {
	if c.room -= len(name) + nameCost; c.room < 0 {
		return fault.Invalid.Errorf("layers of the image have too many directories in common")
	}
	return c.ctx.Err()
}

// enter goes to the directory name in those of the layers that have it and are not covered by a
// layer above, and comes back.
func (c *common) enter(at []*place, name string) error {
	below, err := c.descend(at, name)
	if err != nil || len(below) == 0 {
		return err
	}
	c.path = append(c.path, DirAttr{Path: name, Mode: plainRoot.Mode})
	if err := c.look(below); err != nil {
		return err
	}
	if err := c.visit(below); err != nil {
		return err
	}
	c.path = c.path[:len(c.path)-1]
	c.known = min(c.known, len(c.path))
	for _, p := range below {
		if err := p.move(".."); err != nil {
			return err
		}
	}
	return nil
}

// descend moves those of the layers, highest first, that have the directory name into it, unless it
// is a single one, and returns them.
func (c *common) descend(at []*place, name string) (below []*place, err error) {
	for _, p := range at {
		if err := c.step(name); err != nil {
			return nil, err
		}
		err := p.move(name)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			break // it hides the layers below
		}
		if err == nil {
			below = append(below, p)
		} else if !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	if len(below) == 1 {
		return nil, below[0].move("..")
	}
	return below, nil
}

// move goes to the directory name in the one where p is. Layers are hostile: no link is followed.
func (p *place) move(name string) error {
	fd, err := openIn(p.fd, name)
	if err == nil {
		unix.Close(p.fd)
		p.fd = fd
	}
	return err
}

// look finds the attributes of the directory at which the layers are: those of the highest one that
// has an entry for it.
func (c *common) look(at []*place) error {
	here := &c.path[len(c.path)-1]
	for i, p := range at {
		if p.shape.implies() && p.shape.implied(p.fd, c.name) {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(p.fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		here.Mode, here.UID, here.GID = st.Mode&0o7777, st.Uid, st.Gid
		if i == 0 || *here == (DirAttr{Path: here.Path, Mode: plainRoot.Mode}) {
			return nil // overlayfs shows it so
		}
		return c.add()
	}
	return nil
}

// name returns the path of the directory that is visited.
func (c *common) name() string { return c.nameOf(len(c.path)) }

func (c *common) nameOf(depth int) string {
	var b strings.Builder
	for i, d := range c.path[:depth] {
		if i > 0 {
			b.WriteByte('/')
		}
		b.WriteString(d.Path)
	}
	return b.String()
}

// add adds the directory that is visited, and its parents, to dirs.
func (c *common) add() error {
	for ; c.known < len(c.path); c.known++ {
		d := c.path[c.known]
		d.Path = c.nameOf(c.known + 1)
		if c.spare -= len(d.Path) + nameCost; c.spare < 0 {
			return fault.Invalid.Errorf("paths of directories without an entry in one layer of the image, and with one in a layer below, have more than %d bytes", maxInherited)
		}
		c.dirs = append(c.dirs, d)
	}
	return nil
}

func openIn(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return fd, os.NewSyscallError("openat", err)
}

// Visible returns the layers that can show through, highest first. A layer that occurs twice keeps
// its upper place, which covers the lower one completely: overlayfs refuses the same directory
// twice.
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

// RootAttr is the owner and mode that a layer wants the root directory to have.
type RootAttr struct {
	Mode     uint32 // permissions with the special bits
	UID, GID uint32
}

// plainRoot is the root directory of a layer that has no entry for it.
var plainRoot = RootAttr{Mode: 0o755}

// Give sets these attributes on the directory dir.
func (r RootAttr) Give(dir string) error {
	if err := os.Lchown(dir, int(r.UID), int(r.GID)); err != nil {
		return err
	}
	return os.NewSyscallError("chmod", unix.Chmod(dir, r.Mode)) // chown(2) clears bits of the mode
}

// RootOf returns the attributes that the root directory of these layers, lowest first, should
// have: those of the highest layer that has an entry for it. Overlayfs itself would use those of
// the highest directory.
func RootOf(layers []*Layer) RootAttr {
	for _, l := range slices.Backward(layers) {
		if r := l.record.Shape.Root; r != nil {
			return *r
		}
	}
	return plainRoot
}

// TopRoot returns the attributes of the root directory of the highest of these layers.
func TopRoot(layers []*Layer) RootAttr {
	if len(layers) == 0 {
		return plainRoot
	}
	return RootOf(layers[len(layers)-1:])
}
