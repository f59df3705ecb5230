package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
)

// shape describes a layer's effects on other layers.
//
// It is in memory as long as the layer, so it has no list that a layer could make long: what is to
// be known of each directory is in its attributes.
type shape struct {
	Root   *RootAttr `json:",omitempty"` // nil: the layer has no entry for the root directory
	Opaque []string  `json:",omitempty"` // ".": the root directory hides the layers below
	Marked bool      `json:",omitempty"` // directories without an entry have OverlayImplied

	// Implied lists them in records of older crispds, which made no marks; in memory it is
	// nil, and Listed says that there are some. Opaque listed all directories there.
	Implied []string `json:",omitempty"`
	Listed  bool     `json:"-"`
}

// implies reports whether there may be directories without an entry.
func (s shape) implies() bool { return s.Marked || s.Listed }

// implied reports whether the directory fd, whose path is name, has no entry.
func (s shape) implied(fd int, name func() string) bool {
	if s.Marked {
		return hasMark(fd, OverlayImplied)
	}
	_, is := slices.BinarySearch(s.Implied, name())
	return is
}

// An unpacker turns a tar stream into a directory of overlayfs's format.
//
// The stream is untrusted. Nothing outside the directory is touched:
//
//   - The parent of each entry is opened with openat2(2) and RESOLVE_IN_ROOT, so that the
//     layer's symlinks, "..", and absolute targets stay inside. Everything else happens relative
//     to that descriptor, on a single name that is not a link: the name is created with O_EXCL
//     or its like, after whatever had the name was removed.
//   - A name or hard link target that leaves the root by ".." is refused.
//   - Only the extended attributes user.*, security.capability and security.ima are set;
//     trusted.overlay.* is refused, because overlayfs would obey it.
//   - Device nodes are created as they are. The container's device cgroup restricts them; on the
//     host the modes of the store's root directory, and of the directories of the mount points,
//     keep users away from them and from set-user-ID files.
//
// Nothing else may change the directory meanwhile.
type unpacker struct {
	dirs   dirs
	umask  uint32
	squash bool                        // see checkOwner
	times  map[string][2]unix.Timespec // of directories: set when nothing more is created in them
	shape  shape
	buf    []byte
	growth *growth
}

// unpack reads a tar stream to its end and extracts its entries into the directory dir, which is
// empty. Errors of kind fault.Invalid blame the stream.
func unpack(ctx context.Context, r io.Reader, dir string, g *growth) (shape, error) {
	return unpackInto(ctx, r, dir, unpacking{}, g)
}

// An unpacking is a way to unpack: if plain is set, names that look like whiteouts are ordinary files,
// and the directory need not be empty; for squash see checkOwner.
type unpacking struct{ plain, squash bool }

func unpackInto(ctx context.Context, r io.Reader, dir string, how unpacking, g *growth) (shape, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return shape{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	u := newUnpacker(ctx, root, dir)
	u.dirs.plain, u.squash, u.growth = how.plain, how.squash, g
	defer u.dirs.close()

	tr := tar.NewReader(r)
	err = eachEntry(ctx, tr, func(hdr *tar.Header) error { return u.entry(ctx, hdr, tr) })
	if err != nil {
		return shape{}, err
	}
	if err := u.setTimes(); err != nil {
		return shape{}, err
	}
	u.shape.Marked = u.dirs.marks > 0
	if hasMark(root, OverlayOpaque) {
		u.shape.Opaque = []string{"."}
	}
	// Data after the end mark is part of the layer's digests.
	if _, err := io.Copy(io.Discard, onlyReader{r}); err != nil {
		return shape{}, blob.ArchiveError(err)
	}
	return u.shape, nil
}

// eachEntry calls f with each entry of an archive.
func eachEntry(ctx context.Context, tr *tar.Reader, f func(*tar.Header) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return blob.ArchiveError(err)
		}
		if err := f(hdr); err != nil {
			return fmt.Errorf("entry %q: %w", hdr.Name, err)
		}
	}
}

// newUnpacker returns an unpacker that owns root, a descriptor of the directory dir.
func newUnpacker(ctx context.Context, root int, dir string) *unpacker {
	return &unpacker{
		dirs:   dirs{ctx: ctx, root: root, path: filepath.Clean(dir), room: memory.room(maxNames), open: make(map[string]openDir), white: make(map[string]bool)},
		umask:  umask(),
		times:  make(map[string][2]unix.Timespec),
		growth: new(growth),
		buf:    make([]byte, blob.ChunkSize),
	}
}

// onlyReader hides the reader's other methods, so that io.Copy reads in its own buffer.
type onlyReader struct{ io.Reader }

// inside returns name as a clean path relative to the root, "." being the root itself. Absolute
// names are relative to it, as in every tar program.
func inside(name string) (string, error) {
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", fault.Invalid.Errorf("%q leaves the layer", name)
	}
	return clean, nil
}

// entry creates what hdr describes.
func (u *unpacker) entry(ctx context.Context, hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil // not about a file: git writes its commit there
	}
	name, err := inside(hdr.Name)
	if err != nil {
		return err
	}
	if err := checkOwner(hdr, u.squash); err != nil {
		return err
	}
	attrs, err := xattrs(hdr)
	if err != nil {
		return err
	}
	if name == "." {
		return u.rootEntry(hdr, attrs)
	}
	name = strings.Clone(name) // it is kept; the header, of up to a MiB, is not
	parent, base := path.Split(name)
	if !u.dirs.plain && isMeta(parent, base) {
		return nil
	}
	dir, err := u.dirs.get(path.Clean(parent))
	if err != nil {
		return err
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok && !u.dirs.plain {
		return u.whiteout(dir, parent, hidden)
	}
	if hdr.Typeflag != tar.TypeLink {
		u.growth.made()
	}
	if hdr.Typeflag == tar.TypeDir {
		return u.directory(dir, name, base, hdr, attrs)
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return u.file(ctx, dir, name, base, hdr, attrs, content)
	case tar.TypeLink:
		return u.link(dir, name, base, hdr)
	case tar.TypeSymlink:
		if len(hdr.Linkname) == 0 {
			return fault.Invalid.Errorf("symlink has no target")
		}
		err = u.make(dir, name, base, func() error { return unix.Symlinkat(hdr.Linkname, dir, base) })
	case tar.TypeFifo:
		err = u.make(dir, name, base, func() error { return unix.Mknodat(dir, base, unix.S_IFIFO|mode(hdr), 0) })
	case tar.TypeChar, tar.TypeBlock:
		err = u.device(dir, name, base, hdr)
	default:
		return fault.Invalid.Errorf("type %q of entry is not known", hdr.Typeflag)
	}
	if err != nil {
		return err
	}
	return u.attributes(dir, base, hdr, attrs)
}

func (u *unpacker) device(dir int, name, base string, hdr *tar.Header) error {
	kind, dev, err := device(hdr)
	if err != nil {
		return err
	}
	return u.make(dir, name, base, func() error { return unix.Mknodat(dir, base, kind|mode(hdr), int(dev)) })
}

// make calls create, and again after removing what was in its way.
func (u *unpacker) make(dir int, name, base string, create func() error) error {
	err := create()
	if err == unix.EEXIST {
		if err := u.clear(dir, name, base); err != nil {
			return err
		}
		err = create()
	}
	return u.madeErr(err)
}

// madeErr returns the error of creating a name: the stream is to blame if the kernel does not
// accept the name or the link's target.
func (u *unpacker) madeErr(err error) error {
	switch err {
	case unix.ENAMETOOLONG, unix.EINVAL, unix.EILSEQ:
		return fault.Invalid.Errorf("make: %w", err)
	}
	return os.NewSyscallError("make", err)
}

// clear removes base, whatever its type.
func (u *unpacker) clear(dir int, name, base string) error {
	delete(u.dirs.white, name)
	u.dirs.flush() // names may refer to others now: this one may be a symlink to elsewhere
	err := unix.Unlinkat(dir, base, 0)
	if err == unix.EISDIR {
		return tree.RemoveAt(u.dirs.ctx, dir, base)
	}
	if err == unix.ENOENT {
		return nil
	}
	return os.NewSyscallError("unlink", err)
}

// link makes a hard link to an earlier entry.
func (u *unpacker) link(dir int, name, base string, hdr *tar.Header) error {
	target, err := inside(hdr.Linkname)
	if err != nil {
		return err
	}
	if target == name {
		return nil
	}
	parent, old := path.Split(target)
	from, err := u.dirs.find(path.Clean(parent))
	if err != nil {
		return fault.Invalid.Errorf("hard link to %q: %w", hdr.Linkname, err)
	}
	defer unix.Close(from)
	err = u.make(dir, name, base, func() error { return unix.Linkat(from, old, dir, base, 0) })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.ENOTDIR) {
		return fault.Invalid.Errorf("hard link to %q: %w", hdr.Linkname, err)
	}
	return err
}

func (u *unpacker) directory(dir int, name, base string, hdr *tar.Header, attrs map[string]string) error {
	err := unix.Mkdirat(dir, base, mode(hdr)&0o777)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("stat", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			hides := u.dirs.white[name]
			if err := u.clear(dir, name, base); err != nil {
				return err
			}
			if err := unix.Mkdirat(dir, base, mode(hdr)&0o777); err != nil {
				return os.NewSyscallError("mkdir", err)
			}
			if hides {
				if err := setMark(dir, base, OverlayOpaque); err != nil {
					return err
				}
			}
		} else if err := u.dirs.explicit(dir, base); err != nil {
			return err
		}
	} else if err != nil {
		return u.madeErr(err)
	}
	if _, again := u.times[name]; !again {
		if err := u.dirs.keep(name); err != nil {
			return err
		}
	}
	u.times[name] = times(hdr)
	return u.owner(dir, base, hdr, attrs)
}

// rootEntry takes the attributes of the root directory. The directory itself has them for
// read-only mounts; a writable layer gets them from shape.
func (u *unpacker) rootEntry(hdr *tar.Header, attrs map[string]string) error {
	if hdr.Typeflag != tar.TypeDir {
		return fault.Invalid.Errorf("the root of the layer is not a directory")
	}
	u.shape.Root = &RootAttr{Mode: mode(hdr), UID: uint32(hdr.Uid), GID: uint32(hdr.Gid)}
	u.times["."] = times(hdr)
	return u.owner(u.dirs.root, ".", hdr, attrs)
}

// setTimes sets the times of the directories that still exist: later entries may have replaced
// them, or a link in their path.
func (u *unpacker) setTimes() error {
	for name, at := range u.times {
		if err := u.dirs.ctx.Err(); err != nil {
			return err
		}
		parent, base := path.Split(name)
		dir, err := u.dirs.find(path.Clean(parent))
		if err == nil {
			if isDir(dir, base) {
				err = setTime(dir, base, at)
			}
			unix.Close(dir)
		}
		if err != nil && err != unix.ENOENT && err != unix.ENOTDIR && err != unix.ELOOP {
			return fmt.Errorf("directory %q: %w", name, err)
		}
	}
	return nil
}

// isDir reports whether name, in the directory dir, is a directory and not a link to one.
func isDir(dir int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}
