package layer

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/internal/fault"
)

// A packer turns a tar stream into one EROFS file with the tree that an unpacker would make as a
// directory: whiteouts, opaque directories and attributes are overlayfs's own there too, and it
// refuses the same streams. See unpacker for what is untrusted.
//
// The stream touches no path: names are looked up in a tree in memory, see names. The content of
// files goes into the file as it arrives.
type packer struct {
	names  names
	w      *erofs.Writer
	shape  shape
	buf    []byte
	ahead  func() ([]byte, error) // memory that has what the stream gives next; nil: none
	growth *growth
}

// packRoom is the memory that the files of a layer may take; tests have less.
var packRoom = maxNames

// pack reads a tar stream to its end and writes its tree to f, which is empty. Errors of kind
// fault.Invalid blame the stream.
func pack(ctx context.Context, r io.Reader, f *os.File, id erofs.UUID, g *growth) (shape, erofs.Summary, error) {
	w, err := erofs.NewWriter(f)
	if err != nil {
		return shape{}, erofs.Summary{}, err
	}
	p := &packer{names: newNames(memory.room(packRoom)), w: w, buf: make([]byte, blob.ChunkSize), growth: g}
	defer p.names.room.leave()
	if a, ok := r.(*blob.ReadAhead); ok {
		p.ahead = a.Ahead
	}
	tr := tar.NewReader(r)
	err = eachEntry(ctx, tr, func(hdr *tar.Header) error { return p.entry(ctx, hdr, tr) })
	if err != nil {
		return shape{}, erofs.Summary{}, err
	}
	p.shape.Marked = p.names.mark()
	if p.names.root.opaque {
		p.shape.Opaque = []string{"."}
	}
	sum, err := w.Close(ctx, p.names.root.Node, id)
	if err != nil {
		return shape{}, erofs.Summary{}, err
	}
	// Data after the end mark is part of the layer's digests.
	if _, err := io.Copy(io.Discard, onlyReader{r}); err != nil {
		return shape{}, erofs.Summary{}, blob.ArchiveError(err)
	}
	return p.shape, sum, nil
}

// entry adds what hdr describes.
func (p *packer) entry(ctx context.Context, hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil // not about a file: git writes its commit there
	}
	name, err := inside(hdr.Name)
	if err != nil {
		return err
	}
	n, err := nodeOf(hdr)
	if err != nil {
		return err
	}
	if name == "." {
		if hdr.Typeflag != tar.TypeDir {
			return fault.Invalid.Errorf("the root of the layer is not a directory")
		}
		if err := setKind(n, hdr); err != nil {
			return err
		}
		p.shape.Root = &RootAttr{Mode: mode(hdr), UID: uint32(hdr.Uid), GID: uint32(hdr.Gid)}
		p.names.root.take(n)
		return nil
	}
	parent, base := path.Split(name)
	if isMeta(parent, base) {
		return nil
	}
	base = strings.Clone(base)
	dir, err := p.names.dir(path.Clean(parent))
	if err != nil {
		return err
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return p.names.whiteout(dir, hidden)
	}
	if err := checkName(base); err != nil {
		return err
	}
	if err := setKind(n, hdr); err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return p.names.directory(dir, base, n)
	case tar.TypeLink:
		return p.names.link(dir, base, name, hdr.Linkname)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if n.Content, err = p.fill(ctx, content, hdr); err != nil {
			return err
		}
	}
	return p.names.put(dir, base, n)
}

// nodeOf returns the file that hdr describes, without its type and content.
func nodeOf(hdr *tar.Header) (*erofs.Node, error) {
	if err := checkOwner(hdr, false); err != nil {
		return nil, err
	}
	attrs, err := xattrs(hdr)
	if err != nil {
		return nil, err
	}
	return &erofs.Node{
		Mode: mode(hdr), UID: uint32(hdr.Uid), GID: uint32(hdr.Gid), Attrs: attrs,
		Sec: hdr.ModTime.Unix(), Nsec: uint32(hdr.ModTime.Nanosecond()),
	}, nil
}

// setKind sets the type of n and its type's fields. A hard link has none.
func setKind(n *erofs.Node, hdr *tar.Header) error {
	switch hdr.Typeflag {
	case tar.TypeDir:
		n.Mode |= unix.S_IFDIR
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		n.Mode |= unix.S_IFREG
	case tar.TypeLink:
	case tar.TypeSymlink:
		n.Mode, n.Target = unix.S_IFLNK|0o777, strings.Clone(hdr.Linkname)
		if n.Target == "" || len(n.Target) >= unix.PathMax || strings.Contains(n.Target, "\x00") {
			return fault.Invalid.Errorf("symlink has a target of %d bytes", len(n.Target))
		}
	case tar.TypeFifo:
		n.Mode |= unix.S_IFIFO
	case tar.TypeChar, tar.TypeBlock:
		kind, dev, err := device(hdr)
		if err != nil {
			return err
		}
		n.Mode, n.Device = n.Mode|kind, dev
	default:
		return fault.Invalid.Errorf("type %q of entry is not known", hdr.Typeflag)
	}
	return checkAttrs(n)
}

// checkAttrs drops the attributes that the kernel would not allow on n, and refuses capabilities
// that it would refuse.
func checkAttrs(n *erofs.Node) error {
	kind := n.Mode & unix.S_IFMT
	for key, value := range n.Attrs {
		if strings.HasPrefix(key, "user.") && kind != unix.S_IFREG && kind != unix.S_IFDIR || key == "user." {
			delete(n.Attrs, key)
		}
		if key == "security.capability" && !isCapability(value) {
			return fault.Invalid.Errorf("attribute %s has no capabilities", key)
		}
	}
	return nil
}

// isCapability reports whether value is a file's capabilities in version 2 or 3
// (capabilities(7), linux/capability.h): the version in the highest byte of the first word, and
// 20 or 24 bytes.
func isCapability(value string) bool {
	return len(value) == 20 && value[3] == 2 || len(value) == 24 && value[3] == 3
}

// fill writes a file's content. In a sparse file it skips blocks of zeroes.
func (p *packer) fill(ctx context.Context, content io.Reader, hdr *tar.Header) (erofs.Content, error) {
	p.growth.made()
	sparse := isSparse(hdr)
	if sparse {
		if err := p.growth.claim(hdr.Size); err != nil {
			return erofs.Content{}, err
		}
	}
	to, err := p.w.Begin()
	if err != nil {
		return erofs.Content{}, err
	}
	for left := hdr.Size; left > 0; {
		buf, err := p.next(content, left, sparse)
		if err != nil {
			return erofs.Content{}, blob.ArchiveError(err)
		}
		left -= int64(len(buf))
		if sparse && isZero(buf) {
			if err := ctx.Err(); err != nil {
				return erofs.Content{}, err
			}
			if err := to.Skip(int64(len(buf))); err != nil {
				return erofs.Content{}, err
			}
			continue
		}
		if _, err := to.Write(buf); err != nil {
			return erofs.Content{}, err
		}
		p.growth.wrote(len(buf))
	}
	p.growth.ended(hdr.Size)
	return to.Content(), nil
}

// next reads at most left bytes of a file's content, where they are already if that can be.
func (p *packer) next(content io.Reader, left int64, sparse bool) ([]byte, error) {
	buf := p.buf
	if p.ahead != nil && !sparse { // of a sparse file the stream has only parts
		var err error
		if buf, err = p.ahead(); err == io.EOF {
			return nil, io.ErrUnexpectedEOF
		} else if err != nil {
			return nil, err
		}
	}
	buf = buf[:min(left, int64(len(buf)))]
	_, err := io.ReadFull(content, buf)
	return buf, err
}
