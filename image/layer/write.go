package layer

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"golang.org/x/sys/unix"
)

// maxLinkNames bounds the bytes of names kept for files with several links while a layer is
// written: some half a million.
const maxLinkNames = 64 << 20

// Write writes the files of a committed layer, which the caller retains, as the tar stream of a
// layer (OCI image spec, layer.md): whiteouts and opaque directories under their names there,
// and no entry for directories that had none. The same layer always yields the same stream, but
// seldom the one it was unpacked from: the order of entries, access times, names of owners and
// the form of headers are not kept. An artifact has no such stream: fault.Invalid.
func (ls *Store) Write(ctx context.Context, l *Layer, w io.Writer) error {
	fd, err := ls.open(l)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	sh, err := ls.listed(l)
	if err == nil {
		err = writeLayer(ctx, fd, sh, w)
	}
	if err != nil {
		return fmt.Errorf("write layer %s: %w", l.DiffID, err)
	}
	return nil
}

// writeLayer writes the files below the directory root.
func writeLayer(ctx context.Context, root int, sh shape, w io.Writer) error {
	lw := &writer{ctx: ctx, tar: tar.NewWriter(w), shape: sh, buf: make([]byte, blob.ChunkSize),
		links: make(map[uint64]string), room: maxLinkNames}
	if err := tree.WalkAt(ctx, root, ".", tree.Options{Sorted: true}, lw.visit); err != nil {
		return err
	}
	return lw.tar.Close()
}

// A writer turns a directory of overlayfs's format into a tar stream, the inverse of an
// unpacker.
type writer struct {
	ctx   context.Context
	tar   *tar.Writer
	shape shape
	links map[uint64]string // inodes with several names → their first one
	room  int               // bytes that links may still take, see maxLinkNames
	buf   []byte
}

// visit writes the entries of one file.
func (w *writer) visit(f *tree.File) error {
	name := ""
	if !f.IsTop() {
		if f.PathLen() > unix.PathMax {
			return fault.Invalid.Errorf("a path of %d bytes is too long for an archive", f.PathLen())
		}
		name = f.Path()
	}
	if f.Stat.Mode&unix.S_IFMT == unix.S_IFCHR && f.Stat.Rdev == 0 {
		dir, base := path.Split(name)
		return w.tar.WriteHeader(w.mark(dir + whiteoutPrefix + base))
	}
	at := FDPath(f.Dir) + "/" + f.Name
	if f.IsDir() {
		at = FDPath(f.FD) + "/."
	}
	hdr, err := Header(at, name, &f.Stat)
	if err != nil {
		return err
	}
	if hdr == nil {
		return fault.Invalid.Errorf("%q is a socket, which no layer can have", name)
	}
	if f.IsDir() {
		return w.directory(f.FD, name, hdr)
	}
	if f.Stat.Nlink > 1 {
		if first, ok := w.links[f.Stat.Ino]; ok {
			hdr.Typeflag, hdr.Linkname, hdr.Size, hdr.PAXRecords = tar.TypeLink, first, 0, nil
			return w.tar.WriteHeader(hdr)
		}
		if w.room -= len(name) + nameCost; w.room < 0 {
			return fault.Invalid.Errorf("names of files that have several take more than %d bytes", maxLinkNames)
		}
		w.links[f.Stat.Ino] = name
	}
	if err := w.tar.WriteHeader(hdr); err != nil || hdr.Typeflag != tar.TypeReg {
		return err
	}
	return w.content(f, name)
}

// directory writes the entry of a directory, unless the layer had none for it, and the mark of
// one that hides its contents in the layers below.
func (w *writer) directory(fd int, name string, hdr *tar.Header) error {
	if name == "" && w.shape.Root != nil || name != "" && !(w.shape.implies() && w.shape.implied(fd, func() string { return name })) {
		if err := w.tar.WriteHeader(hdr); err != nil {
			return err
		}
	}
	if !hasMark(fd, OverlayOpaque) {
		return nil
	}
	return w.tar.WriteHeader(w.mark(path.Join(name, whiteoutOpaque)))
}

// mark returns the header of an empty file that marks a deletion. It has no time, since the
// layer does not keep it.
func (w *writer) mark(name string) *tar.Header {
	return &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name}
}

// content writes the content of the regular file f.
func (w *writer) content(f *tree.File, name string) error {
	fd, err := unix.Openat(f.Dir, f.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	for left := f.Stat.Size; left > 0; {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(file, w.buf[:min(left, int64(len(w.buf)))])
		if err != nil {
			return &fs.PathError{Op: "read", Path: name, Err: err}
		}
		if _, err := w.tar.Write(w.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// Header returns the tar header of the file at path, whose name in the stream is name ("": the
// root) and whose status is st. It has what an image may store of a file: type, mode, owner,
// modification time in nanoseconds, target, device, and the attributes of IsKept. For a socket,
// which no tar stream can hold, it is nil.
func Header(path, name string, st *unix.Stat_t) (*tar.Header, error) {
	if name == "" {
		name = "."
	}
	hdr := &tar.Header{
		Format: tar.FormatPAX, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), PAXRecords: map[string]string{},
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
	case unix.S_IFREG:
		hdr.Typeflag, hdr.Size = tar.TypeReg, st.Size
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return nil, err
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, target
	case unix.S_IFIFO:
		hdr.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		hdr.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			hdr.Typeflag = tar.TypeBlock
		}
		hdr.Devmajor, hdr.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	default:
		return nil, nil
	}
	if hdr.Typeflag == tar.TypeSymlink {
		return hdr, nil
	}
	attrs, err := attributesOf(path)
	for key, value := range attrs {
		hdr.PAXRecords["SCHILY.xattr."+key] = value
	}
	return hdr, err
}

// attributesOf returns those extended attributes of a file that an image may have.
func attributesOf(path string) (map[string]string, error) {
	n, err := unix.Llistxattr(path, nil)
	if err == unix.ENOTSUP || err == nil && n == 0 {
		return nil, nil // like most files
	}
	buf := make([]byte, 64<<10) // XATTR_LIST_MAX
	if err == nil {
		n, err = unix.Llistxattr(path, buf)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	attrs := make(map[string]string)
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for key := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !IsKept(key) {
			continue
		}
		n, err := unix.Lgetxattr(path, key, value)
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr", Path: path, Err: err}
		}
		attrs[key] = string(value[:n])
	}
	return attrs, nil
}
